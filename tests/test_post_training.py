"""Stages that start from a model: consistency, adaptation, SDTT, the stopping rule, snapshots."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase

from fpmgm.__main__ import main
from fpmgm.backbones.dit import Network, as_mdlm, mdlm
from fpmgm.checkpoint import load
from fpmgm.codecs import TextCodec
from fpmgm.data.stories_text import StoriesConfig
from fpmgm.data.text import TextConfig, load_text
from fpmgm.evaluation.held_out import text_codec
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.interop.conversion import to_fixed_point
from fpmgm.interop.layer_map import LayerMap
from fpmgm.objectives import NextToken
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.training import loop
from fpmgm.training.config import AnyObjective, Training
from fpmgm.training.loop import train
from fpmgm.training.metrics import read_metrics
from fpmgm.training.optim import OptimConfig
from tests.conftest import text_of

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))
PLAIN = Network(width=16, num_heads=2, num_pre=3, cond_width=8, dropout=0.0)
FIXED = replace(PLAIN, num_pre=1, num_fp=1, num_post=1)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    return Training(
        out=str(tmp_path / "run"),
        model=FIXED,
        data=TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=16),
        optim=OptimConfig(lr=1e-3, warmup=2, ema=0.9),
        updates=6,
        batch_size=4,
        checkpoint_every=2,
        validate_every=2,
        validation_sequences=8,
        trackers=(),
    )


@pytest.fixture
def plain(config: Training, tmp_path: Path) -> str:
    """A plain stack that has learned a little."""
    return str(train(replace(config, model=PLAIN, out=str(tmp_path / "plain")), "test"))


@pytest.fixture
def fixed(config: Training, tmp_path: Path) -> str:
    return str(train(replace(config, out=str(tmp_path / "fixed")), "test"))


def losses_of(config: Training) -> list[float]:
    return [row["loss"] for row in read_metrics(Path(config.out))]


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    "stage",
    [
        Consistency(weight=0.5),
        Consistency(weight=0.5, teacher="ema", distance="cosine"),
        SelfDistillation(rounds=3, first_steps=16),
        SelfDistillation(rounds=3, first_steps=16, next_teacher="ema"),
        pytest.param(
            Matching(fake_updates=2, fake_ema=0.5, steps=(2, 4), inputs="own", reuse="three-state"),
            marks=pytest.mark.slow,
        ),
        Matching(base_weight=0.1),
        Matching(steps=(2, 4), remask="nested", first="base"),
    ],
    ids=["self", "ema", "sdtt", "sdtt-ema", "matching-own", "matching", "matching-nested"],
)
def test_a_stage_killed_in_any_round_ends_as_one_left_alone(
    config: Training, fixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: AnyObjective
) -> None:
    config = replace(config, init=fixed, checkpoint_every=1, objective=stage)
    whole = replace(config, out=str(tmp_path / "whole"))
    train(whole, "test")
    original = loop.Run.update
    for kill_at in (1, 3, 5):

        def dies(self: loop.Run, update: int, kill_at: int = kill_at) -> dict[str, float]:
            if update == kill_at:
                raise KilledError
            return original(self, update)

        monkeypatch.setattr(loop.Run, "update", dies)
        with pytest.raises(KilledError):
            train(config, "test")
    monkeypatch.setattr(loop.Run, "update", original)
    train(config, "test")
    assert losses_of(config) == losses_of(whole)


def test_a_stage_keeps_how_its_start_reveals_tokens_and_one_that_learned_halton_order_has_it(
    config: Training, fixed: str, tmp_path: Path
) -> None:
    assert load(fixed).generation == {}
    in_order = Matching(steps=(2, 4), inputs="own", order="halton")
    ordered = train(replace(config, init=fixed, objective=in_order, updates=1, out=str(tmp_path / "ordered")), "test")
    assert load(str(ordered)).generation == {"defaults": {"transition": "halton"}}
    by_chance = Matching(steps=(2, 4))
    again = train(replace(config, init=str(ordered), objective=by_chance, updates=1, out=str(tmp_path / "b")), "test")
    assert load(str(again)).generation == {"defaults": {"transition": "halton"}}


def test_a_matching_moves_student_and_fake_at_their_own_rates_and_never_the_teacher(
    config: Training, fixed: str, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[tuple[float, float]] = []
    runs: list[loop.Run] = []
    original = loop.Run._step

    def watched(self: loop.Run, *, is_learning: bool) -> None:
        assert self.companion is not None
        rates.append((self.optimiser.param_groups[0]["lr"], self.companion.optimiser.param_groups[0]["lr"]))
        runs.append(self)
        original(self, is_learning=is_learning)

    monkeypatch.setattr(loop.Run, "_step", watched)
    train(replace(config, init=fixed, objective=Matching(teacher=plain, fake_lr=5e-3)), "test")
    assert [round(fake / student, 6) for student, fake in rates] == [5.0] * 6
    run, before = runs[-1], load(plain).denoiser
    assert run.teacher is not None
    assert run.companion is not None
    fake = run.companion.network
    for name, weight in before.state_dict().items():
        assert torch.equal(run.teacher.state_dict()[name], weight)
    assert fake.cost == before.cost
    assert run.denoiser.cost != before.cost
    assert any(not torch.equal(fake.state_dict()[name], weight) for name, weight in before.state_dict().items())


def test_a_teacher_or_fake_of_other_symbols_is_refused_before_any_text_is_read(
    config: Training, fixed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = replace(text_of(config), tokenizer="bpe-280")
    other = str(train(replace(config, data=data, out=str(tmp_path / "other")), "test"))
    wrong: list[tuple[dict[str, Any], str]] = [({"teacher": other}, "teacher"), ({"fake": other}, "fake")]
    for settings, who in wrong:
        assert f"{who} {other} has another tokenizer" in refused(
            config, init=fixed, objective=Matching(**settings), data=replace(text_of(config), source="nowhere.txt")
        )


def test_a_start_or_teacher_whose_tokenizer_has_another_name_is_refused_before_any_text_is_read(
    config: Training, fixed: str
) -> None:
    data = replace(text_of(config), tokenizer="bpe-280", source="nowhere.txt")
    kl = Consistency(teacher=fixed, distance="kl")
    assert f"init {fixed} has another tokenizer than the run, bpe-300 and not bpe-280" in refused(
        config, init=fixed, data=data
    )
    assert f"teacher {fixed} has another tokenizer than the run" in refused(config, objective=kl, data=data)


def test_a_run_that_goes_on_from_another_has_its_optimiser_average_and_learning_rate(
    config: Training, tmp_path: Path
) -> None:
    whole = replace(config, out=str(tmp_path / "whole"), updates=6)
    train(whole, "test")
    train(replace(config, out=str(tmp_path / "first"), updates=4), "test")
    second = replace(config, continue_from=str(tmp_path / "first"), updates=2, seed=0)
    original = loop.Run.update

    def later(self: loop.Run, update: int) -> dict[str, float]:
        return original(self, update + 4)  # the batches and numbers of updates 4 and 5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Run, "update", later)
        train(second, "test")
    assert losses_of(second) == losses_of(whole)[4:]
    rates = [row["lr"] for row in read_metrics(Path(second.out))]
    assert rates == [config.optim.lr] * 2  # no new warm-up
    kept = [load(Path(each.out) / "model").denoiser.state_dict() for each in (second, whole)]
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


def test_what_a_run_cannot_go_on_from_is_refused(config: Training, fixed: str, plain: str, tmp_path: Path) -> None:
    assert "holds no state of a run" in refused(config, continue_from=str(Path(fixed).parent / "model"))
    assert "num_pre" in refused(config, continue_from=str(Path(plain).parent))
    with pytest.raises(ValueError, match="there is an init; give one"):
        replace(config, continue_from="runs/x", init=fixed)


def test_the_terms_of_the_loss_are_written_down_and_add_up(config: Training, fixed: str) -> None:
    config = replace(config, init=fixed, objective=Consistency(weight=0.5, warmup=0.5), micro_batch_size=2)
    train(config, "test")
    rows = read_metrics(Path(config.out))
    for row, weight in zip(rows, (1 / 6, 1 / 3, 0.5, 0.5, 0.5, 0.5), strict=True):
        assert row["loss"] == pytest.approx(row["base"] + weight * row["consistency"], rel=1e-4)


def test_a_run_starts_from_the_model_it_names(config: Training, fixed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[loop.Run] = []
    monkeypatch.setattr(loop.Run, "go", lambda self: runs.append(self))
    monkeypatch.setattr(loop, "write_model", lambda *_: None)
    train(replace(config, init=fixed, seed=7), "test")
    started, source = runs[0].denoiser.state_dict(), load(fixed).denoiser.state_dict()
    assert all(torch.equal(started[name], source[name]) for name in source)


def test_a_run_may_start_from_mapped_layers_of_a_plain_stack(
    config: Training, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[loop.Run] = []
    monkeypatch.setattr(loop.Run, "go", lambda self: runs.append(self))
    monkeypatch.setattr(loop, "write_model", lambda *_: None)
    train(replace(config, init=plain, init_map="1/2/3"), "test")
    mapped = to_fixed_point(load(plain), LayerMap.parse("1/2/3")).denoiser.state_dict()
    started = runs[0].denoiser.state_dict()
    assert all(torch.equal(started[name], mapped[name]) for name in mapped)


def test_adaptation_learns_from_a_frozen_teacher_of_another_depth(
    config: Training, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers = []
    original = loop.Run.go

    def watched(self: loop.Run) -> None:
        original(self)
        teachers.append(self.teacher)

    monkeypatch.setattr(loop.Run, "go", watched)
    kl = Consistency(weight=0.1, teacher=plain, distance="kl", temperature=1.5)
    train(replace(config, init=plain, init_map="1/2/3", objective=kl), "test")
    source = load(plain).denoiser.state_dict()
    assert teachers[0] is not None
    found = teachers[0].state_dict()
    assert all(torch.equal(found[name], source[name]) for name in source)
    assert all("consistency" in row for row in read_metrics(Path(config.out)))


def test_the_teacher_of_a_round_is_the_student_at_its_start(
    config: Training, fixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    original = loop.Run.update

    def watched(self: loop.Run, update: int) -> dict[str, float]:
        before = next(self.denoiser.parameters()).detach().clone()
        row = original(self, update)
        assert self.teacher is not None
        seen.append((before, next(self.teacher.parameters()).detach().clone()))
        return row

    monkeypatch.setattr(loop.Run, "update", watched)
    train(replace(config, init=fixed, objective=SelfDistillation(rounds=2, first_steps=16)), "test")
    start = next(load(fixed).denoiser.parameters())
    assert all(torch.equal(teacher, start) for _, teacher in seen[:3])
    assert all(torch.equal(teacher, seen[3][0]) for _, teacher in seen[3:])
    assert not torch.equal(seen[3][0], start)


def test_a_run_stops_at_the_first_perplexity_above_the_starts_and_keeps_that_checkpoint(
    config: Training, fixed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter([100.0, 110.0, 116.0, 50.0])  # the start, then updates 2, 4, 6
    original = loop.Run.validate

    def validate(self: loop.Run) -> dict[str, float]:
        return {**original(self), "validation": next(found)}

    monkeypatch.setattr(loop.Run, "validate", validate)
    config = replace(config, init=fixed, stop_above=0.15, checkpoint_every=100)
    folder = train(config, "test")
    rows = read_metrics(Path(config.out))
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert "stopped after update 4: validation perplexity 116.00 is beyond 115.00" in capsys.readouterr().err
    assert "Stopped before its 6 updates" in (folder / "README.md").read_text()
    kept = load(folder).denoiser.state_dict()
    train(config, "test")  # it is over: nothing more happens
    assert len(read_metrics(Path(config.out))) == 4
    again = load(folder).denoiser.state_dict()
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def test_the_limit_of_the_stopping_rule_is_measured_once_at_the_start(
    config: Training, fixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, init=fixed, stop_above=5.0)
    text = load_text(text_of(config))
    expected = perplexity(load(fixed).denoiser, text.measured(8)).value
    original = loop.Run.update

    def dies(self: loop.Run, update: int) -> dict[str, float]:
        if update == 3:
            raise KilledError
        return original(self, update)

    monkeypatch.setattr(loop.Run, "update", dies)
    with pytest.raises(KilledError):
        train(config, "test")
    monkeypatch.setattr(loop.Run, "update", original)
    train(config, "test")
    start = json.loads((Path(config.out) / "start.json").read_text())
    assert start["validation"] == pytest.approx(expected, rel=1e-5)


def test_snapshots_are_models_of_the_start_and_of_every_so_many_updates(config: Training, fixed: str) -> None:
    train(replace(config, init=fixed, snapshot_every=3), "test")
    folders = sorted((Path(config.out) / "snapshots").iterdir())
    assert [folder.name for folder in folders] == ["update-00000000", "update-00000003", "update-00000006"]
    first, last = (load(folder).denoiser.state_dict() for folder in (folders[0], folders[-1]))
    start, end = load(fixed).denoiser.state_dict(), load(Path(config.out) / "model").denoiser.state_dict()
    for name in first:
        torch.testing.assert_close(first[name], start[name].half().float())
        torch.testing.assert_close(last[name], end[name].half().float())


def test_a_run_from_before_a_setting_existed_goes_on(config: Training, fixed: str) -> None:
    train(config, "test")
    file = Path(config.out) / "config.json"
    settings = json.loads(file.read_text())
    for key in ("objective.gradient", "init", "objective", "stop_above"):
        del settings[key]
    file.write_text(json.dumps(settings))
    train(replace(config, updates=8, extend=True), "test")
    with pytest.raises(ValueError, match="holds a run with objective 'MaskedCrossEntropy', not 'Consistency'"):
        train(replace(config, updates=8, extend=True, objective=Consistency(weight=0.5)), "test")


def refused(config: Training, **changes: Any) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        train(replace(config, out=config.out + "-refused", **changes), "test")
    return str(error.value)


def test_models_that_do_not_fit_a_run_are_refused_with_the_reason(
    config: Training, fixed: str, plain: str, tmp_path: Path
) -> None:
    def kl(teacher: str) -> Consistency:
        return Consistency(weight=0.1, teacher=teacher, distance="kl")

    other = tmp_path / "other.txt"
    other.write_text("quite another text, with words of its own\n" * 400)
    foreign = str(
        train(replace(config, data=replace(text_of(config), source=str(other)), out=str(tmp_path / "o")), "test")
    )
    renamed = replace(text_of(config), tokenizer="bpe-301")
    assert "has another tokenizer than the run" in refused(config, init=foreign, data=renamed)
    assert "has another tokenizer than the run" in refused(config, objective=kl(foreign), data=renamed)
    longer = replace(text_of(config), length=24)
    assert "is for sequences of 16 tokens, and the run has 24" in refused(config, init=fixed, data=longer)
    assert "is for sequences of 16 tokens, and the run has 24" in refused(config, objective=kl(fixed), data=longer)
    assert "has num_pre 3, and the run has 1" in refused(config, init=plain)
    assert "names layer 9" in refused(config, init=plain, init_map="1/2/9")
    assert "has a fixed point already" in refused(config, init=fixed, init_map="1/2/3")
    causal = str(
        train(
            replace(config, model=replace(PLAIN, is_causal=True), objective=NextToken(), out=str(tmp_path / "c")),
            "test",
        )
    )
    assert "is a causal model" in refused(config, objective=kl(causal))
    assert "no model at 'nowhere'" in refused(config, init="nowhere")
    wide = str(train(replace(config, model=replace(PLAIN, width=32), out=str(tmp_path / "w")), "test"))
    of_states = Consistency(weight=0.1, teacher=wide)
    assert "is 32 wide, and the run 16" in refused(config, objective=of_states)
    assert not Path(config.out + "-refused").exists()


def test_a_run_reads_other_text_in_the_trained_symbols_of_the_model_it_starts_from(
    config: Training, fixed: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("quite another text, with words of its own\n" * 400)
    data = replace(text_of(config), source=str(other))
    assert not data.load().codec.is_alike(text_codec(load(fixed)))
    folder = train(replace(config, init=fixed, data=data, out=str(tmp_path / "on")), "test")
    assert text_codec(load(folder)).is_alike(text_codec(load(fixed)))


def test_fresh_weights_read_other_text_in_the_trained_symbols_of_their_teacher(
    config: Training, fixed: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("quite another text, with words of its own\n" * 400)
    data = replace(text_of(config), source=str(other))
    objective = Consistency(teacher=fixed, distance="kl")
    folder = train(replace(config, objective=objective, data=data, out=str(tmp_path / "fresh")), "test")
    assert text_codec(load(folder)).is_alike(text_codec(load(fixed)))


def test_a_teacher_that_reads_otherwise_than_the_start_is_refused_before_any_text_is_read(
    config: Training, fixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("quite another text, with words of its own\n" * 400)
    foreign = str(
        train(replace(config, data=replace(text_of(config), source=str(other)), out=str(tmp_path / "o")), "test")
    )
    monkeypatch.setattr(TextConfig, "load", lambda *_: pytest.fail("read text"))
    kl = Consistency(weight=0.1, teacher=foreign, distance="kl")
    assert "has another tokenizer than init" in refused(config, init=fixed, objective=kl)


def test_a_teacher_whose_tokenizer_has_the_same_symbols_but_reads_otherwise_is_refused(
    config: Training, fixed: str, tmp_path: Path
) -> None:
    source = load(fixed)
    tokenizer = Tokenizer.from_str(text_codec(source).content)
    tokenizer.normalizer = Lowercase()
    replace(source, codec=TextCodec(tokenizer.to_str())).save(tmp_path / "lower")
    kl = Consistency(weight=0.1, teacher=str(tmp_path / "lower"), distance="kl")
    assert "has another tokenizer than init" in refused(config, init=fixed, objective=kl)
    other = replace(text_of(config), tokenizer="bpe-280")
    assert "has another tokenizer than the run" in refused(config, objective=kl, data=other)


def test_a_start_with_another_network_is_refused_before_any_text_is_read(
    config: Training, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextConfig, "load", lambda *_: pytest.fail("read text"))
    assert "has num_pre 3, and the run has 1" in refused(config, init=plain)


def test_a_teacher_of_another_vocabulary_is_refused_before_any_text_is_read(
    config: Training, fixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextConfig, "load", lambda *_: pytest.fail("read text"))
    source = load(fixed)
    sizes: dict[str, Any] = {"vocab_size": source.config.vocabulary.size + 1, "mask_id": source.config.vocabulary.size}
    network = replace(as_mdlm(source.config), **sizes)
    replace(source, denoiser=mdlm(network), config=network, codec=None).save(tmp_path / "larger")
    kl = Consistency(weight=0.1, teacher=str(tmp_path / "larger"), distance="kl")
    message = refused(config, init=fixed, objective=kl)
    assert f"has {sizes['vocab_size']} symbols, of which {sizes['mask_id']} is the mask" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": SelfDistillation(rounds=2)}, "there is no init; give --init"),
        ({"objective": Consistency(weight=0.1, teacher="init")}, "teacher is init, and there is no init"),
        ({"init_map": "1/2/3"}, "there is no init to map"),
        ({"init": "x", "init_map": "1/2"}, "write pre/fixed-point/post layers"),
        ({"stop_above": -0.1}, "stop_above is -0.1"),
        ({"stop_above": math.nan}, "stop_above is nan"),
        (
            {"init": "x", "updates": 10, "objective": SelfDistillation(rounds=7)},
            "10 updates cannot be cut into 7 rounds; give a multiple of 7",
        ),
        (
            {"model": replace(PLAIN, is_causal=True), "objective": SelfDistillation(rounds=2)},
            "SDTT is for masked models",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: Training, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)


def test_shares_and_weights_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="must be a share of the run"):
        Consistency(warmup=5000.0)
    for weight in (0.0, 1e5, math.nan):
        with pytest.raises(ValueError, match=r"weight of the consistency is .*; it must be above 0 and at most 10000"):
            Consistency(weight=weight)
    with pytest.raises(ValueError, match="past the end of the text; give fewer rounds or more first_steps"):
        SelfDistillation(rounds=5, first_steps=16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gap_min": 0.5}, "gaps are 0.5 to 0.3"),
        ({"gap_max": 1.5}, "gaps are 0.05 to 1.5"),
        ({"temperature": -1.0, "distance": "kl"}, "the temperature of the consistency is -1.0"),
        ({"temperature": math.inf, "distance": "kl"}, "must be above 0 and at most 10000"),
    ],
)
def test_a_wrong_setting_of_the_consistency_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Consistency(**settings)


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        (
            "poetry-cofre",
            ["--objective.distance", "cosin"],
            "Expected one of ('mse', 'squared-norm', 'cosine', 'projected-cosine'",
        ),
        ("poetry-sdtt", ["--objective.next-teacher", "weight"], "Expected one of ('weights', 'ema')"),
        ("poetry-cofre", ["--objective.rounds", "2"], "Unrecognized options: --objective.rounds"),
        ("poetry-sdtt", ["--objective.weight", "0.1"], "Unrecognized options: --objective.weight"),
    ],
)
def test_a_stage_has_the_settings_of_its_own_objective_and_no_others(
    recipe: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", recipe, *words]) == 2
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    assert message in captured


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stories-fp", "--optim.lr", "1e9"], "optim.lr is 1000000000.0; it must be above 0 and at most 1"),
        (["stories-fp", "--optim.lr", "1", "--optim.injection-lr", "2"], "optim.lr times optim.injection_lr is 2.0"),
        (["stories-match", "--objective.fake-lr", "1e9"], "fake_lr is 1000000000.0; it must be above 0 and at most 1"),
        (["stories-match", "--objective.base-weight", "1e12"], "base_weight is 1000000000000.0; it must be 0 to 10000"),
        (["stories-cofre", "--objective.weight", "1e12"], "the weight of the consistency is 1000000000000.0"),
    ],
)
def test_rates_and_weights_out_of_range_are_refused_before_a_corpus_is_made(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoriesConfig, "load", lambda *_: pytest.fail("a corpus was made"))
    assert main(["train", *words]) == 2
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    assert message in captured


def test_the_teacher_init_is_the_frozen_model_that_the_run_starts_from(
    config: Training, fixed: str, tmp_path: Path
) -> None:
    runs: dict[str, list[float]] = {}
    for teacher in ("init", fixed, "self"):
        consistency = Consistency(weight=1.0, teacher=teacher)
        run = replace(config, init=fixed, objective=consistency, out=str(tmp_path / f"from-{len(runs)}"))
        train(run, "test")
        runs[teacher] = losses_of(run)
    assert runs["init"] == runs[fixed] != runs["self"]


def test_a_divergence_that_sums_over_symbols_is_not_taken_for_a_broken_run(
    config: Training, fixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "BAD_LOSS", 1e-9)
    sdtt = SelfDistillation(rounds=1, first_steps=4, divergence="tvd")
    train(replace(config, init=fixed, objective=sdtt, updates=2), "test")
    with pytest.raises(FloatingPointError, match="the loss is"):
        train(replace(config, init=fixed, objective=replace(sdtt, divergence="kl-fwd"), out=config.out + "-kl"), "test")


def test_what_a_stopping_limit_was_measured_with_cannot_be_changed_by_a_resumed_run(
    config: Training, fixed: str
) -> None:
    config = replace(config, init=fixed, stop_above=5.0)
    train(config, "test")
    with pytest.raises(ValueError, match="holds a run with validation_sequences 8, not 4"):
        train(replace(config, updates=8, validation_sequences=4), "test")


def test_the_rounds_of_sdtt_cannot_be_moved_by_a_resumed_run(config: Training, fixed: str) -> None:
    config = replace(config, init=fixed, objective=SelfDistillation(rounds=2))
    train(config, "test")
    with pytest.raises(ValueError, match="holds a run with updates 6, not 8"):
        train(replace(config, updates=8, extend=True), "test")


def test_the_dynamics_of_a_run_are_those_of_its_snapshots(
    config: Training, fixed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(config, init=fixed, snapshot_every=3, validate_every=3)
    train(config, "test")
    command = ["analyse", config.out, "dynamics", "--budgets", "6", "9", "--num-samples", "2", "--judge", ""]
    assert main(command) == 0
    folder = Path(config.out) / "dynamics"
    assert {file.name for file in folder.iterdir()} == {"rows.jsonl", "table.md", "dynamics.png", "dynamics.svg"}
    lines = (folder / "table.md").read_text().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["0", "0", "3", "3", "6", "6"]
    measured = {row["update"]: row.get("validation") for row in read_metrics(Path(config.out))}
    assert f"{measured[3]:.2f}" in lines[2]
    start = json.loads((Path(config.out) / "start.json").read_text())["validation"]
    x = load_text(text_of(config)).measured(config.validation_sequences)
    assert start == pytest.approx(perplexity(load(fixed).denoiser, x, num_iters=config.validation_iters).value)
    assert f"{start:.2f}" in lines[0]
    capsys.readouterr()
    assert main(["analyse", str(tmp_path / "fixed"), "dynamics"]) == 2
    assert "has no snapshots; train with --snapshot-every N" in capsys.readouterr().err

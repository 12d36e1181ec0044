"""`train mine`: a user's own text within some minutes."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm.__main__ import main
from fpmgm.checkpoint import load
from fpmgm.commands import mine
from fpmgm.commands.mine import Clock, MineCommand, OwnText, _bytes_a_token, run_mine
from fpmgm.data.text import TextConfig
from fpmgm.recipes import RECIPES
from fpmgm.recipes.mine import (
    BATCHES,
    CAREFUL,
    FEWEST_BYTES_A_TOKEN,
    OwnPlan,
    sized_by_rows,
    sized_by_sequences,
    sized_by_text,
    sized_by_time,
    training_of,
)
from fpmgm.training.metrics import read_metrics
from tests.conftest import network_of

WORDS = "the sea and the sky and the old oak by the quiet shore of a long land\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def plan(**changes: object) -> OwnPlan:
    asked = OwnPlan(
        source="my.txt",
        text_field="text",
        minutes=10.0,
        seed=0,
        start="auto",
        read="my.txt",
        init="",
        tokenizer="",
        length=0,
        width=0,
        num_heads=0,
    )
    return replace(asked, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_bytes", [3_000, 100_000, 1_000_000, 100_000_000])
@pytest.mark.parametrize("minutes", [1.0, 10.0, 600.0])
def test_sizes_grow_with_text_and_time_and_make_a_run(num_bytes: int, minutes: float) -> None:
    sized = sized_by_text(plan(minutes=minutes), num_bytes)
    larger = sized_by_text(plan(minutes=2 * minutes), 30 * num_bytes)
    assert (larger.length, larger.width) >= (sized.length, sized.width)
    assert int(larger.tokenizer.split("-")[1]) >= int(sized.tokenizer.split("-")[1])
    assert training_of(sized, "out").network.width == sized.width


def test_a_fresh_model_has_the_better_injection_and_a_plan_of_before_goes_on_with_its_own() -> None:
    fresh = sized_by_text(plan(), 100_000)
    assert network_of(training_of(fresh, "out")).injection == "diagonal"
    of_before = {name: value for name, value in vars(fresh).items() if name != "injection"}
    assert network_of(training_of(OwnPlan(**of_before), "out")).injection == "mlp"
    trained = sized_by_text(plan(init="stories-fp"), 100_000)
    assert network_of(training_of(trained, "out")).injection == network_of(RECIPES["stories-fp"]).injection


@pytest.mark.parametrize("seconds", [5.0, 100.0, 500.0, 36_000.0])
@pytest.mark.parametrize("num_training", [3, 40, 100_000])
def test_updates_fit_into_the_time_and_do_not_learn_by_heart(seconds: float, num_training: int) -> None:
    timed = sized_by_time(plan(seconds_a_sequence=0.05), seconds, num_training)
    assert timed.batch_size in (*BATCHES, num_training)
    assert timed.batch_size <= num_training
    if timed.updates > 10:
        assert timed.updates * timed.seconds_an_update <= CAREFUL * seconds
        assert timed.updates * timed.batch_size <= 30 * num_training


def test_held_out_is_some_of_a_small_text_and_little_of_a_large_one() -> None:
    shares = [sized_by_sequences(plan(length=64), num).validation_share for num in (4, 10, 40, 1000, 100_000)]
    assert shares == [0.4, 0.2, 0.1, 0.064, 0.01]
    with pytest.raises(ValueError, match="fills 3 sequences of 64 tokens; give at least 4, which is about 744 letters"):
        sized_by_sequences(plan(length=64), 3)


def test_the_clock_stops_a_run_earlier_on_a_machine_that_has_become_slower() -> None:
    fast = plan(seconds_a_sequence=0.01, batch_size=8)
    clock = Clock(fast, time.monotonic() + 60)
    assert not clock(0.08)
    assert not clock(8.0)  # one slow update says nothing
    assert [clock(8.0) for _ in range(6)][-1]  # at that pace, what comes after the updates takes more than the minute


@pytest.mark.slow
def test_a_run_whose_time_is_over_ends_with_a_whole_model_and_goes_on_with_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.txt").write_text(WORDS * 60)
    command = MineCommand(data=OwnText(source="my.txt"), minutes=1.0, start="fresh")
    run_mine(command, time.monotonic() - 600)  # a machine so slow that nothing is left of the minute
    printed = " ".join(capsys.readouterr().out.split())
    assert "sequences that are never trained on" in printed
    assert "10 updates" in printed
    assert "stopped after 1 of 10 updates, because the time was over" in printed
    assert "Validation perplexity" in printed
    folder = tmp_path / "runs" / "mine"
    before = (folder / "plan.json").read_bytes()
    assert load(folder).denoiser.vocab_size <= 320  # as the run's folder finds its model
    run_mine(command, time.monotonic())
    printed = " ".join(capsys.readouterr().out.split())
    assert "Going on with the plan" in printed
    assert "stopped after" not in printed
    assert (folder / "plan.json").read_bytes() == before
    assert [row["update"] for row in read_metrics(folder)] == list(range(1, 11))
    with pytest.raises(
        ValueError, match=r"was planned with minutes 1\.0, not 5\.0; give the same to go on, or another --out"
    ):
        run_mine(replace(command, minutes=5.0), time.monotonic())


def test_the_command_line_learns_a_text_and_prints_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.txt").write_text("".join(f"{i}. {WORDS}" for i in range(12)))
    assert main(["train", "mine", "--data.source", "my.txt", "--minutes", "1", "--start", "fresh"]) == 0
    printed = capsys.readouterr().out
    assert "A sample:" in printed
    planned = json.loads((tmp_path / "runs/mine/plan.json").read_text())
    assert planned["updates"] * planned["batch_size"] <= 30 * 20
    done = len((tmp_path / "runs/mine/metrics.jsonl").read_text().splitlines())
    assert done == planned["updates"] or f"stopped after {done} of" in printed
    assert (tmp_path / "runs/mine/model/README.md").read_text().count("# mine") == 1


def test_the_bundled_tokenizer_suits_english_and_not_other_letters(tmp_path: Path) -> None:
    found = []
    for text in (WORDS, "και η θαλασσα της νυκτος\n"):
        (tmp_path / "some.txt").write_text(text * 100)
        found.append(_bytes_a_token(OwnText(source="some.txt")))
    assert found[0] > 1.5 * FEWEST_BYTES_A_TOKEN
    assert found[1] < 0.75 * FEWEST_BYTES_A_TOKEN


def test_a_text_that_is_too_long_for_the_time_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mine, "BYTES_A_MINUTE", 1 << 17)
    (tmp_path / "long.txt").write_text("".join(f"{i} {WORDS}" for i in range(20_000)))
    command = MineCommand(data=OwnText(source="long.txt"), minutes=1.0, start="fresh")
    excerpt = mine._excerpt(tmp_path / "out", command, (tmp_path / "long.txt").stat().st_size)
    assert 1 << 17 < Path(excerpt).stat().st_size < 1 << 20


def write_pairs(file: Path, num: int = 30) -> None:
    pairs = [{"prompt": f"What is number {i}?", "answer": f"It is {i}."} for i in range(num)]
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


def test_the_length_of_a_fresh_model_holds_all_pairs_but_a_few_very_long_ones_and_that_of_a_trained_one_stays() -> None:
    assert sized_by_rows(plan(), [10] * 20 + [30] * 20 + [5000]).length == 32  # 256 would be eight times as long
    assert sized_by_rows(plan(), [30] * 40 + [59]).length == 64
    assert sized_by_rows(plan(), [100] * 40 + [150] * 40).length == 152
    assert sized_by_rows(plan(), [3, 4]).length == 16
    assert sized_by_rows(plan(), [5000] * 9).length == 256
    assert sized_by_rows(plan(init="some", length=128), [5000] * 9).length == 128


def test_small_sets_of_pairs_may_be_read_more_often_than_text() -> None:
    found = [sized_by_time(plan(seconds_a_sequence=0.001, packed=each), 900.0, 20) for each in ("wrap", "pairs")]
    assert [round(each.updates * each.batch_size / 20) for each in found] == [30, 1000]
    with pytest.raises(ValueError, match=r"my\.txt gives 3 pairs; give at least 4"):
        sized_by_sequences(plan(length=64, packed="pairs"), 3)


@pytest.mark.slow
def test_pairs_are_known_by_their_fields_and_learned_with_their_prompts_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(tmp_path / "my.jsonl")
    command = MineCommand(data=OwnText(source="my.jsonl"), minutes=1.0, start="fresh", out="run")
    run_mine(command, time.monotonic() - 600)  # nothing is left of the minute
    printed = " ".join(capsys.readouterr().out.split())
    assert "30 pairs of at most 16 tokens; prompts are given, answers and their ends are learned" in printed
    assert "An answer to a held-out prompt: What is number" in printed
    assert "fpmgm sample run --prompt 'What is number" in printed
    data = load("run").data
    assert isinstance(data, TextConfig)
    assert (data.packing, data.length) == ("pairs", 16)
    again = MineCommand(data=OwnText(source="my.jsonl"), minutes=1.0, start="run", out="tuned")
    run_mine(again, time.monotonic() - 600)
    printed = " ".join(capsys.readouterr().out.split())
    assert "Start: the model run; its tokenizer of" in printed
    assert load("tuned").config == load("run").config


@pytest.mark.parametrize("packing", ["auto", "end"])
def test_an_excerpt_of_pairs_or_documents_keeps_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: Any
) -> None:
    monkeypatch.setattr(mine, "BYTES_A_MINUTE", 400)
    write_pairs(tmp_path / "my.jsonl")
    (tmp_path / "my.txt").write_text("".join(f"{i} {WORDS}" for i in range(30)))
    source = "my.jsonl" if packing == "auto" else "my.txt"
    command = MineCommand(data=OwnText(source=source, packing=packing), minutes=1.0)
    excerpt = mine._excerpt(tmp_path / "out", command, (tmp_path / source).stat().st_size)
    rows = [json.loads(line) for line in Path(excerpt).read_text().splitlines()]
    assert 4 < len(rows) < 20
    if packing == "auto":
        assert rows[1]["answer"] == f"It is {rows[1]['prompt'].split()[-1][:-1]}."
        assert replace(command.data, source=excerpt).packed == "pairs"
    else:
        assert rows[0] == {"text": f"0 {WORDS}".strip()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "mine"], "data.source is ''; give your text: --data.source FILE"),
        (["train", "mine", "--data.source", "nowhere.txt"], "no data at 'nowhere.txt'"),
        (["train", "mine", "--data.source", "few.txt", "--start", "fresh"], "sequence of length 32 needs 30"),
        (["train", "mine", "--data.source", "few.txt", "--minutes", "nan"], "minutes is nan; give at least 1"),
        (["train", "mine", "--data.source", "few.txt", "--start", "frsh"], "did you mean 'fresh'?"),
        (["train", "mine", "--data.source", "few.txt", "--start", "other"], "has model_type None; fpmgm knows"),
        (
            ["train", "mine", "--data.source", "few.txt", "--start", "fashion"],
            "fashion, which is no masked model of text",
        ),
        (["train", "mine", "--data.source", "few.txt", "--data.packing", "pairs"], "few.txt is none"),
        (["train", "mine", "--data.source", "few.txt", "--data.answer-field", "reply"], "few.txt is none"),
        (["train", "mine", "--data.source", "few.txt", "--data.packing", "ends"], "did you mean 'end'?"),
        (
            ["train", "mine", "--data.source", "few.txt", "--out", "other"],
            "other holds another run; give another --out",
        ),
        (["train", "--updates", "3"], "train needs a recipe before --updates, as in: fpmgm train mine"),
        (["train", "min"], "unknown recipe 'min'; did you mean 'mine'?"),
    ],
)
def test_wrong_requests_get_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "few.txt").write_text(WORDS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_command_ends_within_its_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.txt").write_text("".join(f"{i}. {WORDS}" for i in range(20_000)))
    begin = time.monotonic()
    assert main(["train", "mine", "--data.source", "my.txt", "--minutes", "1.5"]) == 0
    assert time.monotonic() - begin < 90
    assert "A sample:" in capsys.readouterr().out

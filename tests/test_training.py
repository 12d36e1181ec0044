"""Training on a small text: resume, accumulation, processes, and what goes wrong."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fpmgm.__main__ import main
from fpmgm.backbones.dit import Network, mdlm
from fpmgm.checkpoint import load
from fpmgm.data.text import TextConfig, load_text
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.likelihood import perplexity
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.randomness import generator
from fpmgm.recipes import RECIPES
from fpmgm.training import loop
from fpmgm.training.card import command_of
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.optim import OptimConfig, moving_average, optimiser_of, set_learning_rate
from fpmgm.training.order import Order
from fpmgm.training.state import TrainState, load_state, newest_state, save_state
from tests.conftest import SMALL, Build, network_of, text_of

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(300) for word in ("sea", "sky", "old oak"))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text(VERSE)
    return Training(
        out=str(tmp_path / "run"),
        model=Network(width=16, num_heads=2, num_pre=1, num_fp=1, num_post=1, cond_width=8, dropout=0.1),
        data=TextConfig(source=str(tmp_path / "verse.txt"), tokenizer="bpe-300", length=16),
        optim=OptimConfig(lr=1e-3, warmup=2, decay="cosine", ema=0.9),
        updates=8,
        batch_size=4,
        checkpoint_every=3,
        validate_every=4,
        validation_sequences=8,
    )


def metrics_of(config: Training) -> list[dict[str, float]]:
    return [json.loads(line) for line in (Path(config.out) / "metrics.jsonl").read_text().splitlines()]


def without_time(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


class KilledError(Exception):
    pass


@pytest.mark.parametrize("is_plain", [False, True])  # the fixed point with Muon and warm starts
def test_a_run_killed_at_any_update_ends_with_the_metrics_of_an_unbroken_one(
    config: Training, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_plain: bool
) -> None:
    if is_plain:
        config = replace(config, model=replace(network_of(config), num_pre=2, num_fp=0, num_post=0))
    else:
        warm = MaskedCrossEntropy(warm_start=0.5)
        config = replace(config, optim=replace(config.optim, kind="muon"), objective=warm)
    whole = replace(config, out=str(tmp_path / "whole"))
    train(whole, "test")
    original = loop.Run.update
    for kill_at in (1, 4, 4, 7):  # the same update twice: before and after its checkpoint

        def dies(self: loop.Run, update: int, kill_at: int = kill_at) -> dict[str, float]:
            if update == kill_at:
                raise KilledError
            return original(self, update)

        monkeypatch.setattr(loop.Run, "update", dies)
        with pytest.raises(KilledError):
            train(config, "test")
    monkeypatch.setattr(loop.Run, "update", original)
    with open(Path(config.out) / "metrics.jsonl", "a") as file:
        file.write('{"update": 8, "lo')  # a kill in the middle of a row
    train(config, "test")
    assert without_time(metrics_of(config)) == without_time(metrics_of(whole))
    first, second = (load(Path(c.out) / "model").denoiser.state_dict() for c in (config, whole))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_the_train_command_killed_twice_by_sigkill_ends_as_one_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "verse.txt"
    text.write_text(VERSE * 5)
    command = [sys.executable, "-m", "fpmgm", "train", "poetry", "--data.source", str(text), "--data.length", "64"]
    command += ["--updates", "40", "--checkpoint-every", "5", "--model.width", "64", "--model.num-heads", "4"]
    command += ["--batch-size", "8", "--validation-sequences", "8"]
    environment = {**os.environ, "FPMGM_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, env=environment, capture_output=True)
    broken = tmp_path / "broken"
    for rows in (8, 23):
        process = subprocess.Popen(
            [*command, "--out", str(broken)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            file = broken / "metrics.jsonl"
            if file.exists() and file.read_text().count("\n") >= rows:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    subprocess.run([*command, "--out", str(broken)], check=True, env=environment, capture_output=True)
    losses = [
        [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "whole", broken)
    ]
    assert len(losses[0]) == 40
    assert losses[0] == losses[1]


def test_accumulated_gradients_are_those_of_the_whole_batch(config: Training, tmp_path: Path) -> None:
    config = replace(config, model=replace(network_of(config), dropout=0.0), updates=4)
    parts = replace(config, out=str(tmp_path / "parts"), micro_batch_size=1)
    train(config, "test")
    train(parts, "test")
    for whole, part in zip(metrics_of(config), metrics_of(parts), strict=True):
        assert part["loss"] == pytest.approx(whole["loss"], rel=1e-5)
        assert part["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)


def test_validation_perplexity_has_an_error_and_is_that_of_the_saved_weights(config: Training) -> None:
    folder = train(config, "test")
    rows = metrics_of(config)
    assert [row["update"] for row in rows if "validation" in row] == [4, 8]
    assert rows[-1]["validation_error"] > 0
    model = load(folder)
    assert model.config.vocabulary.size == 300
    again = perplexity(model.denoiser, load_text(text_of(config)).measured(8), num_iters=config.validation_iters)
    assert rows[-1]["validation"] == pytest.approx(again.value, rel=1e-6)


def test_a_loss_that_goes_bad_stops_the_run_and_says_what_to_lower(config: Training) -> None:
    optim = replace(config.optim, lr=1.0, weight_decay=1e30, decay="constant", warmup=0)
    wild = replace(config, optim=optim, checkpoint_every=1)
    with pytest.raises(FloatingPointError, match=r"lower --optim\.lr \(now 1\.0\) or --optim\.clip"):
        train(wild, "test")


def test_a_resume_with_other_settings_is_refused_and_names_them(config: Training) -> None:
    train(replace(config, updates=3), "test")
    with pytest.raises(ValueError, match=r"holds a run with model\.width 16, not 32"):
        train(replace(config, model=replace(network_of(config), width=32)), "test")
    with pytest.raises(ValueError, match=r"holds a run with seed 0, not 1"):
        train(replace(config, seed=1), "test")
    with pytest.raises(ValueError, match="holds a run of 3 updates, not 5; give --updates 3 to continue it, --extend"):
        train(replace(config, updates=5), "test")
    with pytest.raises(ValueError, match="run of 3 updates, 3 of them done, and cannot be cut to 2; give --updates 3"):
        train(replace(config, updates=2, extend=True), "test")
    assert len(metrics_of(config)) == 3


def test_an_extended_run_says_so_on_stderr_in_its_config_and_on_its_card(
    config: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    train(replace(config, updates=4), "test")
    before = metrics_of(config)
    capsys.readouterr()
    longer = replace(config, updates=6, extend=True)
    folder = train(longer, "test")
    said = "extended from 4 to 6 updates after update 4: learning rate and warm-ups follow those of the longer run"
    assert capsys.readouterr().err.count(said) == 1
    settings = json.loads((Path(config.out) / "config.json").read_text())
    assert settings["updates"] == 6
    assert [said in text for text in settings["extended"]] == [True]
    assert f"This run was {settings['extended'][0]}." in (folder / "README.md").read_text()
    rows = metrics_of(config)
    assert rows[:4] == before
    assert [row["lr"] for row in rows[4:]] == [config.optim.learning_rate(update, 6) for update in (4, 5)]
    train(replace(longer, extend=False), "test")  # it is a run of 6 updates now
    with pytest.raises(ValueError, match="cannot be cut to 4"):
        train(replace(config, updates=4), "test")


def test_the_weighting_of_the_loss_is_the_one_asked_for(config: Training, capsys: pytest.CaptureFixture[str]) -> None:
    model = replace(network_of(config), dropout=0.0)
    losses = {}
    for weighting in ("bound", "masked"):
        objective = MaskedCrossEntropy(weighting=weighting)
        changed = replace(config, model=model, objective=objective, updates=1, out=f"{config.out}-{weighting}")
        train(changed, "test")
        [row] = metrics_of(changed)
        data = load_text(text_of(config))
        denoiser = changed.network.build(seed=config.seed)
        x = data.batch(Order(data.train, config.batch_size, config.seed).batch(0))
        losses[weighting] = float(objective(denoiser, x, rng=generator(config.seed, 0)).total.detach())
        assert row["loss"] == pytest.approx(losses[weighting], rel=1e-5)
    assert losses["bound"] != pytest.approx(losses["masked"], rel=1e-3)
    capsys.readouterr()
    assert main(["train", "poetry", "--objective.weighting", "maskd"]) == 2
    assert (
        "'maskd' for argument '--objective.weighting'. Expected one of ('bound', 'masked', 'all')"
        in capsys.readouterr().err
    )


def test_a_batch_larger_than_the_text_is_refused(config: Training) -> None:
    with pytest.raises(ValueError, match="training sequences; a batch takes 100000"):
        train(replace(config, batch_size=100_000), "test")


def trained_state(denoiser: Denoiser) -> TrainState:
    optimiser = optimiser_of(denoiser, OptimConfig())
    ema = moving_average(denoiser, 0.9)
    for parameter in denoiser.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    ema.update_parameters(denoiser)
    return TrainState(model=denoiser, ema=ema, optimiser=optimiser)


def test_a_saved_state_comes_back_to_the_bit(small_model: Build, tmp_path: Path) -> None:
    saved = trained_state(small_model())
    save_state(tmp_path, saved, 7)
    other = trained_state(small_model(seed=5))
    newest = newest_state(tmp_path)
    assert newest is not None
    assert load_state(newest, other)["update"] == 7
    first, second = saved.tensors(), other.tensors()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_a_disk_that_fills_up_while_saving_ends_with_exit_code_1_and_the_last_good_state_goes_on(
    config: Training, tmp_path: Path
) -> None:
    """The kernel's limit on the size of a file stands in for the disk: writes really fail, halfway."""
    command = ["train", "poetry", "--data.source", text_of(config).source, "--data.tokenizer", "bpe-300"]
    command += ["--data.length", "16", "--model.width", "24", "--batch-size", "4", "--validation-sequences", "8"]
    command += ["--checkpoint-every", "2", "--optim.decay", "constant"]
    script = "import sys; from fpmgm.__main__ import main; sys.exit(main(sys.argv[1:]))"
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); " + script

    def run(script: str, out: str, updates: int) -> "subprocess.CompletedProcess[str]":
        options = ["--out", str(tmp_path / out), "--updates", str(updates), "--extend"]
        return subprocess.run([sys.executable, "-c", script, *command, *options], capture_output=True, text=True)

    assert run(script, "run", 4).returncode == 0
    full = run(limited, "run", 8)
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    assert "cannot write" in full.stderr.splitlines()[-1]
    assert [path.name for path in (tmp_path / "run" / "state").iterdir()] == ["update-00000004"]
    assert run(script, "run", 8).returncode == 0
    assert run(script, "whole", 8).returncode == 0
    broken, whole = (metrics_of(replace(config, out=str(tmp_path / name))) for name in ("run", "whole"))
    assert [row["loss"] for row in broken] == [row["loss"] for row in whole]
    assert len(whole) == 8


def test_the_order_takes_every_row_once_an_epoch_in_another_order_each_time() -> None:
    order = Order(np.arange(100, 120), batch_size=5, seed=0)
    epochs = [np.concatenate([order.batch(4 * epoch + i) for i in range(4)]) for epoch in range(2)]
    for rows in epochs:
        assert sorted(rows) == list(range(100, 120))
    assert not np.array_equal(epochs[0], epochs[1])
    again = Order(np.arange(100, 120), batch_size=5, seed=0)
    assert np.array_equal(again.batch(6), order.batch(6))


def test_the_learning_rate_warms_up_then_stays_or_falls_to_zero() -> None:
    constant = OptimConfig(lr=1.0, warmup=10)
    assert [constant.learning_rate(u, 100) for u in (0, 4, 9, 50, 99)] == pytest.approx([0.1, 0.5, 1, 1, 1])
    cosine = OptimConfig(lr=1.0, warmup=10, decay="cosine")
    assert cosine.learning_rate(55, 100) == pytest.approx(0.5)
    assert cosine.learning_rate(100, 100) == pytest.approx(0)


def test_the_injection_learns_at_its_own_multiple_of_the_learning_rate(small_model: Build) -> None:
    denoiser = small_model()
    optimiser = optimiser_of(denoiser, OptimConfig(injection_lr=0.1))
    before = {name: parameter.detach().clone() for name, parameter in denoiser.named_parameters()}
    for parameter in denoiser.parameters():
        parameter.grad = torch.ones_like(parameter)
    set_learning_rate(optimiser, 1e-2)
    optimiser.step()  # AdamW's first step moves every weight by the learning rate
    for name, parameter in denoiser.named_parameters():
        moved = float((before[name] - parameter.detach()).abs().max())
        assert moved == pytest.approx(1e-3 if name.startswith("injection") else 1e-2, rel=1e-2)
    plain = small_model(num_pre=2, num_fp=0, num_post=0)
    assert len(optimiser_of(plain, OptimConfig()).param_groups) == 1


def test_an_injection_that_starts_at_the_mean_returns_the_mean_of_h_and_h_pre(
    config: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Run, "go", lambda self: None)
    started: list[loop.Run] = []
    monkeypatch.setattr(loop, "write_model", lambda *_: None)
    monkeypatch.setattr(loop.Run, "resume", lambda self: started.append(self))
    train(replace(config, model=replace(network_of(config), injection_start="mean")), "test")
    injection = started[0].denoiser.injection
    assert injection is not None
    h, h_pre = torch.randn(2, 1, 4, 16, generator=generator(0)).unbind()
    torch.testing.assert_close(injection(h, injection.constant(h_pre)), (h + h_pre) / 2)


def test_the_moving_average_warms_up_as_mdlms_does() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    ema = moving_average(model, 0.9999)
    expected = 0.0
    for n in range(5):
        with torch.no_grad():
            model.weight.fill_(float(n))
        ema.update_parameters(model)
        decay = (1 + n) / (10 + n)
        expected = float(n) if n == 0 else decay * expected + (1 - decay) * n
    assert float(next(ema.module.parameters()).detach()) == pytest.approx(expected)


def test_perplexity_of_a_fresh_model_is_the_size_of_the_vocabulary() -> None:
    x = torch.randint(0, 11, (256, 16), generator=generator(0))
    found = perplexity(mdlm(replace(SMALL, num_pre=1, num_fp=0, num_post=0)), x)
    assert found.value == pytest.approx(11, abs=3 * found.error)
    assert 0 < found.error < 1
    causal = perplexity(mdlm(replace(SMALL, num_pre=1, num_fp=0, num_post=0, is_causal=True)), x)
    assert causal.value == pytest.approx(12, rel=1e-4)  # a causal model may predict any symbol
    assert math.log(causal.value) == pytest.approx(causal.nats_per_token)


def test_a_causal_model_sees_only_what_came_before(small_model: Build) -> None:
    model = small_model(num_pre=3, num_fp=0, num_post=0, is_causal=True)
    x = torch.randint(0, 11, (2, 16), generator=generator(0))
    changed = x.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 11
    everywhere = torch.ones_like(x, dtype=torch.bool)
    first, second = (model(tokens, 0.0, everywhere).features.unflatten(0, x.shape) for tokens in (x, changed))
    torch.testing.assert_close(first[:, :9], second[:, :9])
    assert not torch.allclose(first[:, 9:], second[:, 9:])
    some = torch.zeros_like(everywhere)
    some[0, [3, 12]] = True
    some[1, 5] = True
    torch.testing.assert_close(model(x, 0.0, some).features, first[some], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_its_model(name: str) -> None:
    recipe = RECIPES[name]
    with torch.device("meta"):
        network = recipe.network.build()
    assert recipe.network.vocabulary.length == recipe.data.length
    assert all(parameter.is_meta for parameter in network.parameters())


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_run_ends_with_a_model_card_that_has_the_command_the_curves_and_20_samples(
    config: Training, is_causal: bool
) -> None:
    if is_causal:
        model = replace(network_of(config), num_pre=2, num_fp=0, num_post=0, is_causal=True)
        config = replace(config, model=model, objective=NextToken())
    folder = train(config, "mine", replace(config, updates=9, compile=True, trackers=(), out=""))
    card = load(folder).card
    out = config.out
    assert f"    fpmgm train mine --out {out} --updates 8 --trackers tensorboard --no-compile\n" in card
    last = metrics_of(config)[-1]
    assert f"{last['validation']:.2f} ± {last['validation_error']:.2f} per token" in card
    assert card.count("````text") == 20
    assert ("Left to right" if is_causal else "96 block evaluations in 16 steps") in card
    assert "(curves.png)" in card
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_of_a_card_gives_back_its_settings(config: Training) -> None:
    from fpmgm.__main__ import _parse

    changed = replace(
        config,
        objective=MaskedCrossEntropy(weighting="masked"),
        model=replace(network_of(config), frozen_dropout=True, dropout=0.25),
    )
    words = command_of(changed, config, "poetry").split()
    assert words[:3] == ["fpmgm", "train", "poetry"]
    assert _parse(Training, "train poetry", words[3:], default=config) == changed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on CPU")
def test_compiled_blocks_give_the_losses_of_plain_ones(config: Training, tmp_path: Path) -> None:
    """In processes of their own: shapes are not checked there, and the checks cannot be compiled."""
    command = [sys.executable, "-m", "fpmgm", "train", "poetry", "--data.source", text_of(config).source]
    command += ["--data.tokenizer", "bpe-300", "--data.length", "16", "--model.width", "24", "--updates", "3"]
    command += ["--batch-size", "4", "--validation-sequences", "8"]
    found = []
    for name, options in (("plain", []), ("compiled", ["--compile"])):
        out = str(tmp_path / name)
        done = subprocess.run([*command, "--out", out, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append([row["loss"] for row in metrics_of(replace(config, out=out))])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert load(tmp_path / "compiled" / "model").config == load(tmp_path / "plain" / "model").config


def test_a_finished_run_started_again_leaves_its_model_alone_unless_a_later_state_has_none(
    config: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = train(config, "test") / "README.md"
    before = card.stat().st_mtime_ns
    train(config, "test")
    assert card.stat().st_mtime_ns == before
    longer = replace(config, updates=10, extend=True)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_model", killed)
        with pytest.raises(KeyboardInterrupt):
            train(longer, "test")
    assert "8 updates of 4" in card.read_text()
    train(longer, "test")
    assert "10 updates of 4" in card.read_text()

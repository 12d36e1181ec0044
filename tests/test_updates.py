"""What an update does to the weights, their moving average and the teachers, recomputed by hand."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from fpmgm.__main__ import main
from fpmgm.checkpoint import load
from fpmgm.data.text import TextConfig, load_text
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.randomness import generator
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.loop import Order, train
from fpmgm.training.metrics import read_metrics
from fpmgm.training.muon import Muon
from fpmgm.training.optim import OptimConfig, optimiser_of
from fpmgm.training.sharding import accelerator_for
from tests.conftest import text_of
from tests.processes import plain_sgd, tiny

Weights = dict[str, Tensor]
DECAY = 0.5
"""Of the moving average; in its first updates it is lower, (1 + n) / (10 + n)."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    config = tiny(tmp_path, updates=6, batch_size=4)
    return replace(config, optim=replace(config.optim, lr=1e-2))


@pytest.fixture
def start(config: Training, tmp_path: Path) -> str:
    """A model to start stages from."""
    return str(train(replace(config, out=str(tmp_path / "start"), updates=1), "test", card_samples=1))


def weights_of(module: torch.nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def is_same(first: Weights, second: Weights) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


class Watched:
    """The weights of a run after each update, and those of its teacher while the loss was computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.student: list[Weights] = []
        self.teacher: list[Weights] = []
        self.runs: list[loop.Run] = []
        update, forward = loop.Run.update, loop.Learner.forward

        def updated(run: loop.Run, number: int) -> dict[str, float]:
            if not self.student:
                self.student.append(weights_of(run.denoiser))
                self.runs.append(run)
            row = update(run, number)
            self.student.append(weights_of(run.denoiser))
            return row

        def learned(learner: loop.Learner, x: Tensor, noise: Any) -> Any:
            if "teacher" in learner.taught:
                self.teacher.append(weights_of(learner.taught["teacher"]))
            return forward(learner, x, noise)

        monkeypatch.setattr(loop.Run, "update", updated)
        monkeypatch.setattr(loop.Learner, "forward", learned)

    def averages(self) -> Iterator[Weights]:
        """The moving average before the first update and after each, by hand."""
        average = {name: tensor.clone() for name, tensor in self.student[0].items()}
        yield average
        for num, after in enumerate(self.student[1:]):
            decay = 0.0 if num == 0 else min(DECAY, (1 + num) / (10 + num))
            average = {name: decay * average[name] + (1 - decay) * after[name] for name in after}
            yield average


def assert_close(found: Weights, expected: Weights) -> None:
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-6)


def test_the_saved_weights_are_the_moving_average_of_those_after_each_update(
    config: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    folder = train(config, "test", card_samples=1)
    saved = load(folder).denoiser.state_dict()
    *_, average = watched.averages()
    assert_close(saved, average)
    last = watched.student[-1]
    assert max(float((saved[name] - last[name]).abs().max()) for name in last) > 1e-3


def test_the_teacher_ema_is_the_moving_average_as_it_moves(
    config: Training, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    train(replace(config, init=start, objective=Consistency(weight=0.5, teacher="ema")), "test", card_samples=1)
    assert len(watched.teacher) == 6
    for found, expected in zip(watched.teacher, watched.averages(), strict=False):
        assert_close(found, expected)
    assert not any(is_same(watched.teacher[update], watched.teacher[update + 1]) for update in range(5))


@pytest.mark.parametrize("kind", ["weights", "ema"])
def test_the_next_teacher_is_what_the_student_or_its_average_was_at_the_rounds_start(
    config: Training, start: str, monkeypatch: pytest.MonkeyPatch, kind: Literal["weights", "ema"]
) -> None:
    watched = Watched(monkeypatch)
    objective = SelfDistillation(rounds=3, first_steps=16, next_teacher=kind)
    train(replace(config, init=start, objective=objective), "test", card_samples=1)
    averages = list(watched.averages())
    expected = watched.student if kind == "weights" else averages
    first = load(start).denoiser.state_dict()
    for update, found in enumerate(watched.teacher):  # rounds of 2 updates
        begin = update // 2 * 2
        assert_close(found, first if begin == 0 else expected[begin])
        if begin:
            other = averages if kind == "weights" else watched.student
            assert max(float((found[name] - other[begin][name]).abs().max()) for name in found) > 1e-4


@pytest.mark.parametrize("clip", [1e-3, 1e9])
def test_an_update_follows_the_clipped_gradient_of_the_loss(
    config: Training, monkeypatch: pytest.MonkeyPatch, clip: float
) -> None:
    """Plain gradient descent: the weights move by the learning rate times the gradient, of norm `clip` at most."""
    monkeypatch.setattr(loop, "optimiser_of", plain_sgd)
    watched = Watched(monkeypatch)
    config = replace(config, optim=replace(config.optim, clip=clip), updates=1, micro_batch_size=1)
    train(config, "test", card_samples=1)
    denoiser, data = config.network.build(seed=config.seed), load_text(text_of(config))
    batch = data.batch(Order(data.train, config.batch_size, config.seed).batch(0))
    loss = MaskedCrossEntropy()(denoiser, batch, rng=generator(config.seed, 0)).total
    gradients = torch.autograd.grad(loss, list(denoiser.parameters()), materialize_grads=True)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert 1e-2 < norm < 1e6
    before, after = watched.student
    scale = min(1.0, clip / norm)
    for (name, _), gradient in zip(denoiser.named_parameters(), gradients, strict=True):
        moved = (before[name] - after[name]) / config.optim.lr
        torch.testing.assert_close(moved, scale * gradient, rtol=1e-2, atol=1e-4 * scale * norm)
    [row] = read_metrics(Path(config.out))
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-4)  # as it was before it was clipped
    moves = [float(((before[name] - after[name]) / config.optim.lr).square().sum()) for name in before]
    assert math.sqrt(sum(moves)) == pytest.approx(min(norm, clip), rel=1e-2)


def test_bf16_training_runs_and_stays_near_float32(
    config: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes = set()
    block = type(config.network.build().backbone.blocks[0])
    forward = block.forward

    def watched(self: Any, *given: Any, **named: Any) -> Any:
        dtypes.add(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32)
        return forward(self, *given, **named)

    monkeypatch.setattr(loop, "optimiser_of", plain_sgd)
    full = train(config, "test", card_samples=1)
    monkeypatch.setattr(block, "forward", watched)
    half = replace(config, mixed_precision="bf16", out=str(tmp_path / "bf16"))
    folder = train(half, "test", card_samples=1)
    assert torch.bfloat16 in dtypes
    losses = [[row["loss"] for row in read_metrics(Path(run.out))] for run in (config, half)]
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert losses[1] != losses[0]
    first, trained, exact = (
        model.state_dict() for model in (config.network.build(seed=0), load(folder).denoiser, load(full).denoiser)
    )
    for name, tensor in trained.items():
        assert tensor.dtype == torch.float32
        assert bool(tensor.isfinite().all())
        if not torch.equal(exact[name], first[name]):
            assert not torch.equal(tensor, first[name])


@pytest.mark.parametrize(
    ("is_fast", "expected", "dtype"), [(True, "bf16", torch.bfloat16), (False, "no", torch.float32)]
)
def test_auto_computes_in_bfloat16_only_where_the_processor_has_instructions_for_it(
    config: Training, monkeypatch: pytest.MonkeyPatch, is_fast: bool, expected: str, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: is_fast)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    asked = replace(config, mixed_precision="auto", device="cpu", optim=OptimConfig(kind="muon", muon_precision="auto"))
    assert accelerator_for(asked).mixed_precision == expected
    optimiser = optimiser_of(asked.network.build(), asked.optim)
    assert isinstance(optimiser, Muon)
    assert optimiser.dtype == dtype


def test_fp16_is_refused_with_the_reason(config: Training, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="mixed_precision is fp16, whose loss must be scaled"):
        replace(config, mixed_precision="fp16")
    assert main(["train", "poetry", "--mixed-precision", "fp16"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "a resumed run would not know; give bf16, which needs no scaling" in said


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_ends_the_run_and_leaves_weights_and_checkpoint_as_they_were(
    config: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: float
) -> None:
    runs: list[loop.Run] = []
    kept: dict[str, Any] = {}
    update, folder = loop.Run.update, Path(config.out)

    def spoiled(self: loop.Run, number: int) -> dict[str, float]:
        if number == 3:
            runs.append(self)
            kept.update(tensors={name: tensor.clone() for name, tensor in self.state.tensors().items()})
            kept.update(files={path: path.read_bytes() for path in (folder / "state").rglob("*") if path.is_file()})
            weight = self.denoiser.get_parameter("backbone.blocks.1.attn_out.weight")
            weight.register_hook(
                lambda gradient: gradient.flatten().index_fill(0, torch.tensor([5]), value).view_as(gradient)
            )
        return update(self, number)

    monkeypatch.setattr(loop.Run, "update", spoiled)
    words = ["train", "poetry", "--out", config.out, "--data.source", text_of(config).source, "--data.length", "16"]
    words += ["--data.tokenizer", "bpe-300", "--model.width", "16", "--model.num-heads", "2", "--trackers"]
    words += ["--updates", "6", "--batch-size", "4", "--checkpoint-every", "2", "--validation-sequences", "8"]
    assert main(words) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("fpmgm: the loss is")
    assert f"the norm of its gradient {'nan' if value != value else 'inf'} at update 4" in line
    assert line.endswith("the last checkpoint, after update 2, is as it was")
    after = runs[0].state.tensors()
    assert all(torch.equal(after[name], tensor) for name, tensor in kept["tensors"].items())
    assert all(bool(tensor.isfinite().all()) for tensor in after.values())
    found = {path: path.read_bytes() for path in (folder / "state").rglob("*") if path.is_file()}
    assert found == kept["files"]
    assert [path.parent.name for path in found] == ["update-00000002"] * 2
    monkeypatch.setattr(loop.Run, "update", update)
    assert main(words) == 0  # without what spoiled it, the run goes on from there
    assert [row["update"] for row in read_metrics(folder)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("packing", ["wrap", "pad"])
def test_the_last_documents_are_in_no_training_row_and_the_row_they_begin_in_belongs_to_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: Literal["wrap", "pad"]
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    num, num_held = 60, 7
    words = [f"old{index} word" * 3 if index < num - num_held else f"new{index} text" * 3 for index in range(num)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in words))
    data = load_text(
        TextConfig(
            source=str(tmp_path / "d.jsonl"),
            tokenizer="bpe-270",
            length=32,
            packing=packing,
            validation_documents=num_held,
        )
    )
    shown = [data.codec.show(data.tokens(row)) for row in range(len(data.rows))]
    train_text, held_text = ("".join(shown[row] for row in rows) for rows in (data.train, data.held_out))
    assert "old" in train_text
    assert "new" not in train_text
    assert "text" not in train_text
    assert "new" in held_text
    assert "old" not in held_text
    assert set(data.train).isdisjoint(data.held_out)
    neither = set(range(len(data.rows))) - set(data.train) - set(data.held_out)
    assert len(neither) == (1 if packing == "wrap" else 0)
    for row in neither:
        assert max(data.train) < row < min(data.held_out)
    taken = Order(data.train, 2, 0)
    rows = {int(row) for update in range(3 * len(data.train)) for row in taken.batch(update)}
    assert rows == set(data.train.tolist())

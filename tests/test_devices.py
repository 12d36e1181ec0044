"""Nothing below the commands cares where it runs. No GPU is needed to see it: fake CUDA, meta, counted waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import fpmgm
from fpmgm import draws, sampling, solvers
from fpmgm.__main__ import main
from fpmgm.backbones.dit import MDLMConfig
from fpmgm.denoiser import Denoiser
from fpmgm.devices import check_pair, device_named
from fpmgm.draws import Draw
from fpmgm.masking import MaskSchedule
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.post_training.consistency import Consistency
from fpmgm.randomness import Streams, generator
from fpmgm.remasking import Remasking, ReMDMCap
from fpmgm.reuse import full_reuse, no_reuse, three_state_reuse
from fpmgm.sampling import even_times, sample
from fpmgm.solvers import _looks as looks
from fpmgm.solvers import anderson, picard
from fpmgm.transitions import Ancestral, Confidence
from fpmgm.types import Places, Solved, State
from tests.conftest import SMALL, Build

CUDA = torch.device("cuda")


class IndexingByOperator(TorchFunctionMode):
    """`tensor[...]` by torch's own operators: Python's indexing asks for a driver that a CPU build has not."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(function, "__name__", "") != "__getitem__":
            return function(*args, **(kwargs or {}))
        tensor, index = args
        index = index if isinstance(index, tuple) else (index,)
        if Ellipsis in index:
            place = index.index(Ellipsis)
            index = (
                index[:place] + (slice(None),) * (tensor.ndim + index.count(None) + 1 - len(index)) + index[place + 1 :]
            )
        dim = 0
        for each in index:
            if each is None:
                tensor = tensor.unsqueeze(dim)
            elif isinstance(each, int):
                tensor, dim = tensor.select(dim, each), dim - 1
            elif isinstance(each, slice):
                tensor = torch.ops.aten.slice.Tensor(tensor, dim, each.start, each.stop, each.step or 1)
            else:
                tensor = torch.ops.aten.index.Tensor(tensor, [*[None] * dim, each])
                dim += each.ndim - 1
            dim += 1
        return tensor


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Tensors without content that say they are on a GPU: any mix with one on the CPU is an error."""
    with FakeTensorMode(allow_non_fake_inputs=False), IndexingByOperator():
        yield


def on_fake_cuda(config: MDLMConfig) -> Denoiser:
    with torch.device("meta"):
        denoiser = fpmgm.mdlm(config)
    for module in denoiser.modules():
        for name, parameter in module.named_parameters(recurse=False):
            moved = nn.Parameter(torch.empty(parameter.shape, device=CUDA), requires_grad=False)
            setattr(module, name, moved)
    return denoiser.eval()


@pytest.mark.parametrize("injection", ["mlp", "linear", "add"])
@pytest.mark.parametrize("solver", [picard, anderson, partial(anderson, memory=2)])
@pytest.mark.parametrize("reuse", [no_reuse, full_reuse, three_state_reuse])
def test_a_denoising_step_runs_whole_on_the_device_of_its_weights(reuse: Any, solver: Any, injection: str) -> None:
    with fake_cuda(), torch.no_grad():
        config = MDLMConfig(**{**vars(SMALL), "injection": injection, "time_conditioning": True})
        denoiser = on_fake_cuda(config)
        z = torch.zeros(3, 16, dtype=torch.long, device=CUDA)
        last = Solved(z=z, h_star=torch.zeros(3, 16, 32, device=CUDA))
        assert denoiser.injection is not None
        with denoiser.injection.folded():
            cond = denoiser.condition(z, torch.full((3,), 0.5, device=CUDA))
            h_pre = denoiser.pre(z, cond)
            h = reuse(h_pre, z, last, mask_id=11)
            solution = solver(denoiser.fixed_point_map(h_pre, cond), h, 3)
            every = torch.arange(48, device=CUDA)
            places = Places(flat=every, by_row=every.view(3, 16) % 16, slots=every, counts=(16, 16, 16), length=16)
            logits = denoiser.head(denoiser.post(solution.h, cond, places))
        for tensor in (h_pre, h, solution.h, solution.residual, solution.num_iters, logits):
            assert tensor.device.type == "cuda"


@pytest.mark.parametrize("cut", [{}, {"num_pre": 3, "num_fp": 0, "num_post": 0}, {"num_post": 0}])
@pytest.mark.parametrize(
    "objective",
    [
        MaskedCrossEntropy(),
        MaskedCrossEntropy(weighting="masked", schedule="arccos"),
        MaskedCrossEntropy(gradient="unrolled", solver="anderson"),
        MaskedCrossEntropy(gradient="jfb"),
        Consistency(),
        Consistency(distance="kl-bwd", positions="both-masked"),
        Consistency(distance="projected-cosine"),
    ],
)
def test_objectives_and_their_gradients_follow_the_device_of_the_batch(objective: Any, cut: dict[str, Any]) -> None:
    """What is drawn is drawn on the CPU; the loss itself then needs no tensor's content, so it runs on `meta`."""
    with torch.device("meta"):
        denoiser = fpmgm.mdlm(MDLMConfig(**{**vars(SMALL), **cut}))
    x = torch.randint(0, 11, (4, 16), generator=generator(0))
    noise = objective.draw(denoiser, x, rng=generator(1))
    losses = objective.loss(denoiser, x.to("meta"), noise)
    assert losses.total.device.type == "meta"
    losses.total.backward()
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in denoiser.backbone.blocks.parameters())


def test_the_loss_of_a_causal_model_follows_the_device_of_the_batch() -> None:
    with torch.device("meta"):
        denoiser = fpmgm.mdlm(MDLMConfig(**{**vars(SMALL), "num_fp": 0, "num_post": 0, "is_causal": True}))
    x = torch.randint(0, 11, (4, 16), generator=generator(0))
    total = NextToken().loss(denoiser, x.to("meta"), NextToken().draw(denoiser, x, rng=generator(1))).total
    total.backward()
    assert total.device.type == "meta"
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in denoiser.backbone.blocks.parameters())


WAITS = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "nonzero", "masked_select"}
"""Functions that read a tensor's content into Python: on a GPU each waits for all that was queued before."""


class Waits(TorchFunctionMode):
    """Counts what would make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        is_by_mask = name in ("__getitem__", "__setitem__") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        if name in WAITS or is_by_mask:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


def waits_of(call: Callable[[], Any]) -> list[str]:
    with Waits() as waits:
        call()
    return waits.found


def test_the_counter_sees_every_kind_of_wait() -> None:
    tensor = torch.arange(3)
    assert waits_of(lambda: tensor[tensor > 0]) == ["__getitem__"]
    assert waits_of(lambda: bool((tensor > 0).any())) == ["__bool__"]
    assert waits_of(lambda: tensor.sum().item()) == ["item"]
    assert waits_of(lambda: tensor[0] + tensor.sum()) == []


@pytest.mark.parametrize("solver", [picard, anderson])
def test_a_solver_without_tolerance_never_waits_for_the_device(small_model: Build, solver: Any) -> None:
    denoiser = small_model()
    z = torch.full((2, 16), 11)
    cond = denoiser.condition(z, 0.5)
    h_pre = denoiser.pre(z, cond)
    with torch.no_grad():
        assert waits_of(lambda: solver(denoiser.fixed_point_map(h_pre, cond), h_pre, 5)) == []


@pytest.mark.parametrize("num_iters", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("solver", [picard, anderson])
def test_a_solver_with_a_tolerance_waits_at_most_twice_elsewhere_and_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, solver: Any, num_iters: int
) -> None:
    rates = torch.tensor([0.05, 0.9, 0.4, 0.99])[:, None, None]
    h = torch.randn(4, 3, 2, generator=generator(0))
    target = torch.randn(4, 3, 2, generator=generator(1))

    def f(h: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        rate, goal = (rates, target) if rows is None else (rates[rows], target[rows])
        return goal + rate * (h - goal)

    expected = solver(f, h, num_iters, tolerance=0.05)
    monkeypatch.setattr(solvers, "_looks", lambda device, num: looks(CUDA, num))
    with Waits() as waits:
        found = solver(f, h, num_iters, tolerance=0.05)
    assert len(waits.found) <= 2
    assert found.num_iters.tolist() == expected.num_iters.tolist()
    torch.testing.assert_close(found.h, expected.h)
    torch.testing.assert_close(found.residual, expected.residual)
    if num_iters == 9:
        assert len(set(expected.num_iters.tolist())) > 1  # sequences do stop at different times


@pytest.mark.parametrize("transition", [Ancestral(), Confidence(), Remasking(rule=ReMDMCap(eta=0.3))])
@pytest.mark.parametrize("cut", [{}, {"num_pre": 3, "num_fp": 0, "num_post": 0}], ids=["fixed-point", "plain"])
def test_a_denoising_step_waits_at_most_twice_for_the_device(
    small_model: Build, monkeypatch: pytest.MonkeyPatch, transition: Any, cut: dict[str, Any]
) -> None:
    monkeypatch.setattr(Denoiser, "memory", lambda self, device: None)  # as on a device; see the next test
    # Its own computation is on the CPU whatever the device.
    monkeypatch.setattr(MaskSchedule, "reveal", lambda self, t, t_next: (t - t_next) / t)
    denoiser: Denoiser = small_model(**cut)
    iterations = [3 if denoiser.cost.fp else 0] * 6

    def run(num_steps: int) -> list[str]:
        z = torch.full((2, 16), 11)
        return waits_of(
            lambda: sample(
                denoiser,
                z,
                times=even_times(num_steps),
                iterations=iterations[:num_steps],
                transition=transition,
                reuse=three_state_reuse if denoiser.cost.fp else no_reuse,
                rng=Streams.of(0, range(2)),
            )
        )

    assert len(run(6)) - len(run(5)) <= 2


def test_only_on_the_cpu_does_a_sampling_run_look_for_tokens_that_have_changed(
    small_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, asked = small_model(), []
    original = Denoiser.memory

    def memory(self: Denoiser, device: torch.device) -> Any:
        asked.append(device)
        return original(self, device)

    assert denoiser.memory(CUDA) is None
    assert denoiser.memory(torch.device("cpu")) is not None
    monkeypatch.setattr(Denoiser, "memory", memory)
    settings: dict[str, Any] = {"times": even_times(2), "iterations": [2, 2], "transition": Ancestral()}
    sample(denoiser, torch.full((2, 16), 11), rng=Streams.of(0, range(2)), **settings)
    assert asked == [torch.device("cpu")]


def test_a_place_is_the_same_by_index_and_by_map() -> None:
    rng = generator(3)
    positions = torch.rand(5, 7, generator=rng) < 0.4
    positions[2] = False
    values = torch.randn(5, 7, 3, generator=rng)
    places = Places.of(positions)
    torch.testing.assert_close(places.take(values), values[positions])
    assert places.counts == tuple(positions.sum(1).tolist())
    assert torch.equal(places.sequences, positions.nonzero()[:, 0])
    by_row = values.gather(1, places.by_row[..., None].expand(-1, -1, 3)).flatten(0, 1)[places.slots]
    torch.testing.assert_close(by_row, values[positions])
    z = torch.zeros(5, 7, dtype=torch.long)
    tokens = torch.arange(1, 1 + int(positions.sum()))
    assert torch.equal(places.put(z, tokens), z.masked_scatter(positions, tokens))


def test_a_map_without_places_gives_none() -> None:
    places = Places.of(torch.zeros(2, 4, dtype=torch.bool))
    assert len(places.flat) == len(places.slots) == 0
    state = State(
        z=torch.full((2, 4), 9),
        mask_id=9,
        is_given=torch.zeros(2, 4, dtype=torch.bool),
        confidence=torch.zeros(2, 4, dtype=torch.float64),
    )
    assert torch.equal(state.written(places, torch.zeros(0, dtype=torch.long)).z, state.z)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["stories-fp", "stories-mdlm"])
def test_a_gpu_writes_what_the_cpu_writes(name: str) -> None:
    on_cpu, on_gpu = (fpmgm.generate(fpmgm.load(name, device=device), num_samples=4) for device in ("cpu", "cuda"))
    same = [
        a == b for one, other in zip(on_cpu.tokens, on_gpu.tokens, strict=True) for a, b in zip(one, other, strict=True)
    ]
    assert sum(same) / len(same) > 0.9  # rounding may turn a draw, and all that follows it


@pytest.mark.gpu
def test_an_update_on_a_gpu_has_the_loss_of_the_cpu(small_model: Build) -> None:
    x = torch.randint(0, 11, (6, 16), generator=generator(0))
    losses = [
        MaskedCrossEntropy()(small_model().to(device), x.to(device), rng=generator(1)).total.item()
        for device in ("cpu", "cuda")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_auto_is_a_device_that_is_there() -> None:
    assert device_named("auto").type in ("cpu", "cuda", "mps")
    assert device_named("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "unknown device 'gpu'; did you mean 'cpu'"),
        ("cuda", "this machine has none"),
        ("cuda:9", "this machine has none"),
        ("cpu:1", "write cuda:0"),
        ("mps:x", "write cuda:0"),
    ],
)
def test_a_device_that_is_not_there_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        device_named(name)


def test_a_gpu_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_named("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="the last one here is cuda:1"):
        device_named("cuda:2")


def test_a_precision_is_chosen_when_a_model_is_loaded_and_tokens_are_still_drawn_in_float64() -> None:
    model = fpmgm.load("stories-fp", device="cpu", dtype="bfloat16")
    assert {parameter.dtype for parameter in model.denoiser.parameters()} == {torch.bfloat16}
    seen: set[torch.dtype] = set()

    class Watched(Draw):
        def __call__(self, logits: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
            seen.add(logits.dtype)
            return super().__call__(logits, u)

    z = torch.full((1, 16), model.denoiser.mask_id)
    times, rng = even_times(2), Streams.of(0, range(1))
    sample(model.denoiser, z, times=times, iterations=(2, 1), transition=Ancestral(draw=Watched()), rng=rng)
    assert seen == {torch.float64}


def test_a_device_without_float64_draws_on_the_cpu(monkeypatch: pytest.MonkeyPatch, small_model: Build) -> None:
    expected = _drawn(small_model())
    monkeypatch.setattr(draws, "has_float64", lambda device: False)
    monkeypatch.setattr(sampling, "has_float64", lambda device: False)
    assert torch.equal(_drawn(small_model()), expected)
    with pytest.raises(ValueError, match="does not compute in float64"):
        check_pair(torch.device("mps"), "float64")


def _drawn(denoiser: Denoiser) -> torch.Tensor:
    z = torch.full((2, 16), 11)
    rule = Remasking(rule=ReMDMCap(eta=0.3))
    return sample(denoiser, z, times=even_times(4), iterations=[2] * 4, transition=rule, rng=Streams.of(0, range(2))).z


@pytest.mark.parametrize(("option", "value"), [("--device", "tpu"), ("--dtype", "float8")])
@pytest.mark.parametrize(
    "command", [("sample",), ("evaluate",), ("sweep", "budgets"), ("analyse", "stories-fp", "cka")]
)
def test_commands_refuse_an_unknown_device_or_dtype(
    command: tuple[str, ...], option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, option, value]) == 2
    error = capsys.readouterr().err
    assert value in error
    assert error.count("\n") == 1

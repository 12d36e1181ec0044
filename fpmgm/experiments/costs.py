"""What an update of a recipe costs, without running it: operations by formula, memory by shapes alone."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fpmgm.backbones import NetworkConfig
from fpmgm.denoiser import Denoiser
from fpmgm.gradients import IterationCounts
from fpmgm.masking import mask_schedule_by_name
from fpmgm.objectives import LOGITS_AT_ONCE, MaskedCrossEntropy
from fpmgm.post_training.consistency import SELF, Consistency
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.randomness import generator
from fpmgm.training.config import Training
from fpmgm.training.muon import NUM_ROUNDS
from fpmgm.training.optim import matrices_of
from fpmgm.types import Batch

FLOAT = 4
"""Bytes of a number in float32, which weights, gradients and the optimiser are kept in."""
BACKWARD = 2
"""Passes backward cost twice what the pass forward does."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device."""

    states: int
    """Weights, gradients, the optimiser, the moving average and a frozen teacher."""
    activations: int
    """What autograd keeps of one pass for the way back, at the mean number of iterations."""
    most_activations: int
    """The same at the largest number of iterations: what must fit."""
    logits: int
    """Logits that the loss holds at a time."""

    @property
    def peak(self) -> int:
        return self.states + self.most_activations + self.logits

    @property
    def mean(self) -> int:
        return self.states + self.activations + self.logits


def passes_of(config: Training) -> float:
    """Passes through one block in an update, at the mean draw of iterations; one with gradients counts 3."""
    model: Any = config.model
    objective: Any = config.objective
    counts = getattr(getattr(objective, "base", objective), "iterations", IterationCounts())
    iterations = (counts.no_grad_min + counts.no_grad_max) / 2 + 3 * (counts.grad_min + counts.grad_max) / 2
    return float(3 * (model.num_pre + model.num_post) + iterations * model.num_fp)


def base_of(config: Training) -> MaskedCrossEntropy:
    """The masked cross entropy within an objective; a ValueError if nothing here counts what the objective does."""
    objective = config.objective
    if isinstance(objective, MaskedCrossEntropy):
        return objective
    if isinstance(objective, Consistency | SelfDistillation):
        return objective.base
    raise ValueError(
        f"the objective is {type(objective).__name__}, whose operations are not counted; give a recipe of masked cross "
        "entropy, consistency or SDTT, such as owt or stories-fp"
    )


def parameters_of(config: Training) -> int:
    """The number of weights, without making any."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.network.build().parameters())


def update_multiply_adds(config: Training) -> float:
    """Of one sequence in one update, forward and backward, the mean over draws."""
    base = base_of(config)
    counts, network = base.iterations, config.network
    no_grad = (counts.no_grad_min + counts.no_grad_max) / 2
    grad = (counts.grad_min + counts.grad_max) / 2
    if base.gradient == "unrolled":
        no_grad, grad = 0.0, no_grad + grad
    elif base.gradient == "implicit":
        raise ValueError("the gradient is implicit, whose solver takes a number of steps that cannot be foreseen")
    positions = asked_share(base) * network.vocabulary.length
    no_grad, grad = _everywhere(base, no_grad, grad)
    forward = pass_multiply_adds(network, no_grad + grad, positions)
    backward = BACKWARD * pass_multiply_adds(network, grad, positions)
    return forward + backward + _teacher_passes(config) * forward


def optimiser_multiply_adds(config: Training) -> float:
    """Of the matrix products of one step of Muon, which every process makes whole; AdamW has none."""
    if config.optim.kind != "muon":
        return 0.0
    with torch.device("meta"):
        shapes = [sorted(matrix.shape) for matrix in matrices_of(config.network.build())]
    return float(NUM_ROUNDS * sum(2 * short**2 * long + short**3 for short, long in shapes))


def _everywhere(base: MaskedCrossEntropy, no_grad: float, grad: float) -> tuple[float, float]:
    """Mean iterations without and with gradients, as so many of all positions. The first of an update always is."""
    if not base.rest:
        return no_grad, grad
    share, counts = masked_share(base), base.iterations
    num_draws = counts.no_grad_max - counts.no_grad_min + 1
    has_first = 1.0 if base.gradient == "unrolled" else float(counts.no_grad_min == 0) / num_draws
    more = 1 - share
    return share * no_grad + more * (1 - has_first), share * grad + more * has_first


def _teacher_passes(config: Training) -> float:
    """Passes without gradients beside the student's own."""
    objective = config.objective
    others = 0.0
    if isinstance(objective, Consistency):
        others = 1.0
    elif isinstance(objective, SelfDistillation):
        others = float(objective.num_teacher_steps)
    return others + base_of(config).warm_start


def asked_share(base: MaskedCrossEntropy) -> float:
    """The share of positions that the loss asks for, on average over times."""
    return 1.0 if base.weighting == "all" else masked_share(base)


def masked_share(base: MaskedCrossEntropy) -> float:
    """The share of positions that is masked, on average over times."""
    t = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    return float(mask_schedule_by_name(base.schedule).masked(t).mean())


def pass_multiply_adds(config: NetworkConfig, num_iters: float, num_positions: float) -> float:
    """Of a pass of one sequence, for means that are no whole numbers: the count grows evenly with both."""
    first = 1 if config.cost.fp else 0
    at = config.multiply_adds(num_iters=first, num_positions=0)
    iteration = config.multiply_adds(num_iters=first + 1, num_positions=0) - at
    length = config.vocabulary.length
    position = (config.multiply_adds(num_iters=first, num_positions=length) - at) / length
    return at + (num_iters - first) * iteration * bool(first) + num_positions * position


def memory_of(config: Training, micro_batch: int, *, mixed: bool) -> Memory:
    """On a device that passes so many sequences at a time, each a process with all weights of its own."""
    base = base_of(config)
    counts = base.iterations
    mean = saved_bytes(
        config, micro_batch, (counts.no_grad_min + counts.no_grad_max) // 2, _half_up(counts), mixed=mixed
    )
    most = saved_bytes(config, micro_batch, counts.no_grad_max, counts.grad_max, mixed=mixed)
    network = config.network
    positions = micro_batch * network.vocabulary.length * asked_share(base)
    logits = min(int(positions) * network.vocabulary.size, LOGITS_AT_ONCE)
    return Memory(
        states=state_bytes(config), activations=mean, most_activations=most, logits=logits * (2 if mixed else FLOAT)
    )


def _half_up(counts: IterationCounts) -> int:
    return (counts.grad_min + counts.grad_max + 1) // 2


def state_bytes(config: Training) -> int:
    """Weights and gradients, two moments of AdamW (Muon has one for most weights), the average, a frozen teacher."""
    numbers = 2 + (2 if config.optim.kind == "adamw" else 1) + bool(config.optim.ema)
    objective = config.objective
    is_frozen = isinstance(objective, SelfDistillation) or (
        isinstance(objective, Consistency) and objective.teacher not in (SELF, "ema")
    )
    return parameters_of(config) * FLOAT * (numbers + is_frozen)


def saved_bytes(config: Training, batch_size: int, num_no_grad: int, num_grad: int, *, mixed: bool = False) -> int:
    """What autograd keeps of one pass forward, from the shapes of tensors that hold nothing.

    The base objective is what runs: passes of a teacher keep nothing. With `mixed`, layers compute in bfloat16.
    """
    base = base_of(config)
    counts = IterationCounts(no_grad_min=num_no_grad, no_grad_max=num_no_grad, grad_min=num_grad, grad_max=num_grad)
    objective = replace(base, iterations=counts, warm_start=0.0)
    network = config.network
    vocabulary = network.vocabulary
    x = torch.zeros(batch_size, vocabulary.length, dtype=torch.long)
    label = torch.zeros(batch_size, dtype=torch.long) if vocabulary.num_classes else None
    denoiser = _without_content(network)
    noise = objective.draw(denoiser, Batch(x=x, label=label), rng=generator(0))
    return _saved(denoiser, objective, x, noise, mixed=mixed)


def _without_content(network: NetworkConfig) -> Denoiser:
    """A network whose weights are on the CPU by their own account and hold nothing: operations on them compute shapes.

    On `meta`, attention would keep every weight of every pair of positions, which no kernel of a real device does.
    """
    with torch.device("meta"):
        denoiser = network.build().train()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for module in denoiser.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = FakeTensor(mode, parameter.detach(), torch.device("cpu"))
                module._parameters[name] = nn.Parameter(fake)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = FakeTensor(mode, buffer, torch.device("cpu"))
    return denoiser


def _saved(denoiser: Denoiser, objective: MaskedCrossEntropy, x: Tensor, noise: Any, *, mixed: bool) -> int:
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes(), tensor  # held, so that no other storage gets its number
        return tensor

    with (
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        objective.loss(denoiser, x, noise)
    weights = {parameter.untyped_storage()._cdata for parameter in denoiser.parameters()}
    return sum(size for number, (size, _) in kept.items() if number not in weights)

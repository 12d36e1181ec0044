"""What is timed: random networks, a batch of samples, an update of the weights."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fpmgm.backbones import NetworkConfig
from fpmgm.budget import plan
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.latency import peak_bytes
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.positionwise import Where
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import no_reuse, three_state_reuse
from fpmgm.sampling import Sampled, even_times, masked_start, sample
from fpmgm.training.optim import OptimConfig, optimiser_of, set_learning_rate
from fpmgm.transitions import Ancestral, Transition
from fpmgm.types import Batch, Labels

OF_TEXT = MaskedCrossEntropy()
OPTIM = OptimConfig()
SLOW = 1e-6
"""A learning rate at which random weights stay what they are, nearly."""


def random_denoiser(config: NetworkConfig) -> Denoiser:
    """Weights that are nowhere 0: blocks whose gates are 0 would be a special case."""
    denoiser = config.build().eval()
    rng = generator(0)
    with torch.no_grad():
        for module in denoiser.modules():
            if isinstance(module, nn.Linear) and not module.weight.any():
                module.weight.copy_(0.02 * torch.randn(module.weight.shape, generator=rng))
    return denoiser


def labels_for(denoiser: Denoiser, batch_size: int) -> Labels | None:
    """The classes in turn, for a network that has any."""
    num_classes = getattr(denoiser.backbone, "num_classes", 0)
    device = next(denoiser.parameters()).device
    return torch.arange(batch_size, device=device) % num_classes if num_classes else None


def draw(
    denoiser: Denoiser,
    batch_size: int,
    budget: int,
    transition: Transition | None = None,
    *,
    where: Where | None = None,
    given: float = 0.0,
) -> Sampled:
    """Sample from nothing, or from a share of tokens that are given; ancestrally if no other rule is given."""
    spending = plan(budget, denoiser.cost)
    return sample(
        denoiser,
        masked_start(denoiser, [_some_given(denoiser, given)] * batch_size),
        times=even_times(spending.num_steps),
        iterations=spending.iterations,
        transition=transition or Ancestral(),
        label=labels_for(denoiser, batch_size),
        reuse=three_state_reuse if denoiser.cost.fp else no_reuse,
        where=where,
        rng=Streams.of(0, range(batch_size)),
    )


def _some_given(denoiser: Denoiser, share: float) -> list[int]:
    """A sequence of which that share is visible, spread by chance."""
    if not share:
        return []
    rng = generator(0, 1)
    visible = torch.rand(denoiser.max_length, generator=rng) < share
    tokens = torch.randint(0, denoiser.mask_id, (denoiser.max_length,), generator=rng)
    return tokens.masked_fill(~visible, denoiser.mask_id).tolist()


class Updater:
    """One update of the weights after another, on random tokens."""

    def __init__(
        self,
        denoiser: Denoiser,
        batch_size: int,
        objective: MaskedCrossEntropy = OF_TEXT,
        optim: OptimConfig = OPTIM,
    ) -> None:
        self.denoiser = denoiser.train()
        self.objective = objective
        self.optimiser = optimiser_of(denoiser, optim)
        set_learning_rate(self.optimiser, SLOW)
        shape = (batch_size, denoiser.max_length)
        x = torch.randint(0, denoiser.vocab_size - 1, shape, generator=generator(0))
        device = next(denoiser.parameters()).device
        self.batch = Batch(x=x.to(device), label=labels_for(denoiser, batch_size))

    def __call__(self, num_no_grad: int, num_grad: int) -> None:
        self.gradients(num_no_grad, num_grad)
        nn.utils.clip_grad_norm_(self.denoiser.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()

    def gradients(self, num_no_grad: int, num_grad: int) -> None:
        counts = IterationCounts(no_grad_min=num_no_grad, no_grad_max=num_no_grad, grad_min=num_grad, grad_max=num_grad)
        objective = replace(self.objective, iterations=counts)
        objective(self.denoiser, self.batch, rng=generator(0)).total.backward()


def update_memory(update: Updater, num_no_grad: int, num_grad: int) -> dict[str, int]:
    """Bytes of an update over what was there before, gradients included, in a fresh process: the peak of the resident
    size, and what autograd saves."""
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def run() -> None:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            update.gradients(num_no_grad, num_grad)

    peak = peak_bytes(run)
    weights = {parameter.untyped_storage().data_ptr() for parameter in update.denoiser.parameters()}
    return {"peak": peak, "saved": sum(size for address, size in saved.items() if address not in weights)}


MEAN_DRAW = ((2, 4), (2, 5))
"""Iterations without and with gradients of two updates, whose mean is the mean draw of U(0,4) and U(3,6)."""
SHORT_DRAW = ((1, 3), (1, 3))
"""The same of U(0,2) and U(2,4), which the recipes of stories draw."""


def two_updates(
    denoiser: Denoiser,
    batch_size: int,
    objective: MaskedCrossEntropy = OF_TEXT,
    counts: tuple[tuple[int, int], ...] = MEAN_DRAW,
) -> Callable[[], None]:
    """Two updates with so many iterations each."""
    update = Updater(denoiser, batch_size, objective)

    def run() -> None:
        for num_no_grad, num_grad in counts:
            update(num_no_grad, num_grad)

    return run


def expected_multiply_adds(config: NetworkConfig, iterations: tuple[int, ...]) -> float:
    """Of ancestral sampling from nothing, a sequence: a step reveals 1 / steps of the positions, on average."""
    positions = config.vocabulary.length / len(iterations)
    low, high = int(positions), int(positions) + 1
    total = 0.0
    for num_iters in iterations:
        at_low = config.multiply_adds(num_iters=num_iters, num_positions=low)
        at_high = config.multiply_adds(num_iters=num_iters, num_positions=high)
        total += at_low + (positions - low) * (at_high - at_low)
    return total

"""Denoiser: pre (P) -> injection (G) -> fixed point (F) -> post (H), then the head where logits are needed (Eq. 2).

A plain stack is the same class with no fixed-point block, so everything downstream treats both alike.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fpmgm.budget import Cost
from fpmgm.gradients import Gradient, implicit, sjfb
from fpmgm.injection import Constant, Injection
from fpmgm.products import linear
from fpmgm.resting import solve_resting
from fpmgm.solvers import Solution, Solver, picard
from fpmgm.types import Features, Hidden, Labels, Logits, Map, PerSequence, Places, Positions, Rows, Tokens


@runtime_checkable
class Conditioning(Protocol):
    """What the blocks need besides h (modulations, rotations): made once per denoising step."""

    def rows(self, rows: Rows) -> "Conditioning":
        """The same for those sequences of the batch only."""
        ...

    def freeze_dropout(self, h: Hidden, blocks: range) -> "Conditioning":
        """The same with one dropout pattern for those blocks, drawn now, that every later use shares."""
        ...


@runtime_checkable
class Backbone(Protocol):
    """An embedding, a stack of blocks and a head: what a published architecture brings."""

    mask_id: int
    vocab_size: int
    max_length: int
    is_causal: bool
    blocks: nn.ModuleList

    def condition(self, z: Tokens, t: float | PerSequence, label: Labels | None = None) -> Any:
        """The `Conditioning` of a denoising step; a ValueError for a label that the network has no use for."""
        ...

    def embed(self, z: Tokens) -> Hidden: ...

    def run_block(self, index: int, h: Hidden, cond: Any) -> Hidden: ...

    def run_block_at(self, index: int, h: Hidden, cond: Any, places: Places) -> Features:
        """`run_block` at some places, computed for those only."""
        ...

    def finish(self, features: Features, cond: Any, places: Places) -> Features:
        """The final norm."""
        ...

    def head_weights(self) -> tuple[Tensor, Tensor]:
        """Weight (V, D) and bias (V) of the head, which is linear."""
        ...


@runtime_checkable
class KeepsKeys(Protocol):
    """A backbone whose blocks run at some places and know the others by keys and values that are kept."""

    def new_keys(self, index: int, h: Hidden) -> Any:
        """Room for the keys and values that block `index` computes of h."""
        ...

    def keep_keys(self, index: int, x: Features, cond: Any, places: Places, kept: Any) -> None:
        """Compute the keys and values of x, which is what the block reads at those places, and keep them."""
        ...

    def run_block_among(self, index: int, x: Features, cond: Any, places: Places, kept: Any) -> Features:
        """`run_block` at those places, where it reads x. Their keys and values are kept too."""
        ...

    def run_block_keeping(self, index: int, h: Hidden, cond: Any) -> tuple[Hidden, Any]:
        """`run_block`, and its keys and values, which are never written to: autograd can follow what reads them."""
        ...


@runtime_checkable
class KnowsFirst(Protocol):
    """A backbone that computes queries, keys and values of its first block only where tokens have changed."""

    def memory(self) -> Any:
        """What `run_first` of a sampling run goes by, nothing at first; None if they change with more than tokens."""
        ...

    def run_first(self, z: Tokens, cond: Any, memory: Any) -> Hidden:
        """`embed` and the first block."""
        ...


@dataclass(frozen=True)
class PartialMap:
    """h -> F(h; u, t) at some places of a batch. The others are at rest, and `kept` holds their keys and values.

    With several blocks in the fixed point all but the last run everywhere: what they make of a position at rest depends
    on the others.
    """

    denoiser: "Denoiser"
    constant: Constant  # of these places, as of one sequence; with several blocks, of all
    cond: Any
    places: Places
    kept: Any

    def __call__(self, h: Hidden) -> Features:
        first, *between = blocks = self.denoiser.fixed_point_range
        if between:
            x = self.denoiser.inject(h, self.constant)
            for index in blocks[:-1]:
                x = self.denoiser.backbone.run_block(index, x, self.cond)
            return self.denoiser.backbone.run_block_at(blocks[-1], x, self.cond, self.places)
        return self._backbone.run_block_among(first, self._read(h), self.cond, self.places, self.kept)

    def settle(self, h: Hidden) -> None:
        """Keep the keys and values of these places, which have come to rest at h."""
        if self.kept is not None:
            first = self.denoiser.fixed_point_range[0]
            self._backbone.keep_keys(first, self._read(h), self.cond, self.places, self.kept)

    def _read(self, h: Hidden) -> Features:
        """What the first block reads at these places."""
        return self.denoiser.inject(self.places.take(h)[None], self.constant)[0]

    @property
    def _backbone(self) -> KeepsKeys:
        return self.denoiser.keeping_backbone


@dataclass(frozen=True)
class FixedPointMap:
    """h -> F(h; u, t) for a whole batch, for some of its sequences, or for some of its positions."""

    denoiser: "Denoiser"
    constant: Constant  # the part of the injection that depends on h_pre alone
    cond: Any

    def __call__(self, h: Hidden, rows: Rows | None = None) -> Hidden:
        constant, cond = self.constant, self.cond
        if rows is not None:
            constant, cond = constant[rows], cond.rows(rows)
        return self.denoiser.fixed_point_blocks(h, constant, cond)

    def keys_for(self, h: Hidden) -> Any:
        """Room for keys and values of all positions; None if there are several blocks, which cannot keep any."""
        blocks = self.denoiser.fixed_point_range
        return self.denoiser.keeping_backbone.new_keys(blocks[0], h) if len(blocks) == 1 else None

    def part(self, places: Places, kept: Any) -> PartialMap:
        """The map at those places. Their keys and values go into `kept`, which `keys_for` gave."""
        is_one_block = len(self.denoiser.fixed_point_range) == 1
        constant = places.take(self.constant)[None] if is_one_block else self.constant
        return PartialMap(self.denoiser, constant, self.cond, places, kept)


class Denoised(NamedTuple):
    features: Features
    residual: PerSequence  # of the fixed point; 0 for a plain stack


class Denoiser(nn.Module):
    """A backbone cut into K_pre blocks, K_fp blocks solved to a fixed point and K_post blocks."""

    backbone: Backbone
    injection: Injection | None

    def __init__(
        self,
        backbone: Backbone,
        cost: Cost,
        *,
        injection: Injection | None = None,
        frozen_dropout: bool = False,
    ) -> None:
        super().__init__()
        total = cost.pre + cost.fp + cost.post
        split = f"{cost.pre}/{cost.fp}/{cost.post}"
        if total != len(backbone.blocks):
            raise ValueError(f"{split} blocks make {total}, but the backbone has {len(backbone.blocks)}")
        if cost.fp == 0 and cost.post > 0:
            raise ValueError(f"{split} blocks have no fixed point; write a plain stack as {total}/0/0")
        if (injection is None) != (cost.fp == 0):
            raise ValueError("a fixed point needs an injection, and a plain stack has no use for one")
        self.backbone = backbone
        self.injection = injection
        self.cost = cost
        self.frozen_dropout = frozen_dropout

    @property
    def mask_id(self) -> int:
        return self.backbone.mask_id

    @property
    def vocab_size(self) -> int:
        return self.backbone.vocab_size

    @property
    def max_length(self) -> int:
        return self.backbone.max_length

    @property
    def is_causal(self) -> bool:
        return self.backbone.is_causal

    @property
    def fixed_point_range(self) -> range:
        """The blocks inside the fixed point."""
        return range(self.cost.pre, self.cost.pre + self.cost.fp)

    @property
    def keeping_backbone(self) -> KeepsKeys:
        """The backbone, if it can run at some positions and keep the keys of others; a ValueError if it cannot."""
        if not isinstance(self.backbone, KeepsKeys):
            raise ValueError(f"{type(self.backbone).__name__} cannot let positions rest; solve all")
        return self.backbone

    def condition(self, z: Tokens, t: float | PerSequence, label: Labels | None = None) -> Any:
        """Modulations and rotations of all blocks, for pre, fixed_point_map and post of one denoising step."""
        return self.backbone.condition(z, t, label)

    def memory(self, device: torch.device) -> Any:
        """What `pre` of one sampling run may go by from step to step; None if there is nothing to remember.

        It looks at tokens, so it is for the CPU only: any other device would be waited for.
        """
        if device.type != "cpu" or not self._num_pre or not isinstance(self.backbone, KnowsFirst):
            return None
        return self.backbone.memory()

    def pre(self, z: Tokens, cond: Any, memory: Any = None) -> Hidden:
        """h_pre = P(z, t). Of a plain stack, all blocks but the last, which `post` runs.

        With a `memory` the first block projects only tokens that have changed since the last call with it.
        """
        if memory is not None and isinstance(self.backbone, KnowsFirst):
            h, first = self.backbone.run_first(z, cond, memory), 1
        else:
            h, first = self.backbone.embed(z), 0
        for index in range(first, self._num_pre):
            h = self.backbone.run_block(index, h, cond)
        return h

    @property
    def _num_pre(self) -> int:
        """How many blocks `pre` runs."""
        return self.cost.pre if self.cost.fp else self.cost.pre - 1

    def fixed_point_map(self, h_pre: Hidden, cond: Any) -> FixedPointMap:
        """h -> F(h; G(h_pre), t)."""
        if self.injection is None:
            raise ValueError("a plain stack has no fixed-point map; check `denoiser.cost.fp` first")
        if self.frozen_dropout and self.training:
            cond = cond.freeze_dropout(h_pre, self.fixed_point_range)
        return FixedPointMap(self, self.injection.constant(h_pre), cond)

    def fixed_point_blocks(self, h: Hidden, constant: Constant, cond: Any) -> Hidden:
        """One iteration: the injection, then the K_fp shared blocks."""
        h = self.inject(h, constant)
        for index in self.fixed_point_range:
            h = self.backbone.run_block(index, h, cond)
        return h

    def inject(self, h: Hidden, constant: Constant) -> Hidden:
        """What the first fixed-point block reads. Under autocast the residual stream stays as it is."""
        assert self.injection is not None
        return self.injection(h, constant).to(h.dtype)

    def post(self, h_star: Hidden, cond: Any, places: Positions | Places) -> Features:
        """What the head reads at those places, in row-major order; the last block runs only there."""
        places = places if isinstance(places, Places) else Places.of(places)
        last = len(self.backbone.blocks) - 1
        if self.cost.fp and self.cost.post == 0:
            features = places.take(h_star)
        else:
            for index in range(self.cost.pre + self.cost.fp, last):
                h_star = self.backbone.run_block(index, h_star, cond)
            features = self.backbone.run_block_at(last, h_star, cond, places)
        return self.backbone.finish(features, cond, places)

    def head(self, features: Features) -> Logits:
        """Logits over all symbols, the mask included; `masking.without_mask` forbids it."""
        return linear(features, *self.backbone.head_weights())

    def forward(
        self,
        z: Tokens,
        t: float | PerSequence,
        places: Positions | Places,
        *,
        label: Labels | None = None,
        cond: Any = None,
        num_no_grad: int = 0,
        num_grad: int = 0,
        gradient: Gradient = sjfb,
        solver: Solver = picard,
        start: Callable[[Hidden], Hidden] | None = None,
        rest: bool = False,
    ) -> Denoised:
        """Features at those places, from a solver that starts at h_pre, or at `start` of it: the pass of training.

        With `rest`, visible positions rest after the first iteration.
        """
        if self.cost.fp == 0 and (num_no_grad + num_grad > 0 or rest):
            asked = f"{num_no_grad} + {num_grad} iterations{' and positions at rest' if rest else ''}"
            raise ValueError(f"{asked} asked of a plain stack; it takes 0")
        if rest and (solver is not picard or gradient is implicit):
            raise ValueError("positions rest with the solver picard and the gradients sjfb, sjfb-cut, jfb and unrolled")
        cond = self.condition(z, t, label) if cond is None else cond
        h = self.pre(z, cond)
        residual = h.new_zeros(len(h))
        if self.cost.fp:
            f = self.fixed_point_map(h, cond)
            h_init = h if start is None else start(h)
            solve = partial(gradient, num_no_grad=num_no_grad, num_grad=num_grad, solver=solver)
            h, residual = self.solve(solve, f, h_init, z, rest=rest)
        return Denoised(self.post(h, cond, places), residual)

    def solve(
        self, solve: Callable[[Map, Hidden], Solution], f: FixedPointMap, h_init: Hidden, z: Tokens, *, rest: bool
    ) -> tuple[Hidden, PerSequence]:
        """What a solve of f from h_init finds, and its residual. With `rest`, only masked positions and registers run
        after its first iteration."""
        if rest:
            runs = F.pad(z == self.mask_id, (0, h_init.shape[1] - z.shape[1]), value=True)
            return solve_resting(solve, f, h_init, runs)
        solution = solve(f, h_init)
        return solution.h, solution.residual


@contextmanager
def evaluating(denoiser: nn.Module) -> Iterator[None]:
    """Dropout off, then as it was."""
    was_training = denoiser.training
    denoiser.eval()
    try:
        yield
    finally:
        denoiser.train(was_training)

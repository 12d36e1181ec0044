"""Reuse: where the solver of the next denoising step starts. The fixed point itself does not change."""

from dataclasses import dataclass, fields
from typing import Literal, Protocol, runtime_checkable

import torch
from torch.nn import functional as F  # noqa: N812

from fpmgm.names import choose
from fpmgm.types import Hidden, Solved, Tokens

Shares = tuple[float, float]


@runtime_checkable
class Reuse(Protocol):
    def __call__(self, h_pre: Hidden, z: Tokens, last: Solved | None, *, mask_id: int) -> Hidden: ...


def no_reuse(h_pre: Hidden, z: Tokens, last: Solved | None, *, mask_id: int) -> Hidden:
    """Start from the pre-layer output, every step anew."""
    return h_pre


def full_reuse(h_pre: Hidden, z: Tokens, last: Solved | None, *, mask_id: int) -> Hidden:
    """Start from the last solution, at every position alike."""
    return h_pre if last is None else last.h_star


@dataclass(frozen=True, kw_only=True)
class ThreeStateReuse:
    """Trust the last solution at each position by what happened to its token (Algorithm 1).

    Masked and changed positions interpolate from `_min` (nothing visible) to `_max` (all visible). Registers, the
    positions of hidden states that have no token, count as visible.
    """

    visible: float = 1.0
    masked_min: float = 0.75
    masked_max: float = 0.90
    changed_min: float = 0.2
    changed_max: float = 0.2

    @classmethod
    def of(cls, masked: Shares, changed: Shares) -> "ThreeStateReuse":
        """With these shares at masked and at changed positions, if nothing and if all is visible."""
        return cls(masked_min=masked[0], masked_max=masked[1], changed_min=changed[0], changed_max=changed[1])

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise ValueError(f"reuse coefficient {field.name} is {value}; it must lie between 0 and 1")

    def __call__(self, h_pre: Hidden, z: Tokens, last: Solved | None, *, mask_id: int) -> Hidden:
        if last is None:
            return h_pre
        is_masked = z == mask_id
        visible_fraction = 1 - is_masked.float().mean(dim=1, keepdim=True)  # v_t, by sequence
        masked = self.masked_min + (self.masked_max - self.masked_min) * visible_fraction
        changed = self.changed_min + (self.changed_max - self.changed_min) * visible_fraction
        gamma = torch.where(is_masked, masked, self.visible)
        gamma = torch.where(z == last.z, gamma, changed)  # revealed, replaced or remasked
        gamma = F.pad(gamma, (0, h_pre.shape[1] - z.shape[1]), value=self.visible)
        return torch.lerp(h_pre, last.h_star, gamma.to(h_pre.dtype).unsqueeze(-1))


MASKED: Shares = (ThreeStateReuse.masked_min, ThreeStateReuse.masked_max)
CHANGED: Shares = (ThreeStateReuse.changed_min, ThreeStateReuse.changed_max)
"""The paper's shares at masked positions and at changed ones."""
three_state_reuse = ThreeStateReuse()
"""Three-state reuse with the paper's coefficients."""

ReuseName = Literal["none", "full", "three-state"]
REUSES: dict[str, Reuse] = {"none": no_reuse, "full": full_reuse, "three-state": three_state_reuse}


def reuse_by_name(name: str) -> Reuse:
    """The reuse rule of that name: `none`, `full` or `three-state`."""
    return choose("reuse", name, REUSES)

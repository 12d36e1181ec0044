"""What learns, as processes share it."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from fpmgm.backbones.network import Learned
from fpmgm.objectives import Losses, Objective
from fpmgm.training.companion import Companion


class Learner(nn.Module):
    """What learns, with its objective: what several processes wrap, so that gradients are shared."""

    def __init__(
        self, denoiser: Learned, objective: Objective, teacher: Learned | None, companion: Companion | None = None
    ) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.fake = companion.network if companion else None
        self.objective = objective
        self.taught: dict[str, Any] = {} if teacher is None else {"teacher": teacher}  # no module of this one
        self.taught |= {"averaged": companion.averaged} if companion else {}

    def forward(self, x: Tensor, noise: Any) -> Losses:
        beside = {} if self.fake is None else {"fake": self.fake}
        return self.objective.loss(self.denoiser, x, noise, **self.taught, **beside)


def network_blocks(denoiser: Learned) -> Iterable[nn.Module]:
    """The blocks of a denoiser; a network of another kind as a whole."""
    backbone: Any = getattr(denoiser, "backbone", None)
    return backbone.blocks if backbone is not None else [denoiser]

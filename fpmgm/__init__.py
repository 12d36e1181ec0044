"""Fixed-point masked generative models.

The method is flat, one file per noun; `docs/concepts.md` ties every name to its symbol in the paper.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.budget import Cost, Plan, allocate, plan
from fpmgm.checkpoint import Model, load
from fpmgm.denoiser import Denoiser
from fpmgm.draws import Draw
from fpmgm.generation import Generated, generate
from fpmgm.gradients import IterationCounts, gradient_by_name, implicit, jfb, sjfb, unrolled
from fpmgm.guidance import Guidance
from fpmgm.injection import Injection
from fpmgm.interop.conversion import to_fixed_point
from fpmgm.interop.layer_map import LayerMap
from fpmgm.masking import (
    MaskSchedule,
    cleaner_times,
    corrupt,
    mask_schedule_by_name,
    nested_pair,
    stratified_times,
    subs,
)
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.randomness import Streams, generator
from fpmgm.remasking import Remasking, ReMDMCap, ReMDMConf, ReMDMLoop, ReMDMRescale
from fpmgm.reuse import ThreeStateReuse, full_reuse, no_reuse, reuse_by_name, three_state_reuse
from fpmgm.sampling import Sampled, Step, even_times, left_to_right, masked_start, sample
from fpmgm.solvers import Solution, anderson, picard, solver_by_name
from fpmgm.transitions import Ancestral, Confidence, Halton

if TYPE_CHECKING:  # at run time these come with `__getattr__`, and what they need with them
    from fpmgm.evaluation.frontiers import frontier
    from fpmgm.evaluation.side_by_side import evaluate
    from fpmgm.evaluation.swept import sweep
    from fpmgm.recipes.train import train

__version__ = "0.1.0"

__all__ = [
    "Ancestral",
    "Confidence",
    "Consistency",
    "Cost",
    "Denoiser",
    "Draw",
    "Generated",
    "Guidance",
    "Halton",
    "Injection",
    "IterationCounts",
    "LayerMap",
    "MDLMConfig",
    "MaskSchedule",
    "MaskedCrossEntropy",
    "Model",
    "Plan",
    "ReMDMCap",
    "ReMDMConf",
    "ReMDMLoop",
    "ReMDMRescale",
    "Remasking",
    "Sampled",
    "SelfDistillation",
    "Solution",
    "Step",
    "Streams",
    "ThreeStateReuse",
    "allocate",
    "anderson",
    "cleaner_times",
    "corrupt",
    "evaluate",
    "even_times",
    "frontier",
    "full_reuse",
    "generate",
    "generator",
    "gradient_by_name",
    "implicit",
    "jfb",
    "left_to_right",
    "load",
    "mask_schedule_by_name",
    "masked_start",
    "mdlm",
    "nested_pair",
    "no_reuse",
    "picard",
    "plan",
    "reuse_by_name",
    "sample",
    "sjfb",
    "solver_by_name",
    "stratified_times",
    "subs",
    "sweep",
    "three_state_reuse",
    "to_fixed_point",
    "train",
    "unrolled",
]

LATE = {
    "evaluate": "fpmgm.evaluation.side_by_side",
    "frontier": "fpmgm.evaluation.frontiers",
    "sweep": "fpmgm.evaluation.swept",
    "train": "fpmgm.recipes.train",
}
"""Functions that are imported when they are first asked for: they need more than torch."""


def __getattr__(name: str) -> Any:
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE})

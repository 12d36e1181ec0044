"""Fixed-point masked generative models.

The method is flat, one file per noun; `docs/concepts.md` ties every name to its symbol in the paper.
"""

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.budget import Cost, Plan, allocate, plan
from fpmgm.checkpoint import Model, load
from fpmgm.consistency import Consistency
from fpmgm.convert import to_fixed_point
from fpmgm.denoiser import Denoiser
from fpmgm.draws import Draw
from fpmgm.generation import Generated, generate
from fpmgm.gradients import IterationCounts, gradient_by_name, implicit, jfb, sjfb, unrolled
from fpmgm.injection import Injection
from fpmgm.layer_map import LayerMap
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
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import ThreeStateReuse, full_reuse, no_reuse, reuse_by_name, three_state_reuse
from fpmgm.sampling import Sampled, Step, even_times, left_to_right, masked_start, sample
from fpmgm.sdtt import SelfDistillation
from fpmgm.solvers import Solution, anderson, picard, solver_by_name
from fpmgm.transitions import Ancestral, Cap, Conf, Confidence, Halton, Loop, Remasking, Rescale

__version__ = "0.1.0"

__all__ = [
    "Ancestral",
    "Cap",
    "Conf",
    "Confidence",
    "Consistency",
    "Cost",
    "Denoiser",
    "Draw",
    "Generated",
    "Halton",
    "Injection",
    "IterationCounts",
    "LayerMap",
    "Loop",
    "MDLMConfig",
    "MaskSchedule",
    "MaskedCrossEntropy",
    "Model",
    "Plan",
    "Remasking",
    "Rescale",
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
    "even_times",
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
    "three_state_reuse",
    "to_fixed_point",
    "unrolled",
]

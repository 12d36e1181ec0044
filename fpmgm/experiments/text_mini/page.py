"""What sections share: where things lie, who trains and judges, and what was found before."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fpmgm.devices import DtypeName
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.evaluation.frontier import RESAMPLES
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_found import RealText, real_text
from fpmgm.evaluation.sweep import Protocol
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.experiments.report import Report
from fpmgm.recipes import RECIPES

REAL = "real.jsonl"
"""A file beside the page: real text."""
BASE = "stories-match"
"""A recipe that starts from FP-MDLM, whose symbols all models have."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is sampled and trained. The whole page fits 6 hours of 2 cores, beyond base models and stages."""

    few: int = 40
    """Samples of a point in ablations of base models and stages."""
    least: int = 32
    """Samples of a point in ablations whose lines no other section has."""
    many: int = 64
    """Samples of a point and seed in headlines."""
    seeds: int = 3
    """Of headlines: of training where there is a stage, and of sampling."""
    budgets: tuple[int, ...] = (24, 48, 96, 192)
    """As many tokens a step as the paper's budgets 96 to 768 have with sequences four times as long."""
    high: tuple[int, ...] = (24, 48, 96, 192, 384, 768)
    pair: tuple[int, ...] = (24, 96)
    """Budgets of ablations."""
    one: tuple[int, ...] = (48,)
    """That of ablations with many lines."""
    temperatures: tuple[float, ...] = (0.8, 1.0)
    steps: tuple[int, ...] = (2, 4, 8, 16)
    iterations: tuple[int, ...] = (1, 2, 4, 8)
    stage: int = 80
    """Updates of a stage in an ablation of losses."""
    proxy: int = 100
    """Updates of a network that is trained from fresh weights in an ablation."""
    tenth: int = 800
    """Updates of a base model that is trained a tenth as long."""
    batch_size: int = 8
    mauve: int = 128
    questions: int = 50
    validation: int = 256
    """Sequences."""
    real: int = 256
    """Sequences of real text, whose entropies bound the frontiers."""
    shown: int = 16
    """Texts that are looked at for failures; two of them are printed."""
    resamples: int = RESAMPLES
    """Of a bootstrap."""
    repeats: int = 20
    """Rounds of timing, as the paper has."""
    analysed: int = 8
    """Sequences of the analyses of the solver."""
    analysed_steps: tuple[int, ...] = (4, 8, 16, 32)
    depth: int = 16


@dataclass(frozen=True, kw_only=True)
class Page(Report):
    """A page and the settings of all its sections."""

    judge: str = "stories-source"
    convention: ConventionName = "paper"
    seed: int = 0
    device: str = "auto"
    compute: DtypeName = "float32"
    """The precision that networks are sampled in."""
    sizes: Sizes = field(default_factory=Sizes)

    def evaluator(self, **settings: Any) -> TextEvaluator:
        """Who measures samples."""
        return TextEvaluator(judge=self.judge, convention=self.convention, device=self.device, **settings)

    def protocol(self, num_samples: int, **settings: Any) -> Protocol:
        """How samples are measured, each by itself too, so that they can be paired."""
        return Protocol(
            num_samples=num_samples,
            evaluator=self.evaluator(**settings),
            device=self.device,
            dtype=self.compute,
            keeps_samples=True,
        )

    @cached_property
    def real(self) -> RealText:
        """Real text in the models' symbols, measured once."""
        model = RECIPES[BASE].init
        asked = Frontiers(
            models=(model,),
            judge=self.judge,
            convention=self.convention,
            num_samples=self.sizes.real,
            device=self.device,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        return real_text(asked, model, self.evaluator(), self.folder / REAL)

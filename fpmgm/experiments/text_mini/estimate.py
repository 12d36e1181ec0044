"""What the sections cost, before anything is run."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from fpmgm.experiments.text_mini.compared import jobs_of
from fpmgm.experiments.text_mini.lines import STAGED
from fpmgm.experiments.text_mini.page import Page, configs_of
from fpmgm.experiments.text_mini.section import Section
from fpmgm.gradients import IterationCounts
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.training.config import Training

BLOCK, JUDGED = 0.006, 0.14
"""Seconds of one core for a block and a sequence of 256 tokens in float32, and to judge such a sequence."""
BFLOAT16 = 0.6
"""Of that time of a block, in bfloat16."""
FIXED, PLAIN = 0.29 / 16, 0.63 / 36
"""Seconds of an update of 8 sequences in bfloat16, a block of it and 192 wide: 0.29 of FP-MDLM 1/1/1, 0.63 of MDLM. A
pass counts 1, with gradients 3."""
FACTORS = {Consistency: 1.4, SelfDistillation: 2.0, Matching: 2.6}
"""Updates of a stage over those of the base."""
CLASSES = {10.0: "minutes", 60.0: "up to an hour"}
LONG = "hours"


class Estimate(NamedTuple):
    """What a section takes beyond those before it, in minutes of one core."""

    section: Section
    training: float
    sampling: float
    other: float

    @property
    def minutes(self) -> float:
        return self.training + self.sampling + self.other

    @property
    def cost_class(self) -> str:
        """The cost in a word."""
        return next((word for limit, word in CLASSES.items() if self.minutes < limit), LONG)


def estimates(page: Page, sections: dict[str, Section]) -> Iterator[Estimate]:
    """Of each section: what an earlier one makes too is not counted again, nor are the runs of `reproduce frontier`."""
    runs = {folder for line in STAGED.values() for folder, _ in configs_of(line, page.runs)}
    cells: set[Any] = set()
    for section in sections.values():
        tables = section.tables(page)
        contestants = (*section.trained(page), *(each for table in tables for each in table.contestants))
        training = sampling = 0.0
        for folder, config in (own for each in contestants for own in configs_of(each, page.runs)):
            training += 0.0 if folder in runs else seconds_of_run(config)
            runs.add(folder)
        for job in (job for table in tables for own in jobs_of(page, table).values() for job in own):
            key = (job.cell, job.protocol.num_samples)
            block = BLOCK * (BFLOAT16 if page.compute == "bfloat16" else 1.0)
            cost = job.protocol.num_samples * (job.cell.sampling.budget * block + JUDGED)
            sampling += 0.0 if key in cells else cost
            cells.add(key)
        yield Estimate(section, training / 60, sampling / 60, section.minutes)


def seconds_of_run(config: Training) -> float:
    """Of one core, for a network as wide as those of the miniature."""
    model: Any = config.model
    data: Any = config.data
    objective: Any = config.objective
    counts = getattr(getattr(objective, "base", objective), "iterations", IterationCounts())
    iterations = (counts.no_grad_min + counts.no_grad_max) / 2 + 3 * (counts.grad_min + counts.grad_max) / 2
    passes = 3 * (model.num_pre + model.num_post) + iterations * model.num_fp
    update = passes * (FIXED if model.num_fp else PLAIN) * FACTORS.get(type(objective), 1.0)
    return float(update * config.updates * config.batch_size / 8 * data.length / 256)

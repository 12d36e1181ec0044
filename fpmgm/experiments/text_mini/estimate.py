"""What the sections cost, before anything is run."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from fpmgm.experiments.costs import passes_of
from fpmgm.experiments.report import configs_of
from fpmgm.experiments.text_mini.compared import jobs_of
from fpmgm.experiments.text_mini.lines import STAGED
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.section import Section
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.training.config import Training

BLOCK, JUDGED = 0.006, 0.14
"""Seconds of one core for a block and a sequence of 256 tokens in float32, and to judge such a sequence."""
BFLOAT16 = 0.6
"""Of that time of a block, in bfloat16."""
UPDATES: dict[str, tuple[float, float]] = {"bfloat16": (0.29, 0.63), "float32": (0.5, 1.0)}
"""Seconds of an update of 8 sequences and 192 wide, of FP-MDLM 1/1/1 and of MDLM."""
PASSES = (16, 36)
"""Of these updates: a block with gradients counts 3."""
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
    corpora: frozenset[int] = frozenset()
    """Tokens of the corpora that its runs read. To make a corpus is not counted."""

    @property
    def minutes(self) -> float:
        return self.training + self.sampling + self.other

    @property
    def cost_class(self) -> str:
        """The cost in a word."""
        return next((word for limit, word in CLASSES.items() if self.minutes < limit), LONG)


def estimates(page: Page, sections: dict[str, Section], made: Collection[str] = ()) -> Iterator[Estimate]:
    """Of each section, what is left of it: not what was found before, or an earlier section makes too, or is made.

    The runs of `reproduce frontier` are not counted.
    """
    shared = STAGED.values()
    runs = {folder for line in shared for folder, _ in configs_of(line, page.runs)}
    cells: set[Any] = set()
    rows = page.row_keys()
    for section in sections.values():
        tables = section.tables(page)
        jobs = [job for table in tables for own in jobs_of(page, table).values() for job in own]
        missing = [job for job in jobs if not page.has_row(job, rows)]
        models = {job.cell.model for job in missing}
        needed = [] if section.name in made else list(section.trained(page))
        needed += [
            each for table in tables for each in table.contestants if models & {own.model for own in page.models(each)}
        ]
        new = {
            folder: config for each in needed for folder, config in configs_of(each, page.runs) if folder not in runs
        }
        runs |= set(new)
        training, sampling = sum(seconds_of_run(config, page.compute) for config in new.values()), 0.0
        corpora = frozenset(int(getattr(config.data, "size", 0)) for config in new.values())
        for job in missing:
            key = (job.cell, job.protocol.num_samples)
            block = BLOCK * (BFLOAT16 if page.compute == "bfloat16" else 1.0)
            cost = job.protocol.num_samples * (job.cell.sampling.budget * block + JUDGED)
            sampling += 0.0 if key in cells else cost
            cells.add(key)
        other = 0.0 if section.name in made else section.minutes
        yield Estimate(section, training / 60, sampling / 60, other, corpora)


def seconds_of_run(config: Training, compute: str) -> float:
    """Of one core, for a network as wide as those of the miniature."""
    model: Any = config.model
    data: Any = config.data
    objective: Any = config.objective
    kind = 0 if model.num_fp else 1
    passes, factor = passes_of(config), FACTORS.get(type(objective), 1.0)
    update = passes * UPDATES.get(compute, UPDATES["float32"])[kind] / PASSES[kind] * factor
    return float(update * config.updates * config.batch_size / 8 * data.length / 256)

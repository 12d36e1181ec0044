"""What the sections of the page on images share: how cells are measured, and what was asked for by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from fpmgm.checkpoint import load
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.image_judges import Classes, Look, load_classifier, real_images, real_look
from fpmgm.evaluation.images import MOST_REAL, ImageEvaluator, image_codec, images_of
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.sweep import Job, Protocol
from fpmgm.experiments.image_mini.lines import MOST_FOR_SEEDS, Line, Table
from fpmgm.experiments.report import Report
from fpmgm.generation import Sampling, generate
from fpmgm.reuse import ReuseName

Place = tuple[tuple[str, ReuseName], int, int]
"""A line, a budget and a seed."""
Found = Mapping[tuple[str, ReuseName], Mapping[int, list[Row]]]
"""By line and budget: the rows of the seeds that were measured."""


class Seen(NamedTuple):
    """Samples as the judge sees them, and the classes that were asked for."""

    look: Look
    labels: Classes


@dataclass(frozen=True, kw_only=True)
class ImagePage(Report):
    """A page on images and the settings of all its sections."""

    num_samples: int = 300
    """Samples a cell and seed of the main table."""
    num_rest: int = 200
    """Samples a cell of the ablations."""
    inception_samples: int = 500
    """Samples a cell of FID by Inception; 0: it is left out."""
    judge: str = "fashion-classifier"
    cfg_weight: float = 0.5
    """Of the main table; the ablations are sampled without guidance, which takes half the time."""
    seed: int = 0
    device: str = "auto"
    dtype: str = "float32"
    repeats: int = 20
    """Rounds of timing."""
    asked: tuple[str, ...] = ()
    """Sections that were asked for by name: what came to them later is measured too."""

    def evaluator(self, *, inception: bool = False) -> ImageEvaluator:
        """Who measures samples."""
        return ImageEvaluator(judge=self.judge, inception=inception, device=self.device)

    def sampling(
        self, budget: int, reuse: Literal["auto", ReuseName], seed: int, cfg_weight: float | None = None
    ) -> Sampling:
        """How a cell is sampled."""
        weight = self.cfg_weight if cfg_weight is None else cfg_weight
        return Sampling(budget=budget, reuse=reuse, seed=self.seed + seed, cfg_weight=weight, batch_size=100)

    def jobs(self, section: str, table: Table) -> dict[Place, Job]:
        """The cells of a table. What came to the page later is among them if it is there, or was asked for."""
        keys = self.row_keys()
        found = {}
        for line in table.lines:
            for budget in (*table.budgets, *table.late_budgets):
                is_late = line.is_late or budget in table.late_budgets
                for index in range(line.num_seeds if budget <= MOST_FOR_SEEDS else 1):
                    job = self._job(table, line, budget, index)
                    if not is_late or section in self.asked or self.has_row(job, keys):
                        found[line.key, budget, index] = job
        return found

    def _job(self, table: Table, line: Line, budget: int, index: int) -> Job:
        models = self.models(line.contestant)
        protocol = Protocol(
            num_samples=table.num_samples,
            evaluator=self.evaluator(inception=table.has_inception),
            device=self.device,
            dtype=self.dtype,
        )
        sampling = self.sampling(budget, line.reuse, index, table.cfg_weight)
        return Job(Cell(**models[index % len(models)]._asdict(), sampling=sampling), protocol)

    def measured(self, section: str, table: Table) -> Found:
        """The rows of a table; missing ones are measured, and what they are of is trained if it is missing too."""
        jobs = self.jobs(section, table)
        found: dict[tuple[str, ReuseName], dict[int, list[Row]]] = {line.key: {} for line in table.lines}
        for (key, budget, _), row in zip(jobs, self.rows(list(jobs.values()), table.contestants), strict=True):
            found[key].setdefault(budget, []).append(row)
        return found

    def about(self, line: Line, **settings: Any) -> dict[str, Any]:
        """What the samples of a line's first seed are known by, beside their number and budget."""
        return {**self.models(line.contestant)[0].about, "reuse": line.reuse, **settings}

    def seen(self, line: Line, budget: int) -> Seen:
        """Samples of the first seed of a line, as the judge sees them. They are not written down."""
        sampling = self.sampling(budget, line.reuse, 0)
        return _seen(self.models(line.contestant)[0].model, sampling, self.num_samples, self.judge, self.device)

    def seen_real(self, line: Line, num: int = MOST_REAL, *, is_reference: bool = True) -> Seen:
        """Held-out images of what a line was trained on, as the judge sees them."""
        model = load(self.models(line.contestant)[0].model, device=self.device)
        real = real_images(images_of(model), num, is_reference=is_reference)
        return Seen(real_look(load_classifier(self.judge, device=self.device), real), real.labels)


@lru_cache(maxsize=64)
def _seen(place: str, sampling: Sampling, num: int, judge: str, device: str) -> Seen:
    model = load(place, device=device)
    out = generate(model, num_samples=num, **vars(sampling))
    images = image_codec(model).images(torch.tensor(out.tokens))
    return Seen(load_classifier(judge, device=device).look(images), np.array(out.labels))

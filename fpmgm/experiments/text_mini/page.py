"""What sections share: where things lie, who trains and judges, and what was found before."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fpmgm.cluster import HERE, Workers
from fpmgm.devices import DtypeName
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.evaluation.frontier import RESAMPLES
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_found import RealText, real_text
from fpmgm.evaluation.rows import Row, append, read_lines, read_rows
from fpmgm.evaluation.sweep import Job, Protocol, announce, key_of, run_jobs
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.experiments.contestants import Contestant, Made
from fpmgm.experiments.text_mini.section import Source
from fpmgm.provenance import provenance
from fpmgm.recipes import RECIPES
from fpmgm.training.config import Training
from fpmgm.training.folder import check_same, is_written, settings_before

ROWS, FOUND, REAL = "rows.jsonl", "found.jsonl", "real.jsonl"
"""Files beside the page: rows of samples, all else that was measured, and real text."""
PAIR = "pair"
"""What is computed of rows: it has no precision of its own."""
HISTORY = "history"
"""What a run wrote of itself: its precision is that of training, which no line tells."""
ALIKE = ("float32", "bfloat16")
"""Precisions whose samples are as good: a cell that was measured in one of them is not measured in the other."""
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
class Page:
    """A page and the settings of all its sections."""

    folder: Path
    runs: Path
    """The folder of the run folders."""
    judge: str = "stories-source"
    convention: ConventionName = "paper"
    seed: int = 0
    device: str = "auto"
    compute: DtypeName = "float32"
    """The precision that networks are sampled in."""
    sizes: Sizes = field(default_factory=Sizes)
    workers: Workers = HERE

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

    def models(self, contestant: Contestant) -> list[Made]:
        """The models of a contestant, by seed, whether they are trained already or not."""
        return contestant.made(self.runs)

    def train(self, contestants: Iterable[Contestant]) -> None:
        """Train what is missing, first what others start from. A run that is finished is looked at, and not loaded."""
        work: dict[str, Callable[[], str]] = {}
        starts = []
        for contestant in contestants:
            configs = {folder.name: (folder, config) for folder, config in configs_of(contestant, self.runs)}
            made = contestant.models(self.runs)
            missing = {run: made[run] for run in configs if not _is_finished(*configs[run])}
            if contestant.start and (missing or contestant.is_base):
                starts.append(contestant.start)
            work |= missing
        if starts:
            self.train(starts)
        self.workers.run(work, "runs")

    def rows(self, jobs: Sequence[Job], contestants: Iterable[Contestant]) -> list[Row]:
        """Rows of all jobs, in whichever precision they are there; missing ones are measured, and what they are of is
        trained if it is missing too."""
        keys = self.row_keys()
        jobs = [_in_known_precision(job, keys) for job in jobs]
        missing = {job.cell.model for job in jobs if key_of(*job) not in keys}
        self.train(each for each in contestants if missing & {made.model for made in self.models(each)})
        found = run_jobs(jobs, self.folder / ROWS, on_cell=announce, workers=self.workers)
        for row in found:
            self.sources.add(_source(row.protocol.dtype, row.protocol.provenance))
        return found

    def row_keys(self) -> set[str]:
        """The keys of all rows that are there."""
        return {row.key for row in read_rows(self.folder / ROWS)}

    def has_row(self, job: Job, keys: set[str]) -> bool:
        """Whether one of these keys is that of a job, in whichever precision."""
        return key_of(*_in_known_precision(job, keys)) in keys

    @cached_property
    def sources(self) -> set[Source]:
        """Where all that was read or measured since it was cleared comes from."""
        return set()

    @cached_property
    def _found(self) -> dict[str, dict[str, Any]]:
        return {line["key"]: line for line in read_lines(self.folder / FOUND)}

    def knows(self, what: str, about: Mapping[str, Any]) -> bool:
        """Whether something was found before for the same settings."""
        return _key(what, about) in self._found

    def kept(
        self,
        what: str,
        about: Mapping[str, Any],
        make: Callable[[], Any],
        is_valid: Callable[[Any], bool] = lambda _: True,
    ) -> Any:
        """What was found before for the same settings and is still valid, or what `make` finds now: something that
        JSON can hold."""
        if self.knows(what, about) and not is_valid(self._found[_key(what, about)]["found"]):
            del self._found[_key(what, about)]
        (found,) = self.kept_by_workers(what, {what: (about, make)}, HERE)
        return found

    def kept_by_workers(
        self, what: str, work: Mapping[str, tuple[Mapping[str, Any], Callable[[], Any]]], workers: Workers | None = None
    ) -> list[Any]:
        """The same of several, by (settings, what makes it) under their names; workers make what is missing."""
        keys = {name: _key(what, about) for name, (about, _) in work.items()}
        missing = {name: make for name, (_, make) in work.items() if keys[name] not in self._found}

        def keep(name: str, found: Any) -> None:
            self._keep(keys[name], what, work[name][0], found)

        (workers or self.workers).run(missing, what, on_done=keep)
        lines = [self._found[key] for key in keys.values()]
        for line in lines:
            if what not in (PAIR, HISTORY):
                self.sources.add(_source(line["about"].get("compute", "float32"), line))
        return [line["found"] for line in lines]

    def _keep(self, key: str, what: str, about: Mapping[str, Any], found: Any) -> None:
        line = {"key": key, "what": what, "about": about, "found": found, **provenance()}
        self._found[key] = json.loads(json.dumps(line))
        self.folder.mkdir(parents=True, exist_ok=True)
        append(self.folder / FOUND, line)

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


def _key(what: str, about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([what, about], sort_keys=True).encode()).hexdigest()[:24]


def configs_of(contestant: Contestant, runs: Path) -> list[tuple[Path, Training]]:
    """The run folders of a contestant, and what is trained there."""
    return [(folder, contestant.config(seed, folder)) for seed, folder in contestant.folders(runs)]


def _is_finished(folder: Path, config: Training) -> bool:
    """Whether a run is there to its end; a ValueError if it has other settings."""
    before = settings_before(folder)
    if before is None or not is_written(folder):
        return False
    check_same(folder, before, config)
    return True


def precisions(own: str) -> tuple[str, ...]:
    """Those whose samples serve a page of this one, itself first; one that is not usual is served by itself only."""
    return (own, *(each for each in ALIKE if own in ALIKE and each != own))


def _in_known_precision(job: Job, keys: Collection[str]) -> Job:
    """The job in its own precision or the other usual one, whichever has a row; else as it is."""
    jobs = (Job(job.cell, replace(job.protocol, dtype=dtype)) for dtype in precisions(job.protocol.dtype))
    return next((each for each in jobs if key_of(*each) in keys), job)


def _source(precision: str, made: Mapping[str, Any]) -> Source:
    return Source(precision, str(made["commit"]), str(made["hardware"]))

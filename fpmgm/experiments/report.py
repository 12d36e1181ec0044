"""What reports share: where things lie, who trains and measures, and what was found before."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fpmgm.cluster import HERE, Workers
from fpmgm.evaluation.rows import Row, append, read_lines, read_rows
from fpmgm.evaluation.sweep import Job, announce, key_of, run_jobs
from fpmgm.experiments.contestants import Contestant, Made
from fpmgm.experiments.parts import Source
from fpmgm.provenance import provenance
from fpmgm.training.config import Training
from fpmgm.training.folder import check_same, is_written, settings_before

ROWS, FOUND = "rows.jsonl", "found.jsonl"
"""Files beside the page: rows of samples, and all else that was measured."""
PAIR = "pair"
"""What is computed of rows: it has no precision of its own."""
HISTORY = "history"
"""What a run wrote of itself: its precision is that of training, which no line tells."""
ALIKE = ("float32", "bfloat16")
"""Precisions whose samples are as good: a cell that was measured in one of them is not measured in the other."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where a report lies, and what was found for it before."""

    folder: Path
    runs: Path
    """The folder of the run folders."""
    workers: Workers = HERE

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
            missing = {run: made[run] for run in configs if not is_finished(*configs[run])}
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


def _key(what: str, about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([what, about], sort_keys=True).encode()).hexdigest()[:24]


def configs_of(contestant: Contestant, runs: Path) -> list[tuple[Path, Training]]:
    """The run folders of a contestant, and what is trained there."""
    return [(folder, contestant.config(seed, folder)) for seed, folder in contestant.folders(runs)]


def is_finished(folder: Path, config: Training) -> bool:
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

"""What sections share: where things lie, who trains and judges, and what was found before."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fpmgm.cluster import HERE, Workers
from fpmgm.devices import DtypeName
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.evaluation.frontier import RESAMPLES
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_found import RealText, real_text
from fpmgm.evaluation.rows import Row, append, read_lines
from fpmgm.evaluation.sweep import Job, Protocol, announce, run_jobs
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.experiments.contestants import Contestant
from fpmgm.provenance import provenance
from fpmgm.recipes import RECIPES
from fpmgm.training.config import Training
from fpmgm.training.folder import MODEL, check_same, is_written, settings_before

ROWS, FOUND, REAL = "rows.jsonl", "found.jsonl", "real.jsonl"
"""Files beside the page: rows of samples, all else that was measured, and real text."""
BASE = "stories-match"
"""A recipe that starts from FP-MDLM, whose symbols all models have."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is sampled and trained. The whole page fits 8 hours of 2 cores, beyond base models and stages."""

    few: int = 40
    """Samples of a point in ablations."""
    many: int = 64
    """Samples of a point and seed in headlines."""
    seeds: int = 3
    """Of headlines: of training where there is a stage, and of sampling."""
    budgets: tuple[int, ...] = (24, 48, 96, 192)
    """As many tokens a step as the paper's budgets 96 to 768 have with sequences four times as long."""
    high: tuple[int, ...] = (24, 48, 96, 192, 384, 768)
    pair: tuple[int, ...] = (24, 96)
    """Budgets of ablations with many lines."""
    temperatures: tuple[float, ...] = (0.8, 1.0)
    steps: tuple[int, ...] = (2, 4, 8, 16, 32)
    iterations: tuple[int, ...] = (1, 2, 4, 8)
    stage: int = 100
    """Updates of a stage in an ablation of losses."""
    proxy: int = 200
    """Updates of a network that is trained from fresh weights in an ablation."""
    tenth: int = 800
    """Updates of a base model that is trained a tenth as long."""
    batch_size: int = 8
    mauve: int = 256
    questions: int = 100
    validation: int = 512
    """Sequences."""
    real: int = 256
    """Sequences of real text, whose entropies bound the frontiers."""
    shown: int = 16
    """Texts that are looked at for failures; two of them are printed."""
    resamples: int = RESAMPLES
    """Of a bootstrap."""
    repeats: int = 20
    """Rounds of timing, as in the paper."""
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

    def paths(self, contestant: Contestant) -> list[str]:
        """The models of a contestant, by seed, whether they are trained already or not."""
        if contestant.is_base:
            return [contestant.changes.get("init", RECIPES[contestant.recipe].init)]
        return [str(folder / MODEL) for _, folder in contestant.folders(self.runs)]

    def train(self, contestants: Iterable[Contestant]) -> None:
        """Train what is missing. A run that is finished is looked at, and not loaded."""
        work: dict[str, Callable[[], str]] = {}
        for contestant in contestants:
            configs = {folder.name: (folder, config) for folder, config in configs_of(contestant, self.runs)}
            for run, make in contestant.models(self.runs).items():
                if run in configs and not _is_finished(*configs[run]):
                    work[run] = make
        self.workers.run(work, "runs")

    def rows(self, jobs: Sequence[Job]) -> list[Row]:
        """Rows of all jobs; those that are missing are measured."""
        return run_jobs(jobs, self.folder / ROWS, on_cell=announce, workers=self.workers)

    @cached_property
    def _found(self) -> dict[str, Any]:
        return {line["key"]: line["found"] for line in read_lines(self.folder / FOUND)}

    def kept(self, what: str, about: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What was found before for the same settings, or what `make` finds now: something that JSON can hold."""
        key = _key(what, about)
        if key not in self._found:
            self._keep(key, what, about, make())
        return self._found[key]

    def kept_by_workers(self, what: str, work: Mapping[str, tuple[Mapping[str, Any], Callable[[], Any]]]) -> list[Any]:
        """The same of several, by (settings, what makes it) under their names; workers make what is missing."""
        keys = {name: _key(what, about) for name, (about, _) in work.items()}
        missing = {name: make for name, (_, make) in work.items() if keys[name] not in self._found}

        def keep(name: str, found: Any) -> None:
            self._keep(keys[name], what, work[name][0], found)

        self.workers.run(missing, what, on_done=keep)
        return [self._found[key] for key in keys.values()]

    def _keep(self, key: str, what: str, about: Mapping[str, Any], found: Any) -> None:
        found = json.loads(json.dumps(found))
        self.folder.mkdir(parents=True, exist_ok=True)
        append(self.folder / FOUND, {"key": key, "what": what, "about": about, "found": found, **provenance()})
        self._found[key] = found

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

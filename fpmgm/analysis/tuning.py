"""Tuning reuse for a model: coefficients and a tolerance are proposed, checked on other seeds, and saved."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fpmgm.analysis.fitting import errors, fitted, largest_tolerance
from fpmgm.analysis.trace import Course
from fpmgm.checkpoint import BUNDLED, find_folder, load, read_generation, weights_of
from fpmgm.devices import OnDevice
from fpmgm.evaluation.chosen import TEXT, kind_of
from fpmgm.evaluation.evaluator import Evaluator, evaluator_for
from fpmgm.evaluation.intervals import Interval, bootstrap
from fpmgm.evaluation.judges import judge_named
from fpmgm.evaluation.threads import use_threads
from fpmgm.files import write_json
from fpmgm.generation import TUNED, Sampling
from fpmgm.provenance import provenance
from fpmgm.reuse import CHANGED, MASKED, Shares
from fpmgm.sampling import Step
from fpmgm.schema import MAX_ITERATIONS, MAX_SAMPLES, require
from fpmgm.types import Labels

LEVEL = 0.9
"""Of intervals: what lies above one of their ends is ruled out with 95 %."""


@dataclass(frozen=True, kw_only=True)
class Tuning(OnDevice):
    """Propose reuse coefficients and a tolerance for a model, and check them against the paper's on other seeds."""

    model: str
    """A bundled model, a model folder, or a hub id owner/name. It must have a fixed point."""
    budget: int = 96
    """Block evaluations of a sequence."""
    num_fitted: int = 16
    """Samples that the proposal is made from."""
    num_samples: int = 256
    """Samples of each seed that it is checked on."""
    num_seeds: int = 2
    """Seeds that it is checked on, which follow `seed`."""
    depth: int = 16
    """Solver iterations after which a solution is taken as the fixed point."""
    slack: float = 0.005
    """How much the tolerance may add to the KL divergence of what a token is drawn from, in nats a token."""
    margin: float = 0.05
    """How much worse than the paper's settings still counts as no worse, in nats: of log generative perplexity and of
    entropy."""
    judge: str = "auto"
    """Who judges texts: smollm2, a causal model of ours or of the hub; auto: the bundled judge. If it is empty, and for
    images, the proposal is checked by the KL divergence from what the fixed points say."""
    seed: int = 0
    """The seed of the samples that the proposal is made from."""
    save: bool = False
    """Write the proposal into the model's generation_config.json, if it is shown to be no worse."""
    out: str = ""
    """A folder for tune-reuse.json. If it is empty, nothing is written there."""

    def __post_init__(self) -> None:
        self.check_device()
        for name in ("num_fitted", "num_samples"):
            require(name, getattr(self, name), 2, MAX_SAMPLES)
        require("num_seeds", self.num_seeds, 1, MAX_SAMPLES)
        require("depth", self.depth, 2, MAX_ITERATIONS)
        for name in ("slack", "margin"):
            require(name, getattr(self, name), 0, 10)
        if Path(self.out).is_file():
            raise ValueError(f"out is {self.out}, which is a file; give a folder")
        if self.save:
            check_writable(self.model)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Settings of reuse."""

    reuse_masked: Shares = MASKED
    reuse_changed: Shares = CHANGED
    tolerance: float | None = None

    def __str__(self) -> str:
        (low, high), (changed, _) = self.reuse_masked, self.reuse_changed
        tolerance = "none" if self.tolerance is None else f"{self.tolerance:g}"
        return f"masked {low:g} to {high:g}, changed {changed:g}, tolerance {tolerance}"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A number of samples with the paper's settings and with the proposal, paired by random numbers."""

    name: str
    default: float
    proposed: float
    difference: Interval
    """Proposed less default, the mean over samples, with an interval of 90 %."""
    limit: float
    """The proposal is no worse if the whole interval lies on the good side of this."""
    best: Literal["lowest", "highest"]

    @property
    def is_no_worse(self) -> bool:
        """Whether a difference beyond the limit is ruled out."""
        return self.difference.high <= self.limit if self.best == "lowest" else self.difference.low >= self.limit


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A proposal, and how it did on seeds that it was not made from."""

    model: str
    proposal: Proposal
    checks: tuple[Checked, ...]
    block_evals: tuple[float, float]
    """Of a sequence on average, with the paper's settings and with the proposal."""
    protocol: dict[str, Any]
    saved: Path | None = None

    @property
    def is_no_worse(self) -> bool:
        return all(check.is_no_worse for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        checks = [{**asdict(check), "is_no_worse": check.is_no_worse} for check in self.checks]
        saved = None if self.saved is None else str(self.saved)
        return {**asdict(self), "checks": checks, "is_no_worse": self.is_no_worse, "saved": saved}


def check_writable(model: str) -> Path:
    """The folder of a model whose settings may be changed; a ValueError for one of the package or of the hub."""
    folder = find_folder(model)
    if folder.is_relative_to(BUNDLED):
        raise ValueError(f"{model} is part of the package, where nothing is saved; copy {folder} and tune the copy")
    if not Path(model).is_dir():
        raise ValueError(f"{model} is a model of the hub; save it to a folder of yours and tune that")
    return folder


def tune(asked: Tuning) -> Tuned:
    """Propose, check, and save if that is asked for and the proposal is no worse."""
    kind = kind_of([asked.model])
    model = load(asked.model, device=asked.device, dtype=asked.dtype)
    if not model.denoiser.cost.fp:
        raise ValueError(f"{asked.model} is a plain stack, which has nothing to reuse; give a model with a fixed point")
    judge = judge_named(asked.judge) if kind == TEXT else ""
    evaluator = evaluator_for(kind, judge=judge, device=asked.device) if judge else None
    if evaluator is not None:
        evaluator.prepare(model, asked.num_samples)
    base = Course.of(model, Sampling(budget=asked.budget, seed=asked.seed, reuse="three-state"), asked.num_samples)
    base.check_depth(asked.depth)
    use_threads(model.config, min(asked.num_samples, base.sampling.batch_size))
    proposal = propose(replace(base, num_samples=asked.num_fitted), depth=asked.depth, slack=asked.slack)
    runs = [_runs(asked, base, settings, evaluator) for settings in (Proposal(), proposal)]
    tuned = Tuned(
        model=asked.model,
        proposal=proposal,
        checks=_checks(asked, runs[0], runs[1], is_judged=evaluator is not None),
        block_evals=(float(runs[0]["block_evals"].mean()), float(runs[1]["block_evals"].mean())),
        protocol=_protocol(asked, base, evaluator),
    )
    return finish(asked, tuned)


def propose(course: Course, *, depth: int, slack: float) -> Proposal:
    """Coefficients whose starts are nearest to the fixed points, then the largest tolerance that loses little."""
    masked, changed = fitted(_with(course, Proposal()), depth=depth)
    proposal = Proposal(reuse_masked=masked, reuse_changed=changed)
    found = errors(_with(course, proposal), depth=depth, what="looking for a tolerance")
    return replace(proposal, tolerance=largest_tolerance(found, slack=slack))


def _with(course: Course, settings: Proposal, **others: Any) -> Course:
    return course.reusing("three-state", **{name: getattr(settings, name) for name in TUNED}, **others)


Numbers = dict[str, np.ndarray]
"""Of each sample, by name."""


def _runs(asked: Tuning, base: Course, settings: Proposal, evaluator: Evaluator | None) -> Numbers:
    """What is measured of each sample, of all seeds in a row."""
    seeds = range(asked.seed + 1, asked.seed + 1 + asked.num_seeds)
    parts = [_run(asked, _with(base, settings, seed=seed), evaluator, f"seed {seed}, {settings}") for seed in seeds]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _run(asked: Tuning, course: Course, evaluator: Evaluator | None, what: str) -> Numbers:
    if evaluator is None:
        lost, spent = errors(course, depth=asked.depth, what=what).stopped()
        return {"kl": lost, "block_evals": _block_evals(spent, course)}
    counted = Iterations()
    tokens = course.run(counted, what=what).cpu()
    own = evaluator.per_sample(course.model, tokens)
    numbers = {name: np.array([np.nan if each is None else each for each in own[name]], float) for name in own}
    return {**numbers, "block_evals": _block_evals(counted.total, course)}


class Iterations:
    """Counts the solver iterations of each sequence, step by step."""

    def __init__(self) -> None:
        self.batches: list[np.ndarray] = []

    def __call__(self, step: Step, label: Labels | None) -> None:
        spent = step.solution.num_iters.view(-1, len(step.z)).amax(dim=0).cpu().numpy()
        if step.index == 0:
            self.batches.append(np.zeros(len(spent)))
        self.batches[-1] += spent

    @property
    def total(self) -> np.ndarray:
        """Of all sequences, in their order."""
        return np.concatenate(self.batches)


def _block_evals(iterations: np.ndarray, course: Course) -> np.ndarray:
    cost = course.model.denoiser.cost
    return len(course.iterations) * (cost.pre + cost.post) + iterations * cost.fp


def _checks(asked: Tuning, ours: Numbers, proposed: Numbers, *, is_judged: bool) -> tuple[Checked, ...]:
    if not is_judged:
        return (_check("KL from the fixed points, nats a token", "kl", ours, proposed, asked.slack, "lowest"),)
    return (
        _check("log generative perplexity", "nats", ours, proposed, asked.margin, "lowest"),
        _check("unigram entropy", "entropy", ours, proposed, -asked.margin, "highest"),
    )


def _check(
    name: str, key: str, ours: Numbers, proposed: Numbers, limit: float, best: Literal["lowest", "highest"]
) -> Checked:
    """Of the samples that both have a number of."""
    is_known = np.isfinite(ours[key]) & np.isfinite(proposed[key])
    if not is_known.any():
        raise ValueError(f"no pair of samples has a {name}; ask for more samples")
    default, other = ours[key][is_known], proposed[key][is_known]
    difference = bootstrap((other - default)[:, None], lambda means: means[:, 0], level=LEVEL)
    return Checked(
        name=name,
        default=float(default.mean()),
        proposed=float(other.mean()),
        difference=difference,
        limit=limit,
        best=best,
    )


def _protocol(asked: Tuning, base: Course, evaluator: Evaluator | None) -> dict[str, Any]:
    return {
        "weights": weights_of(asked.model),
        "budget": asked.budget,
        "steps": len(base.iterations),
        "iterations": list(base.iterations),
        "fitted_on": {"seed": asked.seed, "num_samples": asked.num_fitted},
        "checked_on": {
            "seeds": list(range(asked.seed + 1, asked.seed + 1 + asked.num_seeds)),
            "num_samples": asked.num_samples,
        },
        "depth": asked.depth,
        "slack": asked.slack,
        "margin": asked.margin,
        "judge": evaluator.judged_by() if evaluator else "",
        "provenance": dict(provenance()),
    }


def finish(asked: Tuning, tuned: Tuned) -> Tuned:
    """Save a proposal that is no worse, if that is asked for, and write tune-reuse.json."""
    if asked.save and tuned.is_no_worse:
        tuned = replace(tuned, saved=save_proposal(check_writable(asked.model), tuned.proposal))
    if asked.out:
        write_json(Path(asked.out) / "tune-reuse.json", tuned.as_json())
    return tuned


def save_proposal(folder: Path, proposal: Proposal) -> Path:
    """Write a proposal among the defaults of generation_config.json; other settings there stay."""
    settings = read_generation(folder)
    kept = {name: value for name, value in settings.get("defaults", {}).items() if name not in TUNED}
    own = {name: value for name, value in asdict(proposal).items() if value is not None}
    write_json(folder / "generation_config.json", {**settings, "defaults": {**kept, **own}})
    return folder / "generation_config.json"

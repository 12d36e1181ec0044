"""What a stage of consistency could gain at best: samples of its optimum beside those of the model as it is."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fpmgm.analysis.optimum import Foreseen
from fpmgm.budget import Cost, Plan, plan
from fpmgm.checkpoint import Model, load
from fpmgm.devices import OnDevice
from fpmgm.draws import Draw
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.judges import judge_named
from fpmgm.evaluation.matched import match_entropy
from fpmgm.evaluation.sweep import Protocol
from fpmgm.evaluation.tables import Column, markdown, metric
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.evaluation.threads import use_threads
from fpmgm.files import write_text
from fpmgm.progress import tracked
from fpmgm.provenance import provenance
from fpmgm.randomness import Streams
from fpmgm.sampling import even_times, sample
from fpmgm.transitions import Ancestral, Transition
from fpmgm.types import Tokens

BATCH = 32
WITHIN = 0.005
"""The optimum differs from the model by little: entropies are matched more closely than elsewhere."""
TRIES = 6
COLUMNS = (
    Column(title="blocks", value=lambda row: row.budget),
    Column(title="tokens drawn from", value=lambda row: row.drawn_from),
    Column(title="temperature", value=lambda row: row.temperature, digits=3),
    metric("perplexity_per_sample", "generative perplexity"),
    metric("entropy", "entropy", digits=3),
)


@dataclass(frozen=True, kw_only=True)
class Optimum(OnDevice):
    """Sample what a model would say had a stage of consistency reached its optimum: is there something to gain?

    Tokens are drawn from the mean of what the model says on several cleaner inputs that it makes itself, and compared
    with the model as it is, at temperature 1 and at the temperature where its entropy is the same. What the passes on
    cleaner inputs cost is not counted in the budget.
    """

    model: str
    """A bundled model, a model folder, or a hub id owner/name."""
    budgets: tuple[int, ...] = (24,)
    """The budgets to sample at, in block evaluations."""
    mean: Literal["geometric", "arithmetic"] = "geometric"
    """geometric is the optimum of kl-bwd, and of mse if a linear head follows. arithmetic is that of kl."""
    gap: float = 0.3
    """How much earlier the cleaner inputs are."""
    num_inputs: int = 8
    """The number of cleaner inputs that a mean is taken over."""
    num_samples: int = 64
    """Samples of each line at each budget."""
    length: int = 0
    """Tokens of a sample. With 0, it is the model's length."""
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or one of the hub. With auto, the bundled judge does it. If
    it is empty, samples are not judged."""
    seed: int = 0
    """Every random number follows from this number."""
    out: str = ""
    """The folder for the table and its rows. If it is empty, nothing is written."""

    def __post_init__(self) -> None:
        self.check_device()
        Protocol(num_samples=self.num_samples)  # which says what would work
        if not self.budgets:
            raise ValueError("no budgets; give at least one, such as --budgets 24")
        if Path(self.out).is_file():
            raise ValueError(f"out is {self.out}, which is a file; give a folder")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What was measured of samples that were drawn from one thing."""

    model: str
    budget: int
    drawn_from: str
    temperature: float
    gap: float
    num_inputs: int
    length: int
    seed: int
    judge: str
    num_samples: int
    metrics: dict[str, Interval]

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it, with where it was measured."""
        return {**asdict(self), **provenance()}


def measure_optimum(asked: Optimum) -> list[Drawn]:
    """At every budget: the model, its optimum, and the model at the optimum's entropy."""
    model = load(asked.model, device=asked.device, dtype=asked.dtype)
    if not 0 <= asked.length <= model.denoiser.max_length:
        raise ValueError(f"length is {asked.length}; the model takes 1 to {model.denoiser.max_length}, or 0 for all")
    foreseen = Foreseen(denoiser=model.denoiser, mean=asked.mean, gap=asked.gap, num_inputs=asked.num_inputs)
    plans = {budget: spread_evenly(budget, model.denoiser.cost) for budget in asked.budgets}
    use_threads(model.config, min(BATCH, asked.num_samples))
    study = Study(
        asked=asked, model=model, evaluator=TextEvaluator(judge=judge_named(asked.judge), device=asked.device)
    )
    return [row for spending in plans.values() for row in study.rows(foreseen, spending)]


def write_optimum(rows: Sequence[Drawn], folder: Path) -> list[Path]:
    """The table and its rows."""
    files = [folder / "table.md", folder / "rows.json"]
    write_text(files[0], markdown(rows, COLUMNS))
    write_text(files[1], json.dumps([row.as_json() for row in rows], indent=1) + "\n")
    return files


def spread_evenly(budget: int, cost: Cost) -> Plan:
    """Steps of equally many iterations, so that passes on cleaner inputs can take as many."""
    spending = plan(budget, cost, allocation="fixed")
    num_steps, num_iters = spending.num_steps, min(spending.iterations)
    return replace(spending, spent=num_steps * cost.step(num_iters), iterations=(num_iters,) * num_steps)


def announce(what: str) -> None:
    """Say what is being sampled."""
    print(f"sampling {what}", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A model, who judges its samples, and how many are drawn."""

    asked: Optimum
    model: Model
    evaluator: TextEvaluator

    def rows(self, foreseen: Foreseen, spending: Plan) -> Iterator[Drawn]:
        """The model, its optimum, and the model at the optimum's entropy."""
        budget = spending.budget
        foreseen = replace(foreseen, num_iters=max(1, spending.iterations[0]))
        drawn: dict[float, Tokens] = {}

        def entropy_at(temperature: float) -> float:
            if temperature not in drawn:
                announce(f"the model, temperature {temperature:.3f}, {budget} blocks")
                drawn[temperature] = self.samples(Ancestral(draw=Draw(temperature=temperature)), spending)
            return float(unigram_entropy(drawn[temperature]).mean())

        entropy_at(1.0)
        yield self.row(budget, "the model", 1.0, drawn[1.0])
        announce(f"the {foreseen.mean} mean, {budget} blocks")
        optimum = self.row(budget, f"the {foreseen.mean} mean", 1.0, self.samples(foreseen, spending))
        yield optimum
        found = match_entropy(entropy_at, optimum.metrics["entropy"].value, within=WITHIN, max_tries=TRIES)
        title = "the model, entropy matched" if found.is_met else "the model, entropy nearly matched"
        yield self.row(budget, title, found.setting, drawn[found.setting])

    def samples(self, transition: Transition, spending: Plan) -> Tokens:
        """Drawn without reuse, so that nothing differs but what tokens are drawn from."""
        asked, denoiser = self.asked, self.model.denoiser
        starts = self.model.starts({}, min(BATCH, asked.num_samples)).tokens
        parts = []
        for first in tracked(range(0, asked.num_samples, BATCH), "sampling"):
            batch = range(first, min(first + BATCH, asked.num_samples))
            sampled = sample(
                denoiser,
                torch.tensor(starts[: len(batch)], device=self.model.device)[:, : asked.length or None],
                times=even_times(spending.num_steps),
                iterations=spending.iterations,
                transition=transition,
                rng=Streams.of(asked.seed, batch),
            )
            parts.append(sampled.z)
        return torch.cat(parts)

    def row(self, budget: int, drawn_from: str, temperature: float, z: Tokens) -> Drawn:
        asked = self.asked
        return Drawn(
            model=asked.model,
            budget=budget,
            drawn_from=drawn_from,
            temperature=temperature,
            gap=asked.gap,
            num_inputs=asked.num_inputs,
            length=z.shape[1],
            seed=asked.seed,
            judge=self.evaluator.judged_by(),
            num_samples=len(z),
            metrics=self.evaluator.measure(self.model, z.cpu(), seed=asked.seed),
        )

"""What a stage of consistency could gain at best: samples of its optimum beside those of the model as it is."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from fpmgm.analysis.optimum import Foreseen
from fpmgm.budget import Cost, Plan, plan
from fpmgm.checkpoint import Model, load
from fpmgm.commands import open_console
from fpmgm.draws import Draw
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.evaluation.judges import Judge, judge_named, load_judge
from fpmgm.evaluation.matched import match_entropy
from fpmgm.evaluation.sweep import Protocol
from fpmgm.evaluation.tables import Column, Row, markdown, metric
from fpmgm.evaluation.text import measure
from fpmgm.generation import documents
from fpmgm.provenance import provenance
from fpmgm.randomness import Streams
from fpmgm.sampling import even_times, masked_start, sample
from fpmgm.transitions import Ancestral, Transition
from fpmgm.types import Tokens

BATCH = 32
WITHIN = 0.005
"""The optimum differs from the model by little: entropies are matched more closely than elsewhere."""
TRIES = 6
COLUMNS = (
    Column(title="blocks", value=lambda row: row["budget"]),
    Column(title="tokens drawn from", value=lambda row: row["drawn_from"]),
    Column(title="temperature", value=lambda row: row["temperature"], digits=3),
    metric("perplexity_per_sample", "generative perplexity"),
    metric("entropy", "entropy", digits=3),
)


@dataclass(frozen=True, kw_only=True)
class OptimumCommand:
    """Sample what a model would say had a stage of consistency reached its optimum: is there something to gain?

    Tokens are drawn from the mean of what the model says on several cleaner inputs that it makes itself, and compared
    with the model as it is, at temperature 1 and at the temperature where its entropy is the same. What the passes on
    cleaner inputs cost is not counted in the budget.
    """

    model: Annotated[str, tyro.conf.Positional]
    """A bundled model, a model folder, or a hub id owner/name."""
    analysis: Annotated[str, tyro.conf.Positional] = "optimum"
    budgets: tuple[int, ...] = (24,)
    mean: str = "geometric"
    """geometric (the optimum of kl-bwd, and of mse where a linear head follows) or arithmetic (of kl)."""
    gap: float = 0.3
    """How much earlier the cleaner inputs are."""
    num_inputs: int = 8
    """Cleaner inputs that a mean is taken over."""
    num_samples: int = 64
    length: int = 0
    """Tokens of a sample; 0: the model's length."""
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or of the hub; auto: the bundled judge; empty: nobody."""
    seed: int = 0
    out: str = ""
    """A folder for the table and its rows; empty: none."""

    def __post_init__(self) -> None:
        Protocol(num_samples=self.num_samples)  # which says what would work
        if not self.budgets:
            raise ValueError("no budgets; give at least one, such as --budgets 24")
        if Path(self.out).is_file():
            raise ValueError(f"out is {self.out}, which is a file; give a folder")


def run_optimum(command: OptimumCommand) -> None:
    """Measure, print the table, and write it with its rows if a folder is given."""
    model = load(command.model)
    if not 0 <= command.length <= model.denoiser.max_length:
        raise ValueError(f"length is {command.length}; the model takes 1 to {model.denoiser.max_length}, or 0 for all")
    foreseen = Foreseen(denoiser=model.denoiser, mean=command.mean, gap=command.gap, num_inputs=command.num_inputs)
    plans = {budget: spread_evenly(budget, model.denoiser.cost) for budget in command.budgets}
    judge = judge_named(command.judge)
    study = Study(command=command, model=model, judge=load_judge(judge) if judge else None)
    rows = [row for spending in plans.values() for row in study.rows(foreseen, spending)]
    table = markdown(rows, COLUMNS)
    console = open_console()
    console.print(table, soft_wrap=True, markup=False)
    if command.out:
        folder = Path(command.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(table)
        (folder / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
        console.print(f"wrote {folder / 'table.md'}, {folder / 'rows.json'}", soft_wrap=True)


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

    command: OptimumCommand
    model: Model
    judge: Judge | None

    def rows(self, foreseen: Foreseen, spending: Plan) -> Iterator[Row]:
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
        found = match_entropy(entropy_at, optimum["metrics"]["entropy"]["value"], within=WITHIN, max_tries=TRIES)
        title = "the model, entropy matched" if found.is_met else "the model, entropy nearly matched"
        yield self.row(budget, title, found.setting, drawn[found.setting])

    def samples(self, transition: Transition, spending: Plan) -> Tokens:
        """Drawn without reuse, so that nothing differs but what tokens are drawn from."""
        command, denoiser = self.command, self.model.denoiser
        parts = []
        for first in range(0, command.num_samples, BATCH):
            batch = range(first, min(first + BATCH, command.num_samples))
            sampled = sample(
                denoiser,
                masked_start(denoiser, [[]] * len(batch), command.length or None),
                times=even_times(spending.num_steps),
                iterations=spending.iterations,
                transition=transition,
                rng=Streams.of(command.seed, batch),
            )
            parts.append(sampled.z)
        return torch.cat(parts)

    def row(self, budget: int, drawn_from: str, temperature: float, z: Tokens) -> Row:
        command = self.command
        readings = self.judge.read([documents(self.model, row) for row in z.tolist()]) if self.judge else None
        return {
            "model": command.model,
            "budget": budget,
            "drawn_from": drawn_from,
            "temperature": temperature,
            "gap": command.gap,
            "num_inputs": command.num_inputs,
            "length": z.shape[1],
            "seed": command.seed,
            "judge": self.judge.name if self.judge else "",
            "num_samples": len(z),
            "metrics": measure(z, readings, seed=command.seed),
            **provenance(),
        }

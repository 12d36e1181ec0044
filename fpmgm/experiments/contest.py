"""The contest of the miniature: every base model and stage, trained if need be, measured at every budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fpmgm.checkpoint import find_folder, load, read_config, weights_of
from fpmgm.cluster import HERE, Workers
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.evaluator import ConventionName, Evaluator, Metric, Validation, evaluator_for
from fpmgm.evaluation.held_out import HELD_OUT, data_for
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.matched import is_near
from fpmgm.evaluation.plots import lines_by_update, quality_against_cost
from fpmgm.evaluation.rows import Row, append, read_lines
from fpmgm.evaluation.side_by_side import VALIDATION_ITERS
from fpmgm.evaluation.sweep import Job, Protocol, announce, run_jobs
from fpmgm.evaluation.tables import Column, Noted, markdown
from fpmgm.experiments.contestants import Contestant
from fpmgm.generation import Sampling
from fpmgm.post_training.consistency import SELF, Consistency
from fpmgm.provenance import provenance
from fpmgm.recipes import RECIPES
from fpmgm.reuse import ReuseName
from fpmgm.schema import field_value
from fpmgm.training.metrics import read_metrics

REUSES: tuple[ReuseName, ...] = ("none", "full", "three-state")

PAPERS_STAGE: dict[str, Any] = {
    "objective": Consistency(weight=0.1),
    "optim": replace(RECIPES["poetry-cofre"].optim, lr=3e-4, ema=0.95),
    "updates": 200,
    "validate_every": 50,
    "snapshot_every": 50,
    "stop_above": 0.15,
}
"""Hidden states, mean squared distance, gaps of 0.05 to 0.3, the network its own teacher, the 15 % rule."""

TEXT_MINI = (
    Contestant(name="MDLM", recipe="poetry-mdlm-cons", is_base=True, is_headline=True),
    Contestant(name="MDLM + L_CONS", recipe="poetry-mdlm-cons"),
    Contestant(name="MDLM + SDTT", recipe="poetry-sdtt", num_seeds=3, is_headline=True),
    Contestant(name="FP-MDLM", recipe="poetry-cofre", is_base=True, is_headline=True),
    Contestant(name="FP-MDLM + L_CONS", recipe="poetry-cofre", num_seeds=3, is_headline=True),
    Contestant(name="FP-MDLM + L_CONS of mse", recipe="poetry-cofre", changes=PAPERS_STAGE),
    Contestant(name="FP-MDLM + SDTT", recipe="poetry-fp-sdtt"),
    Contestant(name="adapted FP-MDLM", recipe="poetry-adapt"),
    Contestant(name="adapted, fresh weights", recipe="poetry-adapt", changes={"init": "", "init_map": ""}),
)


def _try(recipe: str, name: str, settings: dict[str, Any], optim: dict[str, Any]) -> Contestant:
    base = RECIPES[recipe]
    changes = {"objective": replace(base.objective, **settings), "optim": replace(base.optim, **optim)}
    return Contestant(name=name, recipe=recipe, changes=changes, is_headline=True)


def _l_cons(name: str, settings: dict[str, Any], **optim: Any) -> Contestant:
    return _try("poetry-cofre", f"L_CONS, {name}", settings, optim)


def _sdtt(name: str, settings: dict[str, Any], **optim: Any) -> Contestant:
    return _try("poetry-sdtt", f"SDTT, {name}", settings, optim)


TUNING = (
    Contestant(name="MDLM", recipe="poetry-mdlm-cons", is_base=True, is_headline=True),
    Contestant(name="FP-MDLM", recipe="poetry-cofre", is_base=True, is_headline=True),
    _l_cons("as in the recipe", {}),
    _l_cons("gaps 0.05 to 0.3", {"gap_min": 0.05, "gap_max": 0.3}),
    _l_cons("its own teacher, rate 3e-4", {"teacher": SELF}, lr=3e-4, ema=0.95),
    _sdtt("as in the recipe", {}),
    _sdtt("2 rounds from 1/8, rate 1e-4", {"rounds": 2, "first_steps": 8}, lr=1e-4, ema=0.95),
    _sdtt("5 rounds from 1/64, rate 3e-4, constant", {"rounds": 5, "first_steps": 64}, lr=3e-4, decay="constant"),
)
"""As many tries for SDTT as for L_CONS; 200 updates instead of 300, but one takes twice as long."""


class Line(NamedTuple):
    """A line of a table: models of one kind, by seed, sampled with one kind of reuse."""

    name: str
    reuse: ReuseName
    models: list[str]
    is_usual: bool
    """Whether it is judged twice and its entropy matched."""
    num_samples: int


class Entry(NamedTuple):
    """A row, and the line of the table that it belongs to."""

    line: Line
    row: Row


class TableLine(NamedTuple):
    """A line as the table shows it."""

    name: str
    reuse: str
    cells: dict[int, Noted]
    """By budget."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Where a contest lies and how it is judged."""

    folder: Path
    runs: Path
    """The folder of the run folders."""
    contestants: tuple[Contestant, ...] = TEXT_MINI
    """Entropies are matched to the first one's."""
    budgets: tuple[int, ...] = (24, 48, 96, 192, 384)
    reuses: tuple[ReuseName, ...] = REUSES
    """How models with a fixed point are sampled; all seeds as usual (three-state), the first seed with the others."""
    num_samples: int = 86
    """Samples a cell and model of the headline lines with their usual reuse: three seeds are 258."""
    num_rest: int = 128
    """Samples a cell of the others."""
    kind: str = "text"
    """What the models write."""
    judge: str = ""
    second_judge: str = "smollm2"
    """Who judges all lines with their usual reuse too; empty: nobody."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judges score."""
    knob: Literal["temperature", "top_p"] = "temperature"
    """What is turned until entropies meet."""
    seed: int = 0
    device: str = "auto"
    dtype: str = "float32"
    workers: Workers = HERE
    """Who trains and measures."""

    def __post_init__(self) -> None:
        for num_samples in (self.num_samples, self.num_rest):
            Protocol(num_samples=num_samples)  # refused before hours of training

    @property
    def reference(self) -> str:
        """The contestant whose entropy the others are matched to."""
        return self.contestants[0].name

    def run(self) -> str:
        """Train, measure and write; returns the Markdown of the report."""
        for judge in filter(None, (self.judge, self.second_judge)):
            self._evaluator(judge).judged_by()  # one that is not there is found before hours of training
        models = self._models()
        lines = [line for contestant in self.contestants for line in self._lines(contestant, models[contestant.name])]
        sources = {each.name: RECIPES[each.recipe].data.name for each in self.contestants}
        values = self._validations({model: sources[name] for name, own in models.items() for model in own})
        validation = {name: [values[model] for model in own] for name, own in models.items()}
        rows, second = self._judged(lines)
        usual_evaluator = self._evaluator(self.judge)
        parts = [_validation_table(validation, usual_evaluator.validated)]
        title = capitalised(usual_evaluator.primary.title)
        parts.append(f"### {title} (entropy), judge: {self._judge_told(self.judge)}\n\n{self._table(rows)}")
        parts += self._pictures(rows)
        if self.second_judge:
            told = self._judge_told(self.second_judge)
            parts.append(f"### Judge: {told}\n\n{self._table(second, self.second_judge)}")
        entropies = self._entropies(rows)
        matched = self._matched(entropies, [line for line in lines if line.is_usual])
        title = f"### Matched: {self.knob} turned until the entropy is that of {self.reference} at the budget"
        parts.append(f"{title}\n\n{self._table(matched)}")
        return "\n\n".join(parts)

    def _evaluator(self, judge: str) -> Evaluator:
        settings = {"convention": self.convention} if judge and self.kind == "text" else {}
        return evaluator_for(self.kind, judge=judge, device=self.device, **settings)

    def _judge_told(self, judge: str) -> str:
        return f"{judge}, convention: {self.convention}" if judge and self.kind == "text" else judge or "none"

    def _lines(self, contestant: Contestant, models: list[str]) -> Iterator[Line]:
        usual = _usual_reuse(models[0])
        for reuse in self.reuses if _has_fixed_point(models[0]) else (usual,):
            is_usual = reuse == usual
            num_samples = self.num_samples if contestant.is_headline and is_usual else self.num_rest
            yield Line(contestant.name, reuse, models if is_usual else models[:1], is_usual, num_samples)

    def _models(self) -> dict[str, list[str]]:
        """Of every contestant; runs that are not finished are made or gone on with."""
        runs = {contestant.name: contestant.models(self.runs) for contestant in self.contestants}
        made = self.workers.run({run: make for own in runs.values() for run, make in own.items()}, "runs")
        return {name: [made[run] for run in own] for name, own in runs.items()}

    def _judged(self, lines: Sequence[Line]) -> tuple[list[Entry], list[Entry]]:
        """By the judge and, with the usual reuse, by the second, who reads the same samples."""
        first = [
            (line, self._cell(line, model, budget))
            for line in lines
            for model in line.models
            for budget in self.budgets
        ]
        second = [(line, cell) for line, cell in first if self.second_judge and line.is_usual]
        jobs = [Job(cell, self._protocol(line, self.judge)) for line, cell in first]
        jobs += [Job(cell, self._protocol(line, self.second_judge)) for line, cell in second]
        found = self._entries([line for line, _ in (*first, *second)], jobs)
        return found[: len(first)], found[len(first) :]

    def _matched(self, entropies: dict[int, float], lines: Sequence[Line]) -> list[Entry]:
        """At those entropies: nothing is turned where they are met already.

        Budget by budget, because the search of a model starts where that of the last budget ended.
        """
        models = [(line, model) for line in lines for model in line.models]
        settings = dict.fromkeys(range(len(models)), 1.0)
        entries: list[Entry] = []
        for budget in self.budgets:
            cells = [self._cell(line, model, budget) for line, model in models]
            own = self._at(lines=[line for line, _ in models], cells=cells)
            far = [
                i for i, entry in enumerate(own) if not is_near(entry.row.metrics["entropy"].value, entropies[budget])
            ]
            turned = [
                replace(cells[i], knob=self.knob, entropy=entropies[budget], search_from=settings[i]) for i in far
            ]
            for i, entry in zip(far, self._at(lines=[models[i][0] for i in far], cells=turned), strict=True):
                own[i], settings[i] = entry, getattr(entry.row.sampling, self.knob)
            entries += own
        return entries

    def _cell(self, line: Line, model: str, budget: int) -> Cell:
        seed = self.seed + line.models.index(model)  # seeds of training are seeds of sampling too
        return Cell(model=model, sampling=Sampling(budget=budget, reuse=line.reuse, seed=seed))

    def _protocol(self, line: Line, judge: str) -> Protocol:
        evaluator = self._evaluator(judge)
        return Protocol(num_samples=line.num_samples, evaluator=evaluator, device=self.device, dtype=self.dtype)

    def _at(self, *, lines: Sequence[Line], cells: Sequence[Cell]) -> list[Entry]:
        """An entry for every cell, each of its line, by the judge."""
        jobs = [Job(cell, self._protocol(line, self.judge)) for line, cell in zip(lines, cells, strict=True)]
        return self._entries(lines, jobs)

    def _entries(self, lines: Sequence[Line], jobs: Sequence[Job]) -> list[Entry]:
        rows = run_jobs(jobs, self.folder / "contest.jsonl", on_cell=announce, workers=self.workers)
        return list(map(Entry, lines, rows))

    def _entropies(self, entries: Sequence[Entry]) -> dict[int, float]:
        """Of the reference, by budget: its first seed, and of several kinds of reuse the last."""
        by_budget: dict[int, float] = {}
        first = next(row.model for line, row in entries if line.name == self.reference)
        for _, row in entries:
            if row.model == first:
                by_budget[row.budget] = row.metrics["entropy"].value
        return by_budget

    def _table(self, entries: Sequence[Entry], judge: str | None = None) -> str:
        primary = self._evaluator(self.judge if judge is None else judge).primary
        lines: dict[tuple[str, str], dict[int, list[Row]]] = {}
        for line, row in entries:
            lines.setdefault((line.name, line.reuse), {}).setdefault(row.budget, []).append(row)
        table = [
            TableLine(*line, {budget: over_seeds(own, primary.name) for budget, own in by.items()})
            for line, by in lines.items()
        ]
        columns = [
            Column(title="model", value=lambda line: line.name),
            Column(title="reuse", value=lambda line: line.reuse),
            *(_budget_column(budget, primary.best) for budget in self.budgets),
        ]
        return markdown(table, columns)

    def _validations(self, sources: Mapping[str, str]) -> dict[str, float]:
        """The validation of each model on 512 held-out sequences of its source, once for each set of weights."""
        file = self.folder / "validation.jsonl"
        known = {line.get("weights"): line.get("value") for line in read_lines(file)}
        keys = {model: weights_of(model) for model in sources}
        work = {
            model: partial(_validation, model, sources[model], self._evaluator(""))
            for model, key in keys.items()
            if key not in known
        }

        def keep(model: str, found: Validation) -> None:
            about = {"model": model, "weights": keys[model], "num_iters": VALIDATION_ITERS}
            append(file, {**about, **asdict(found), **provenance()})
            known[keys[model]] = found.value

        self.workers.run(work, "validations", on_done=keep)
        return {
            model: float(field_value(known[key], float, f"{file}: value of {model}")) for model, key in keys.items()
        }

    def _pictures(self, entries: Sequence[Entry]) -> list[str]:
        """Quality against cost with the usual reuse, over seeds, and the loss of the adaptations."""
        primary = self._evaluator(self.judge).primary
        by_cell: dict[tuple[str, int], list[Row]] = {}
        for line, row in entries:
            if line.is_usual:
                by_cell.setdefault((line.name, row.budget), []).append(row)
        shown = [
            replace(own[0], model=line, metrics={primary.name: over_seeds(own, primary.name)})
            for (line, _), own in by_cell.items()
        ]
        quality_against_cost(shown, primary.name, primary.title, self.folder / "contest")
        found = ["![Quality against cost, three-state reuse; of three seeds their mean and span](contest.png)"]
        series = {
            contestant.name: [
                (row["update"], row["base"] if "base" in row else row["loss"]) for row in read_metrics(folder)
            ]
            for contestant in self.contestants
            for _, folder in contestant.folders(self.runs)
            if contestant.recipe.endswith("adapt")
        }
        if series:
            lines_by_update(series, "cross entropy, nats a token", self.folder / "adaptation")
            found.append("![Loss of adaptation, with and without the layers of the source](adaptation.png)")
        return found


def _validation(model: str, source: str, evaluator: Evaluator) -> Validation:
    loaded = load(model)
    batch = data_for(loaded, source, HELD_OUT).measured(512).to(loaded.device)
    return evaluator.validate(loaded.denoiser, batch, num_iters=VALIDATION_ITERS)


def over_seeds(rows: Sequence[Row], name: str) -> Noted:
    """A metric with its interval, or the mean over seeds and all that their intervals span; the entropy beside it."""
    values: list[Interval] = [row.metrics[name] for row in rows]
    entropy = sum(row.metrics["entropy"].value for row in rows) / len(rows)
    is_met = all(row.matched is None or row.matched.is_met for row in rows)
    return Noted(
        value=sum(each.value for each in values) / len(values),
        low=min(each.low for each in values),
        high=max(each.high for each in values),
        note=f"({entropy:.2f})" if is_met else f"({entropy:.2f}, not met)",
    )


def _budget_column(budget: int, best: str) -> Column:
    return Column(title=f"{budget} blocks", value=lambda line: line.cells.get(budget), best=best)


def capitalised(title: str) -> str:
    return title[:1].upper() + title[1:]


def _validation_table(found: dict[str, list[float]], metric: Metric) -> str:
    lines = [f"### {capitalised(metric.title)}", "", f"| model | {metric.name.replace('_', ' ')}, by seed |"]
    lines.append("| --- | --- |")
    digits = 1 if metric.name == "perplexity" else 3
    lines += [f"| {name} | {', '.join(f'{value:.{digits}f}' for value in values)} |" for name, values in found.items()]
    return "\n".join(lines)


def _usual_reuse(model: str) -> ReuseName:
    """The paper's: what pictures show, and what entropies are matched with."""
    return REUSES[-1] if _has_fixed_point(model) else REUSES[0]


def _has_fixed_point(model: str) -> bool:
    return read_config(find_folder(model)).cost.fp > 0

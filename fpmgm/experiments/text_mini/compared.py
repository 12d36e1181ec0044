"""Lines of a table measured, and compared in pairs: as they are, and at equal entropy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.frontier import RESAMPLES, Frontier, Pair, compare, means, resampled
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.plots import COUNTED, quality_against_cost
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.sweep import Job
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.evaluation.text import GENERATIVE
from fpmgm.experiments.contestants import Made
from fpmgm.experiments.over_seeds import TableLine, budget_column, over_seeds
from fpmgm.experiments.parts import Part, Reading
from fpmgm.experiments.report import PAIR
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.quoted import quoted
from fpmgm.experiments.text_mini.section import ORDER, Line, Table
from fpmgm.generation import Sampling
from fpmgm.names import slug
from fpmgm.schema import read_object

Point = tuple[str, int, float]
"""A line, a budget and a temperature."""
Measured = Mapping[Point, Sequence[Row]]
"""Rows of every point, by seed."""
BySeed = Float[np.ndarray, "S N"]


def jobs_of(page: Page, table: Table) -> dict[Point, list[Job]]:
    """What there is to measure, whether models are trained already or not."""
    protocol = page.protocol(table.num_samples)
    models = {line.name: _models(page, line, table.num_seeds) for line in table.lines}
    return {
        (line.name, budget, temperature): [
            Job(Cell(**made._asdict(), sampling=_sampling(page, line, budget, temperature, index)), protocol)
            for index, made in enumerate(models[line.name])
        ]
        for line in table.lines
        for budget in table.budgets
        for temperature in table.temperatures
    }


def _models(page: Page, line: Line, num_seeds: int) -> list[Made]:
    """One for each seed of sampling."""
    own = page.models(line.contestant)
    return [own[index % len(own)] for index in range(num_seeds)]


def _sampling(page: Page, line: Line, budget: int, temperature: float, index: int) -> Sampling:
    settings: dict[str, Any] = {"transition": ORDER, **line.settings}
    return Sampling(budget=budget, temperature=temperature, seed=page.seed + index, **settings)


def measured(page: Page, tables: Iterable[Table]) -> dict[Point, list[Row]]:
    """Measure all points that are missing, and train what these are of."""
    tables = tuple(tables)
    contestants = {each.name: each for table in tables for each in table.contestants}.values()
    jobs = {point: own for table in tables for point, own in jobs_of(page, table).items()}
    rows = iter(page.rows([job for own in jobs.values() for job in own], contestants))
    return {point: [next(rows) for _ in own] for point, own in jobs.items()}


class Versus(NamedTuple):
    """Two lines at a budget."""

    model: str
    against: str
    where: str
    """The budget, in words."""
    plain: Reading
    """The ratio of generative perplexities at temperature 1, paired."""
    entropy: Reading
    """The difference of their entropies there, paired."""
    pair: Pair
    """The same at equal entropy."""


def versus(
    page: Page, found: Measured, ours: Point, theirs: Point, temperatures: Sequence[float], where: str
) -> Versus:
    """Two points compared, temperature 1 and whole frontiers; computed once for the same rows."""
    (name, budget, _), (other, other_budget, _) = ours, theirs
    lines = [
        [found[line, own, temperature] for temperature in temperatures]
        for line, own in ((name, budget), (other, other_budget))
    ]
    has_runs = any(len({row.weights for row in line[0]}) > 1 for line in lines)
    band = page.real.band
    num = page.sizes.resamples
    keys = [[row.key for rows in line for row in rows] for line in lines]
    about = {"rows": keys, "band": band, "runs": has_runs, "resamples": num}

    def make() -> dict[str, Any]:
        nats, entropy = ([_per_sample(found[point], name) for point in (ours, theirs)] for name in ("nats", "entropy"))
        frontiers = [_frontier(line, has_runs) for line in lines]
        return {
            "plain": np.exp(paired(*nats, has_runs=has_runs, num_resamples=num)).tolist(),
            "entropy": paired(*entropy, has_runs=has_runs, num_resamples=num),
            "pair": asdict(compare(*frontiers, band=band, num_resamples=num)),
        }

    kept = page.kept(PAIR, about, make)
    return Versus(
        model=name,
        against=other,
        where=where,
        plain=Reading(where, *kept["plain"]),
        entropy=Reading(where, *kept["entropy"]),
        pair=read_object(Pair, kept["pair"], "pair"),
    )


def paired(
    ours: BySeed, theirs: BySeed, *, has_runs: bool, num_resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """The mean difference of samples with the same random numbers, and the ends of its interval of 95 %.

    A resample draws samples within each seed. Where seeds are models of their own, it draws seeds too. Of nats, the
    exponential is the ratio of generative perplexities.

    >>> found = paired(np.array([[2.0, 4.0, 6.0]]), np.array([[1.0, 3.0, 5.0]]), has_runs=False)
    >>> [round(value, 6) for value in found]
    [1.0, 1.0, 1.0]
    """
    drawn = resampled(*ours.shape, has_runs=has_runs, seed=0, num=num_resamples)
    counts = np.concatenate([np.ones((1, ours.size), int), drawn])  # the first is of the samples as they are
    apart = means(ours[:, None], counts)[:, 0] - means(theirs[:, None], counts)[:, 0]
    low, high = np.quantile(apart[1:], [0.025, 0.975])
    return float(apart[0]), float(low), float(high)


def _per_sample(rows: Sequence[Row], name: str) -> BySeed:
    return np.array([row.per_sample[name] for row in rows], float)


def _frontier(by_temperature: Sequence[Sequence[Row]], has_runs: bool) -> Frontier:
    nats, entropy = (
        np.stack([_per_sample(rows, name) for rows in by_temperature], axis=1) for name in ("nats", "entropy")
    )
    return Frontier(nats=nats, entropy=entropy, has_runs=has_runs)


PAIRED = (
    Column(title="model", value=lambda each: each.model),
    Column(title="against", value=lambda each: each.against),
    Column(title="at", value=lambda each: each.where),
    Column(title="ratio of perplexities", value=lambda each: _told(each.plain)),
    Column(title="difference of entropies", value=lambda each: _told(each.entropy, 3)),
    Column(title="**frontier**: ratio at equal entropy", value=lambda each: _told(frontier_reading(each))),
    Column(title="at entropies", value=lambda each: _entropies(each.pair)),
)


def _told(reading: Reading, digits: int = 2) -> str:
    if math.isnan(reading.value):
        return "no shared entropies"
    return format(Interval(value=reading.value, low=reading.low, high=reading.high), f".{digits}f")


def _entropies(pair: Pair) -> str:
    if pair.entropy_low is None or pair.entropy_high is None:
        return ""
    outside = "" if pair.in_band else ", outside those of real text"
    return f"{pair.entropy_low:.2f} to {pair.entropy_high:.2f}{outside}"


def frontier_reading(each: Versus) -> Reading:
    """The ratio at equal entropy; no numbers if the lines share no entropies."""
    pair = each.pair
    if pair.ratio is None or pair.low is None or pair.high is None:
        return Reading(each.where, math.nan, math.nan, math.nan)
    return Reading(each.where, pair.ratio, pair.low, pair.high)


def pairs_part(compared: Sequence[Versus]) -> Part:
    """The table of pairs, and their readings by `model / against`."""
    readings: dict[str, list[Reading]] = {}
    frontier: dict[str, list[Reading]] = {}
    for each in compared:
        readings.setdefault(f"{each.model} / {each.against}", []).append(each.plain)
        frontier.setdefault(f"{each.model} / {each.against}", []).append(frontier_reading(each))
    return Part(text=markdown(compared, PAIRED).rstrip(), readings=readings, frontier=frontier)


def lines_table(found: Measured, table: Table) -> str:
    """Generative perplexity (entropy) at temperature 1, a line for each line, a column for each budget."""
    shown = [
        TableLine(line.name, "", {b: over_seeds(found[line.name, b, 1.0], GENERATIVE.name) for b in table.budgets})
        for line in table.lines
    ]
    columns = [Column(title="model", value=lambda line: line.name), *map(budget_column, table.budgets)]
    return markdown(shown, columns).rstrip()


def how_many(table: Table) -> str:
    """What a cell is made of, in words."""
    seeds = f"{table.num_seeds} seeds of " if table.num_seeds > 1 else ""
    span = (
        ". With several seeds a cell is their mean, from the lowest to the highest end of their intervals; they are "
        "seeds of training where a stage was trained several times, else of sampling. The picture shows the first"
        if table.num_seeds > 1
        else ""
    )
    frontiers = ", ".join(f"{each:g}" for each in table.temperatures)
    return (
        f"Generative perplexity (entropy) at temperature 1, {seeds}{table.num_samples} samples a cell{span}. Frontiers "
        f"are of the temperatures {frontiers}."
    )


def all_pairs(page: Page, found: Measured, table: Table) -> list[Versus]:
    """All pairs of a table at all its budgets."""
    return [
        versus(page, found, (name, budget, 1.0), (other, budget, 1.0), table.temperatures, f"{budget} blocks")
        for name, other in table.pairs
        for budget in table.budgets
    ]


def picture(page: Page, found: Measured, table: Table, name: str) -> str:
    """Quality against cost at temperature 1, of the first seed."""
    rows = [
        replace(found[line.name, budget, 1.0][0], model=line.name.replace("/", " of "))
        for line in table.lines
        for budget in table.budgets
    ]
    quality_against_cost(rows, GENERATIVE.name, GENERATIVE.title, page.folder / name, COUNTED)
    return f"![Generative perplexity against cost]({Path(name).name}.png)"


def compared_part(page: Page, tables: Sequence[Table], name: str, quotes: Sequence[str] = ()) -> Part:
    """The usual section: lines, a picture, pairs with the frontier beside them, and the paper's numbers."""
    found = measured(page, tables)
    whole = Part(text="")
    for index, table in enumerate(tables):
        text = f"{how_many(table)}\n\n{lines_table(found, table)}"
        if len(table.budgets) > 1:  # one budget makes no curve
            text += f"\n\n{picture(page, found, table, slug(name) + (f'-{index}' if index else ''))}"
        whole += Part(text=text) + pairs_part(all_pairs(page, found, table))
    return replace(whole, text="\n\n".join([whole.text.strip(), *(quoted(quote).rstrip() for quote in quotes)]))

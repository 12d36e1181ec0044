"""Sections that sweep how CoFRe is sampled: allocations, coefficients of reuse, steps and iterations."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import NamedTuple

import numpy as np

from fpmgm.budget import ALLOCATIONS
from fpmgm.evaluation.cells import GAMMAS_CHANGED, GAMMAS_MASKED
from fpmgm.evaluation.plots import COUNTED, heat_map, quality_against_cost
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.evaluation.text import ENTROPY, GENERATIVE
from fpmgm.experiments.parts import Part, Reading, Readings
from fpmgm.experiments.text_mini.compared import (
    Measured,
    Point,
    Versus,
    all_pairs,
    how_many,
    lines_table,
    measured,
    pairs_part,
    versus,
)
from fpmgm.experiments.text_mini.lines import REUSES, cofre, cost_of, staged
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.quoted import quoted
from fpmgm.experiments.text_mini.section import Line, Section, Table

BEST = "decreasing"
"""The paper's allocation."""


def allocation_tables(page: Page) -> tuple[Table, ...]:
    """A table of all allocations for each reuse, after L_CONS."""
    sizes, model = page.sizes, staged("FP-MDLM + L_CONS")
    return tuple(
        Table(
            lines=tuple(Line(f"{kind}, {words}", model, {"reuse": reuse, "allocation": kind}) for kind in ALLOCATIONS),
            budgets=sizes.pair,
            pairs=tuple((f"{BEST}, {words}", f"{kind}, {words}") for kind in ALLOCATIONS if kind != BEST),
            temperatures=sizes.temperatures,
            num_samples=sizes.few,
        )
        for reuse, words in REUSES.items()
    )


class Overall(NamedTuple):
    """An allocation over all budgets and kinds of reuse."""

    kind: str
    mean: float
    rank: float
    wins: str


def overall(found: Measured, tables: Sequence[Table]) -> list[Overall]:
    """Mean generative perplexity, mean rank and wins, the best mean first; a tie is a win of all that tie."""
    settings = []
    for table in tables:
        for budget in table.budgets:
            rows = [found[line.name, budget, 1.0][0].metrics[GENERATIVE.name].value for line in table.lines]
            settings.append(dict(zip(ALLOCATIONS, rows, strict=True)))
    lines = []
    for kind in ALLOCATIONS:
        ranks = [1 + sum(other < own[kind] for other in own.values()) for own in settings]
        wins = f"{ranks.count(1)} / {len(settings)}"
        lines.append(Overall(kind, mean(own[kind] for own in settings), mean(ranks), wins))
    return sorted(lines, key=lambda line: line.mean)


OVERALL = (
    Column(title="strategy", value=lambda line: line.kind),
    Column(title="mean generative perplexity", value=lambda line: line.mean, best="lowest"),
    Column(title="average rank", value=lambda line: line.rank, digits=2, best="lowest"),
    Column(title="wins", value=lambda line: line.wins),
)


def _allocations(page: Page) -> Part:
    tables = allocation_tables(page)
    found = measured(page, tables)
    lines = overall(found, tables)
    text = [
        f"{how_many(tables[0])} The means are over all budgets and kinds of reuse. All shapes but `fixed` are "
        "ours: the paper names them and gives no formula.",
        markdown(lines, OVERALL).rstrip(),
    ]
    part = Part(text="\n\n".join(text))
    compared: list[Versus] = []
    for (reuse, words), table in zip(REUSES.items(), tables, strict=True):
        rows = [
            replace(found[line.name, budget, 1.0][0], model=line.name)
            for line in table.lines
            for budget in table.budgets
        ]
        quality_against_cost(rows, GENERATIVE.name, GENERATIVE.title, page.folder / f"allocations-{reuse}", COUNTED)
        part += Part(text=f"![Allocations, {words}](allocations-{reuse}.png)\n\n{lines_table(found, table)}")
        compared += all_pairs(page, found, table)
    part += pairs_part(compared)
    return replace(
        part + Part(text=quoted("allocations").rstrip()),
        readings={**part.readings, BEST: _pooled(part.readings)},
        frontier={**part.frontier, BEST: _pooled(part.frontier)},
    )


def _pooled(readings: Readings) -> list[Reading]:
    """The decreasing allocation against each other one, over all budgets and kinds of reuse."""
    rivals = [kind for kind in ALLOCATIONS if kind != BEST]
    return [
        one
        for rival in rivals
        for one in _mean_ratio(rival, [own for key, own in readings.items() if f"/ {rival}, " in key])
    ]


def _mean_ratio(rival: str, groups: Sequence[Sequence[Reading]]) -> list[Reading]:
    """The geometric mean of all ratios; the error is that of a mean whose terms go up and down together.

    The settings share their random numbers, so their errors are not taken as independent: the ends of the interval are
    the geometric means of all ends.
    """
    flat = np.log([[each.value, each.low, each.high] for group in groups for each in group]).reshape(-1, 3)
    flat = flat[np.isfinite(flat).all(axis=1)]
    if not len(flat):
        return []
    value, low, high = np.exp(flat.mean(axis=0)).tolist()
    return [Reading(f"{rival}, the geometric mean over all settings", value, low, high)]


USUAL = ((0.75, 0.9), (0.2, 0.2))
"""The paper's choice, at masked and at changed positions."""


def _coefficients(masked: tuple[float, float], changed: tuple[float, float]) -> Line:
    name = f"masked {masked[0]:g} to {masked[1]:g}, changed {changed[0]:g} to {changed[1]:g}"
    return cofre(allocation="fixed", reuse_masked=masked, reuse_changed=changed)._replace(name=name)


def coefficient_tables(page: Page) -> tuple[Table, ...]:
    """The grids of the paper's two tables, each line compared with the coefficients that the paper chose."""
    sizes, usual = page.sizes, _coefficients(*USUAL)
    grids = [[_coefficients(*shares) for shares in product(*grid)] for grid in (GAMMAS_MASKED, GAMMAS_CHANGED)]
    return tuple(
        Table(
            lines=tuple({line.name: line for line in (usual, *grid)}.values()),
            budgets=sizes.one,
            pairs=tuple((line.name, usual.name) for line in grid if line.name != usual.name),
            temperatures=sizes.temperatures,
            num_samples=sizes.least,
        )
        for grid in grids
    )


def _both_sweeps(page: Page) -> Part:
    tables = coefficient_tables(page)
    found = measured(page, tables)
    part = Part(text=f"{how_many(tables[0])} Iterations are allocated evenly, as in the paper's two tables.")
    titles = ("### Masked positions", "### Changed positions")
    for title, table, quote in zip(titles, tables, ("coefficients-masked", "coefficients-changed"), strict=True):
        part += Part(text=f"{title}\n\n{lines_table(found, table)}") + pairs_part(all_pairs(page, found, table))
        part += Part(text=quoted(quote).rstrip())
    return part


def _grid_line(steps: int, iterations: int) -> Line:
    return cofre(steps=steps, allocation="fixed")._replace(name=f"{steps} steps of {iterations}")


def grid_tables(page: Page) -> tuple[Table, ...]:
    """A table for each number of steps and iterations, because each has a budget of its own."""
    sizes = page.sizes
    cost = cost_of(cofre().contestant)
    return tuple(
        Table(
            lines=(_grid_line(steps, iterations),),
            budgets=(steps * cost.step(iterations),),
            temperatures=sizes.temperatures,
            num_samples=sizes.least,
        )
        for steps in sizes.steps
        for iterations in sizes.iterations
    )


def _grid(page: Page) -> Part:
    tables = grid_tables(page)
    found = measured(page, tables)
    rows = [found[table.lines[0].name, table.budgets[0], 1.0][0] for table in tables]
    pictures = []
    for metric in (GENERATIVE, ENTROPY):
        titles = ("denoising steps", "solver iterations", metric.title)
        name = f"steps-iterations-{metric.name.split('_')[0]}"
        heat_map(
            rows, lambda row: row.sampling.steps, lambda row: row.iterations[0], metric.name, titles, page.folder / name
        )
        pictures.append(f"![{metric.title}]({name}.png)")
    points = [(table.lines[0].name, table.budgets[0], 1.0) for table in tables]
    compared = [
        versus(page, found, ours, theirs, tables[0].temperatures, f"{ours[1]} against {theirs[1]} blocks")
        for ours, theirs in near_budgets(points)
    ]
    words = (
        f"{how_many(tables[0])} Below, many steps of few iterations are compared with fewer steps of more iterations "
        "that cost as much or more."
    )
    part = Part(text="\n\n".join([words, *pictures])) + pairs_part(compared)
    every = [[reading for own in each.values() for reading in own] for each in (part.readings, part.frontier)]
    return replace(
        part, readings={**part.readings, "more steps": every[0]}, frontier={**part.frontier, "more steps": every[1]}
    )


def near_budgets(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """For each point, the nearest one with fewer steps that costs at least as much, and at most half as much again."""
    found = []
    for ours in points:
        steps = int(ours[0].split()[0])
        others = [
            theirs for theirs in points if int(theirs[0].split()[0]) < steps and ours[1] <= theirs[1] <= 1.5 * ours[1]
        ]
        if others:
            found.append((ours, min(others, key=lambda each: each[1])))
    return found


SECTIONS = (
    Section(
        name="steps-iterations",
        title="Denoising steps and solver iterations",
        of_paper="the heat maps of steps and iterations",
        run=_grid,
        tables=grid_tables,
    ),
    Section(
        name="allocations",
        title="How iterations are allocated",
        of_paper="the table and the figure of allocation strategies",
        run=_allocations,
        tables=allocation_tables,
    ),
    Section(
        name="coefficients",
        title="Coefficients of three-state reuse",
        of_paper="both tables of reuse coefficients",
        run=_both_sweeps,
        tables=coefficient_tables,
    ),
)

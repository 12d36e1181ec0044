"""Sections that train: kinds of L_CONS, its dynamics, network shapes, solver ranges, rates, and how long to train."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.analysis.plots import Snapshot, dynamics_plot
from fpmgm.checkpoint import load
from fpmgm.evaluation.held_out import HELD_OUT, OWN, data_for
from fpmgm.evaluation.side_by_side import VALIDATION_ITERS
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.dynamics import COLUMNS
from fpmgm.experiments.parts import Part, Reading
from fpmgm.experiments.report import configs_of
from fpmgm.experiments.text_mini.compared import (
    all_pairs,
    compared_part,
    frontier_reading,
    how_many,
    measured,
    pairs_part,
)
from fpmgm.experiments.text_mini.history import history, is_known
from fpmgm.experiments.text_mini.lines import (
    FP,
    MDLM,
    l_cons_choices,
    loss_types,
    plain,
    proxy_mdlm,
    rates,
    reusing,
    shapes,
    solver_ranges,
    staged,
    table_of,
    tenth_with_l_cons,
    tenths,
)
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.section import Line, Section, Table
from fpmgm.training.folder import SNAPSHOTS
from fpmgm.training.state import update_of


class Validated(NamedTuple):
    """A model's perplexity on held-out text, with its standard error."""

    name: str
    value: float
    error: float


VALIDATED = (
    Column(title="model", value=lambda each: each.name),
    Column(title="validation perplexity", value=lambda each: each.value, digits=2, best="lowest"),
    Column(title="standard error", value=lambda each: each.error, digits=2),
)


def validated(page: Page, contestants: Iterable[Contestant]) -> list[Validated]:
    """Validate the first model of each, once; what was not validated before is trained first."""
    work, missing = {}, []
    for each in contestants:
        made, num = page.models(each)[0], page.sizes.validation
        about = {**made.about, "sequences": num, "iterations": VALIDATION_ITERS}
        work[each.name] = (about, partial(_validation, made.model, num, page.device))
        if not page.knows("validation", about):
            missing.append(each)
    page.train(missing)
    found = page.kept_by_workers("validation", work)
    return [Validated(name, own["value"], own["error"]) for name, own in zip(work, found, strict=True)]


def validation_ratio(where: str, ours: Validated, theirs: Validated) -> Reading:
    """The ratio of two perplexities; both errors are added as if they were independent, so the interval is too wide."""
    ratio = ours.value / theirs.value
    spread = 1.96 * ratio * ((ours.error / ours.value) ** 2 + (theirs.error / theirs.value) ** 2) ** 0.5
    return Reading(where, ratio, ratio - spread, ratio + spread)


def _validation(model: str, num: int, device: str) -> dict[str, Any]:
    loaded = load(model, device=device)
    batch = data_for(loaded, OWN, HELD_OUT).measured(num).to(loaded.device)
    return vars(TextEvaluator().validate(loaded.denoiser, batch, num_iters=VALIDATION_ITERS))


def loss_tables(page: Page) -> tuple[Table, ...]:
    """Every loss without and with reuse, against the control that has as many updates and no loss."""
    control, *losses = loss_types(page)
    lines = [reusing(each, reuse) for reuse in ("none", "full") for each in (control, *losses)]
    pairs = [(line.name, f"{control.name}, {line.name.rpartition(', ')[2]}") for line in lines]
    others = tuple(pair for pair in pairs if pair[0] != pair[1])
    return (table_of(page, tuple(lines), others, page.sizes.one, page.sizes.least),)


def _losses(page: Page) -> Part:
    words = (
        f"Stages of {page.sizes.stage} updates from FP-MDLM with each kind of loss; `short stage, no loss` has the "
        "updates and not the loss. L_CONS from the first update on is compared with as many updates without it on the "
        "page of [frontiers](../frontier/from-start/README.md). The paper's large table of losses is of images; its "
        "small one of text is quoted."
    )
    return Part(text=words) + compared_part(page, loss_tables(page), "losses", ["losses"])


def choice_tables(page: Page) -> tuple[Table, ...]:
    """Positions and reduction of L_CONS."""
    first, *others = l_cons_choices(page)
    lines = tuple(reusing(each, "three-state") for each in (first, *others))
    pairs = tuple((line.name, lines[0].name) for line in lines[1:])
    return (table_of(page, lines, pairs, page.sizes.pair, page.sizes.least),)


def dynamics_tables(page: Page) -> tuple[Table, ...]:
    """The snapshots of the stage L_CONS, without reuse: those that were kept, or those that are planned."""
    stage = staged("FP-MDLM + L_CONS")
    folder, config = configs_of(stage, page.runs)[0]
    planned = range(0, config.updates + 1, config.snapshot_every or config.updates)
    updates = history(page, stage).snapshots if is_known(page, stage) else planned
    lines = tuple(reusing(_snapshot(stage, folder, update), "none") for update in updates)
    pairs = tuple((line.name, lines[0].name) for line in lines[1:])
    return (table_of(page, lines, pairs, page.sizes.one, page.sizes.least),)


def _snapshot(stage: Contestant, folder: Path, update: int) -> Contestant:
    """The model that a stage kept after an update."""
    init = str(folder / SNAPSHOTS / f"update-{update:08d}")
    return Contestant(name=f"update {update}", recipe=stage.recipe, is_base=True, start=stage, changes={"init": init})


def _dynamics(page: Page) -> Part:
    way = history(page, staged("FP-MDLM + L_CONS"))
    (table,) = dynamics_tables(page)
    found = measured(page, [table])
    snapshots = [
        Snapshot(update, row, way.validation.get(update))
        for budget in table.budgets
        for line in table.lines
        for row in found[line.name, budget, 1.0]
        for update in [update_of(Path(row.model))]
    ]
    dynamics_plot(snapshots, way.validation, way.limit, page.folder / "dynamics")
    text = (
        f"{how_many(table)} The first snapshot is the model that the stage starts from.\n\n"
        f"![Snapshots of the stage L_CONS](dynamics.png)\n\n{markdown(snapshots, COLUMNS).rstrip()}"
    )
    compared = all_pairs(page, found, table)
    last = [each for each in compared if each.model == table.lines[-1].name]
    part = Part(text=text) + pairs_part(compared)
    more = {"last entropy": [each.entropy for each in last], "last / first": [each.plain for each in last]}
    ratios = {"last / first": [frontier_reading(each) for each in last]}
    return replace(part, readings={**part.readings, **more}, frontier={**part.frontier, **ratios})


def duration_tables(page: Page) -> tuple[Table, ...]:
    """Base models after a tenth of the training, and after all of it."""
    deep, shallow = tenths(page)
    after = Line("CoFRe, a tenth", tenth_with_l_cons(page), {"reuse": "three-state"})
    lines = (plain(deep), plain(MDLM), reusing(shallow, "none"), reusing(FP, "none"), after)
    pairs = (
        ("MDLM", deep.name),
        ("FP-MDLM, no reuse", f"{shallow.name}, no reuse"),
        (after.name, f"{shallow.name}, no reuse"),
    )
    return (table_of(page, lines, pairs, page.sizes.pair, page.sizes.few),)


def shape_tables(page: Page) -> tuple[Table, ...]:
    """Samples of the shapes, beside a plain stack of as many updates."""
    deep = proxy_mdlm(page)
    lines = (plain(deep), *(reusing(each, "none") for each in shapes(page)))
    pairs = tuple((line.name, deep.name) for line in lines[1:])
    return (table_of(page, lines, pairs, page.sizes.one, page.sizes.least),)


def proxies(page: Page) -> tuple[Contestant, ...]:
    """All short runs from fresh weights whose validations are compared."""
    return (proxy_mdlm(page), *shapes(page), *solver_ranges(page), *rates(page))


def _shapes(page: Page) -> Part:
    updates = page.sizes.proxy
    found = validated(page, proxies(page))
    words = (
        f"Runs of {updates} updates with fresh weights, one seed each: the recipe of FP-MDLM with other blocks, other "
        "ranges of solver iterations, other learning rates and other clipping. `FP 1/1` is the recipe as it is, with "
        f"U(0,2) iterations without and U(2,4) with gradients. Validation takes {VALIDATION_ITERS} iterations."
    )
    few, more, _ = (each.name for each in solver_ranges(page))
    usual, twice = shapes(page)[0].name, rates(page)[1].name
    by_name = {each.name: each for each in found}
    readings = {
        "more iterations": [validation_ratio("", by_name[more], by_name[few])],
        "twice the rate": [validation_ratio("", by_name[twice], by_name[usual])],
    }
    part = Part(text=f"{words}\n\n{markdown(found, VALIDATED).rstrip()}", readings=readings)
    return part + compared_part(page, shape_tables(page), "shapes", ["shapes", "shapes-samples"])


SECTIONS = (
    Section(
        name="dynamics",
        title="The stage L_CONS, update by update",
        of_paper="the figure of checkpoint selection",
        run=_dynamics,
        tables=dynamics_tables,
    ),
    Section(
        name="l-cons-choices",
        title="Positions and reduction of L_CONS",
        of_paper="what its text leaves open: where the loss is measured, and how it is summed",
        run=lambda page: compared_part(page, choice_tables(page), "l-cons-choices"),
        tables=choice_tables,
    ),
    Section(
        name="losses",
        title="Kinds of consistency loss, with and without an EMA teacher",
        of_paper="both tables of loss types, and the control without a loss",
        run=_losses,
        tables=loss_tables,
    ),
    Section(
        name="duration",
        title="How long base models are trained",
        of_paper="the table of training stages",
        run=lambda page: compared_part(page, duration_tables(page), "duration", ["duration"]),
        tables=duration_tables,
    ),
    Section(
        name="shapes",
        title="FP 1/1 to 4/4, iteration ranges, learning rate and clipping",
        of_paper="the ablations on LM1B and on OWT of length 128",
        run=_shapes,
        tables=shape_tables,
        trained=proxies,
        minutes=2.0,
    ),
)

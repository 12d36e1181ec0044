"""The sections of the page: what each samples, trains and shows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fpmgm.checkpoint import load, weights_of
from fpmgm.evaluation.images import FRECHET
from fpmgm.evaluation.plots import quality_against_cost
from fpmgm.evaluation.rows import Row
from fpmgm.experiments.book import SectionOf
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.image_mini import lines
from fpmgm.experiments.image_mini.failing import FAILING, about, failures_part, places
from fpmgm.experiments.image_mini.lines import COFRE, DEEP, FP, REUSES, SHALLOW, USUAL, Line, Table, headline
from fpmgm.experiments.image_mini.page import Found, ImagePage
from fpmgm.experiments.image_mini.pairs import BUNDLED_PAIRS, PAIRS, pairs_part, unknown
from fpmgm.experiments.image_mini.quoted import quoted
from fpmgm.experiments.image_mini.speed import SPEED, is_timed, speed_part
from fpmgm.experiments.image_mini.tables import (
    COLUMNS,
    GRID_BUDGET,
    NUM_ROWS,
    digest,
    distances_table,
    draw,
    how_many,
    inception_table,
    real_pictures,
    real_table,
    scores_table,
    training_of,
    trainings_table,
    without_missing,
)
from fpmgm.experiments.parts import Part
from fpmgm.generation import generate
from fpmgm.recipes import RECIPES

PAIRED, PAIRED_BUNDLED = "pairs", "pairs-bundled"
TRAINING = "training"
"""What a run told of itself, as it is kept."""


@dataclass(frozen=True, kw_only=True)
class Section(SectionOf["ImagePage"]):
    """A part of the page on images."""

    tables: Callable[[ImagePage], tuple[Table, ...]] = lambda _: ()
    """What it samples and keeps as rows."""
    left: Callable[[ImagePage], float] = lambda _: 0.0
    """Minutes of one core for what else it would do if it were asked for by name, without training."""
    trained: Callable[[ImagePage], tuple[Contestant, ...]] = lambda _: ()
    """What it would train for that."""


def main_table(page: ImagePage) -> Table:
    """The headline, every kind of reuse."""
    stacks = tuple(headline(each, "none") for each in (DEEP, SHALLOW))
    fixed = tuple(headline(each, reuse) for each in (FP, COFRE) for reuse in REUSES)
    return Table((*stacks, *fixed), lines.BUDGETS, page.num_samples, page.cfg_weight)


def budgets_table(page: ImagePage) -> Table:
    """Stacks and the fixed point without reuse, at all budgets of the paper."""
    own = tuple(headline(each, "none") for each in (DEEP, FP, SHALLOW))
    return Table(own, lines.BUDGETS, page.num_samples, page.cfg_weight, lines.MORE_BUDGETS)


def shapes_table(page: ImagePage) -> Table:
    """Blocks before and after the fixed point, and stacks of as many updates."""
    stacks = tuple(Line(each, "none", is_late=True) for each in lines.PLAIN_SHORT)
    shapes = tuple(Line(each, "three-state") for each in lines.SHAPES)
    return Table((*stacks, *shapes), lines.BUDGETS, page.num_rest, 0.0)


def losses_table(page: ImagePage) -> Table:
    """Kinds of loss and of teacher, with and without reuse."""
    contestants = (lines.CONTROL, *lines.STAGES, replace(COFRE, num_seeds=1), *lines.FROM_START)
    own = tuple(Line(each, reuse) for each in contestants for reuse in REUSES[::2])
    return Table(own, lines.ABLATION_BUDGETS, page.num_rest, 0.0)


def inception_tables(page: ImagePage) -> tuple[Table, ...]:
    """Headline lines in their usual way of sampling, one seed."""
    own = tuple(Line(replace(each, num_seeds=1), USUAL[each.name]) for each in (DEEP, FP, COFRE))
    late = lines.INCEPTION_LATE
    budgets = tuple(each for each in lines.INCEPTION_BUDGETS if each not in late)
    table = Table(own, budgets, page.inception_samples, page.cfg_weight, late, has_inception=True)
    return (table,) if page.inception_samples else ()


def _part(page: ImagePage, name: str, table: Table, quotes: Sequence[str], between: str = "") -> Part:
    """A table of distances, one of scores, and the paper's tables beside them."""
    found = page.measured(name, table)
    table, missing = without_missing(name, table, found)
    blocks = [how_many(table), missing, distances_table(table, found), between, scores_table(table, found)]
    return Part(text="\n\n".join([*filter(None, blocks), *(quoted(each).rstrip() for each in quotes)]))


def _main(page: ImagePage) -> Part:
    table = main_table(page)
    shown = list(_pictured(page.measured("main", table), table))
    quality_against_cost(shown, FRECHET.name, "Fréchet distance", page.folder / "main")
    picture = "![Fréchet distance against cost, first seed](main.png)"
    return _part(page, "main", table, ["main", "components"], picture)


def _pictured(found: Found, table: Table) -> Iterator[Row]:
    """The first seed of every line, named by model and reuse."""
    for line in table.lines:
        shown = line.name.replace(" 2/2", "")  # a slash would be taken for that of a path
        for rows in found[line.key].values():
            yield replace(rows[0], model=shown if line.reuse == "none" else f"{shown}, {line.reuse}")


def _shapes(page: ImagePage) -> Part:
    part = _part(page, "shapes", shapes_table(page), ["shapes"])
    stacks = "Stacks have as many updates as the shapes, and are sampled without reuse, which they do not have."
    has_stacks = any(f"| {each.name} |" in part.text for each in lines.PLAIN_SHORT)
    return Part(text=stacks) + part if has_stacks else part


def _real(page: ImagePage) -> Part:
    data = RECIPES[FP.recipe].data
    known = {"data": asdict(data), "num_samples": page.num_samples, "judge": weights_of(page.judge)}

    def make() -> dict[str, Any]:
        page.train([FP])
        found = page.evaluator().references(load(page.models(FP)[0].model), page.num_samples)
        return {name: {each: asdict(value) for each, value in own.items()} for name, own in found.items()}

    words = "Held-out images that are not in the reference: what perfect samples, and perfect codes, would score."
    return Part(text=f"{words}\n\n{real_table(page.kept('real images', known, make))}")


def _inception(page: ImagePage) -> Part:
    tables = inception_tables(page)
    if not tables:
        return Part(text="Left out: --inception-samples is 0.")
    words = (
        f"{page.inception_samples} samples a cell against at most 2,500 held-out images, one seed. With so few samples "
        "FID is biased upwards: it is not comparable with values of other numbers of samples."
    )
    found = page.measured("inception", tables[0])
    table, missing = without_missing("inception", tables[0], found)
    return Part(text="\n\n".join(filter(None, [words, missing, inception_table(table, found)])))


def _training(page: ImagePage) -> Part:
    everyone = (DEEP, SHALLOW, FP, *lines.SHAPES, *lines.FROM_START, COFRE, lines.CONTROL, *lines.STAGES)
    late = [each for each in lines.PLAIN_SHORT if page.knows(TRAINING, page.models(each)[0].about)]
    found = {each.name: _trained(page, each) for each in (*everyone, *late)}
    words = (
        "Minutes of updates are those of a machine with neighbours; [What networks cost](#speed) compares speeds. Of "
        "several seeds, the first is shown."
    )
    return Part(text=f"{words}\n\n{trainings_table(found)}")


def _trained(page: ImagePage, contestant: Contestant) -> dict[str, Any]:
    """What the first run of a contestant told, kept because a machine that did not train it has no run folder."""

    def make() -> dict[str, Any]:
        page.train([replace(contestant, num_seeds=1)])
        return training_of(next(contestant.folders(page.runs))[1])

    found: dict[str, Any] = page.kept(TRAINING, page.models(contestant)[0].about, make)
    return found


def _samples(page: ImagePage) -> Part:
    """Grids of samples, the first indices of seed 0, a class a column, beside real images."""
    num = COLUMNS * NUM_ROWS
    about = {"data": asdict(RECIPES[FP.recipe].data), "num": num}
    _kept_picture(page, "real.png", about, lambda: {"pictures": real_pictures(_first(page, FP), num)})
    blocks = ["A class a column, the first samples of seed 0; real images first.", "![Real held-out images](real.png)"]
    for index, contestant in enumerate((DEEP, FP, COFRE)):
        found = _grid(page, contestant, f"samples-{index}.png", num)
        blocks.append(f"{contestant.name}, {found['block_evals']} block evaluations:")
        blocks.append(f"![Samples of {contestant.name}](samples-{index}.png)")
    return Part(text="\n\n".join(blocks))


def _first(page: ImagePage, contestant: Contestant) -> Any:
    page.train([replace(contestant, num_seeds=1)])
    return load(page.models(contestant)[0].model, device=page.device)


def _grid(page: ImagePage, contestant: Contestant, file: str, num: int) -> dict[str, Any]:
    line = Line(contestant, USUAL[contestant.name])
    about = page.about(line, budget=GRID_BUDGET, seed=page.seed, cfg_weight=page.cfg_weight, num=num)

    def make() -> dict[str, Any]:
        how = page.sampling(GRID_BUDGET, line.reuse, 0)
        out = generate(_first(page, contestant), num_samples=num, **vars(how))
        return {"pictures": out.shown, "block_evals": out.block_evals}

    return _kept_picture(page, file, about, make)


def _kept_picture(
    page: ImagePage, name: str, about: dict[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """A grid of pictures beside the page, drawn again only if the file is gone or another."""
    file = page.folder / name

    def drawn() -> dict[str, Any]:
        made = make()
        page.folder.mkdir(parents=True, exist_ok=True)
        return {"file": draw(file, made.pop("pictures")), **made}

    found: dict[str, Any] = page.kept("grid", about, drawn, lambda kept: kept["file"] == digest(file))
    return found


PAIR_MINUTES, SPEED_MINUTES = 2.0, 6.0
"""Of one core: a line of a pair at all budgets with 300 samples; all timings with 20 rounds."""


def _pairs(name: str, title: str, of_paper: str, pairs: tuple[tuple[Line, Line], ...]) -> Section:
    def missing(page: ImagePage) -> dict[str, Line]:
        return {line.words: line for pair in unknown(page, pairs) for line in pair}

    return Section(
        name=name,
        title=title,
        of_paper=of_paper,
        run=lambda page: pairs_part(page, name, pairs),
        left=lambda page: PAIR_MINUTES * len(missing(page)) * page.num_samples / 300,
        trained=lambda page: tuple(line.contestant for line in missing(page).values()),
    )


def _failures_left(page: ImagePage) -> float:
    known = [page.knows(FAILING, about(page, line, budget)) for line, budget in places()]
    return PAIR_MINUTES / 3 * known.count(False) / 2 * page.num_samples / 300


SECTIONS = (
    Section(
        name="main",
        title="Networks, reuse and L_CONS at equal budgets",
        of_paper="the main table (right half), and the component ablation for FP-MaskGIT",
        run=_main,
        tables=lambda page: (main_table(page),),
    ),
    Section(
        name="budgets",
        title="Deep stack, fixed point and half the stack, from low to high budgets",
        of_paper="the table of MaskGIT-Large, FP-MaskGIT and MaskGIT-12 across budgets",
        run=lambda page: _part(page, "budgets", budgets_table(page), ["budgets"]),
        tables=lambda page: (budgets_table(page),),
    ),
    _pairs(PAIRED, "Differences of headline lines, in pairs", "", PAIRS),
    _pairs(PAIRED_BUNDLED, "The same of bundled models", "", BUNDLED_PAIRS),
    Section(
        name="shapes",
        title="Blocks before and after the fixed point",
        of_paper="the architecture ablation for FP-MaskGIT",
        run=_shapes,
        tables=lambda page: (shapes_table(page),),
    ),
    Section(
        name="losses",
        title="Kinds of consistency loss",
        of_paper="the ablation on the consistency loss type for FP-MaskGIT",
        run=lambda page: _part(page, "losses", losses_table(page), ["losses"]),
        tables=lambda page: (losses_table(page),),
    ),
    Section(name="real", title="Real images", run=_real),
    Section(name="inception", title="FID by Inception", run=_inception, tables=inception_tables),
    Section(name="training", title="What training took", of_paper="the heads of its tables", run=_training),
    Section(
        name=SPEED,
        title="What networks cost",
        of_paper="the costs in the heads of its tables, and its latency",
        run=speed_part,
        left=lambda page: 0.0 if is_timed(page) else SPEED_MINUTES,
    ),
    Section(name=FAILING, title="Failure modes of samples", run=failures_part, left=_failures_left),
    Section(name="samples", title="Samples, uncurated", of_paper="the figure of generated samples", run=_samples),
)

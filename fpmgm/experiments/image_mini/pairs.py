"""Lines compared in pairs: sample i of both has the same random numbers and the same class."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from fpmgm.checkpoint import weights_of
from fpmgm.evaluation.frechet import Gaussian, frechet_difference
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.image_mini.lines import BUDGETS, BUNDLED, COFRE, DEEP, FP, SHALLOW, Line
from fpmgm.experiments.image_mini.page import ImagePage
from fpmgm.experiments.image_mini.tables import NOT_MEASURED, not_here
from fpmgm.experiments.parts import Part, Reading

PAIRED = "frechet pair"
"""What these are kept as."""
_DEEP, _SHALLOW, _FREE, _FP = (
    Line(DEEP, "none"),
    Line(SHALLOW, "none"),
    Line(FP, "none"),
    Line(FP, "three-state"),
)
_COFRE = Line(replace(COFRE, num_seeds=1), "three-state")
PAIRS = ((_FP, _DEEP), (_FP, _SHALLOW), (_FP, _FREE), (_COFRE, _FP))
"""(Line, the line that it is compared with), of runs."""
_STACK, _STAGE = BUNDLED
BUNDLED_PAIRS = (
    (Line(_STAGE, "three-state"), Line(_STACK, "none")),
    (Line(_STAGE, "none"), Line(_STACK, "none")),
    (Line(_STAGE, "three-state"), Line(_STAGE, "none")),
    (Line(_STAGE, "three-state"), Line(_STAGE, "full")),
)
"""The same of models that are there without training."""
Pair = tuple[Line, Line]


class Compared(NamedTuple):
    """Two lines, and the differences of their distances by budget; none where nobody has measured them."""

    ours: Line
    theirs: Line
    differences: dict[int, Interval | None]

    @property
    def readings(self) -> list[Reading]:
        """What was measured, as claims read it."""
        found = ((budget, each) for budget, each in self.differences.items() if each)
        return [Reading(f"{budget} blocks", each.value, each.low, each.high) for budget, each in found]


def _at(budget: int) -> Column:
    return Column(title=f"{budget} blocks", value=lambda each: each.differences[budget] or NOT_MEASURED, digits=2)


COLUMNS = (
    Column(title="line", value=lambda each: each.ours.words),
    Column(title="against", value=lambda each: each.theirs.words),
)
WORDS = (
    "The difference of two Fréchet distances, that of the line less that of the other: below 0, the line is nearer to "
    "real images. Both lines have the same random numbers and classes, sample by sample, and the interval (95 %) is a "
    "paired bootstrap over samples within each class. A difference is told from 0 only if its interval leaves 0 out. "
    "It is of one run of each network."
)


def compared(page: ImagePage, section: str, pairs: Sequence[Pair]) -> list[Compared]:
    """All pairs at all budgets: what was measured before, and the rest if the section was asked for by name."""
    if section in page.asked:
        page.train(line.contestant for pair in unknown(page, pairs) for line in pair)
    found = {budget: [_difference(page, section, pair, budget) for pair in pairs] for budget in BUDGETS}
    return [Compared(*pair, {budget: own[index] for budget, own in found.items()}) for index, pair in enumerate(pairs)]


def unknown(page: ImagePage, pairs: Sequence[Pair]) -> Iterator[Pair]:
    """The pairs that nobody has measured at every budget."""
    return (pair for pair in pairs if not all(page.knows(PAIRED, _about(page, pair, each)) for each in BUDGETS))


def _about(page: ImagePage, pair: Pair, budget: int) -> dict[str, Any]:
    ours, theirs = (page.about(line) for line in pair)
    sampled = {"budget": budget, "seed": page.seed, "cfg_weight": page.cfg_weight, "num_samples": page.num_samples}
    return {"ours": ours, "theirs": theirs, **sampled, "judge": weights_of(page.judge)}


def _difference(page: ImagePage, section: str, pair: Pair, budget: int) -> Interval | None:
    about = _about(page, pair, budget)
    if section not in page.asked and not page.knows(PAIRED, about):
        return None

    def make() -> dict[str, Any]:
        ours, theirs = (page.seen(line, budget) for line in pair)
        real = Gaussian.of(page.seen_real(pair[1]).look.features)
        return asdict(frechet_difference(ours.look.features, theirs.look.features, real, groups=ours.labels))

    return Interval(**page.kept(PAIRED, about, make))


def pairs_part(page: ImagePage, section: str, pairs: Sequence[Pair]) -> Part:
    """The table of pairs, and their readings."""
    found = compared(page, section, pairs)
    if not any(each.readings for each in found):
        return Part(text=not_here(section))
    readings = {f"{each.ours.words} - {each.theirs.words}": each.readings for each in found if each.readings}
    words = f"{WORDS} {page.num_samples} samples, guidance of weight {page.cfg_weight:g}."
    return Part(text=f"{words}\n\n{markdown(found, [*COLUMNS, *map(_at, BUDGETS)]).rstrip()}", readings=readings)

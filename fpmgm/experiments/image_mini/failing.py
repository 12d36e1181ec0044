"""Failure modes of samples, counted."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from fpmgm.checkpoint import weights_of
from fpmgm.evaluation.image_failures import Failures, failures, near
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.image_mini.lines import BUNDLED, Line
from fpmgm.experiments.image_mini.page import ImagePage
from fpmgm.experiments.image_mini.tables import NOT_MEASURED, not_here
from fpmgm.experiments.parts import Part

FAILING = "failures"
"""The section, and what its counts are kept as."""
BUDGETS = (24, 96)
LINES = (Line(BUNDLED[0], "none"), Line(BUNDLED[1], "three-state"))
WORDS = (
    "Counts of samples of the bundled models. Wrong: the classifier takes the sample for another class than the one "
    "that was asked for. Unsure: it gives no class one half. Near-duplicate: another sample lies nearer, in the "
    "features of the classifier, than the nearest 1 % of as many real images lie to theirs. The classifier errs "
    "too: see the line of real images."
)


class Counted(NamedTuple):
    """The counts of some images; none if nobody has counted."""

    name: str
    budget: int | None
    counts: Failures | None


def _told(name: str) -> Column:
    def value(each: Counted) -> str:
        if each.counts is None:
            return NOT_MEASURED
        number = getattr(each.counts, name)
        return f"{number} ({number / each.counts.num:.1%})"

    return Column(title=TITLES[name], value=value)


TITLES = {"wrong": "wrong label", "unsure": "unsure", "doubles": "near-duplicate", "any": "any of them"}
COLUMNS = (
    Column(title="images", value=lambda each: each.name),
    Column(title="blocks", value=lambda each: each.budget),
    Column(title="number", value=lambda each: each.counts.num if each.counts else None),
    *map(_told, TITLES),
)


def failures_part(page: ImagePage) -> Part:
    """The counts of each line at each budget, and of real images."""
    found = [Counted("real images", None, _counts(page, None, 0))]
    found += [Counted(line.words, budget, _counts(page, line, budget)) for line, budget in places()]
    if not any(each.counts for each in found):
        return Part(text=not_here(FAILING))
    return Part(text=f"{WORDS}\n\n{markdown(found, COLUMNS).rstrip()}")


def places() -> Iterator[tuple[Line, int]]:
    """All that is sampled."""
    return ((line, budget) for line in LINES for budget in BUDGETS)


def about(page: ImagePage, line: Line | None, budget: int) -> dict[str, Any]:
    """What the counts of a line are known by; without a line, those of real images."""
    common = {"num_samples": page.num_samples, "judge": weights_of(page.judge)}
    if line is None:
        return {"real": True, **common}
    return {**page.about(line), "budget": budget, "seed": page.seed, "cfg_weight": page.cfg_weight, **common}


def _counts(page: ImagePage, line: Line | None, budget: int) -> Failures | None:
    key = about(page, line, budget)
    if FAILING not in page.asked and not page.knows(FAILING, key):
        return None

    def make() -> dict[str, int]:
        real = page.seen_real(LINES[0], page.num_samples, is_reference=False)
        seen = page.seen(line, budget) if line else real
        return asdict(failures(seen.look, seen.labels, near(real.look.features)))

    return Failures(**page.kept(FAILING, key, make))

"""What the page is made of: sections, and the lines of their tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fpmgm.experiments.book import SectionOf
from fpmgm.experiments.contestants import Contestant
from fpmgm.transitions import TransitionName

if TYPE_CHECKING:
    from fpmgm.experiments.text_mini.page import Page


ORDER: TransitionName = "ancestral"
"""How tokens are revealed on this page, whatever its models have among their own settings: as in the paper."""


class Line(NamedTuple):
    """A line of a table: models of a contestant, and how they are sampled."""

    name: str
    contestant: Contestant
    settings: Mapping[str, Any]
    """Fields of `Sampling`."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Lines at some budgets, and which of them are compared."""

    lines: tuple[Line, ...]
    budgets: tuple[int, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    """(line, the line that it is compared with)."""
    temperatures: tuple[float, ...]
    """Those of the frontiers; 1 is one of them."""
    num_samples: int
    """Of a seed."""
    num_seeds: int = 1

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """Whose models are sampled, each once."""
        return tuple({line.contestant.name: line.contestant for line in self.lines}.values())


@dataclass(frozen=True, kw_only=True)
class Section(SectionOf["Page"]):
    """A part of the page on text."""

    tables: Callable[["Page"], tuple[Table, ...]] = lambda _: ()
    """What it samples, as far as that is made of tables of lines."""
    trained: Callable[["Page"], tuple[Contestant, ...]] = lambda _: ()
    """What it trains besides the contestants of its tables."""

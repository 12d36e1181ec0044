"""What a section of a page gives: its Markdown, numbers that claims are decided by, and where they come from."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Reading(NamedTuple):
    """A number that a claim can be decided by, with its interval."""

    where: str
    """Such as the budget."""
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"no shared entropies ({self.where})"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]{f' ({self.where})' if self.where else ''}"


class Source(NamedTuple):
    """Where a number comes from."""

    precision: str
    commit: str
    hardware: str


Readings = Mapping[str, Sequence[Reading]]
"""By what was compared, such as `FP-MDLM / MDLM`."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a section gives: its Markdown, and readings for the claims."""

    text: str
    readings: Readings = field(default_factory=dict)
    """Of ratios and the like, as they were measured."""
    frontier: Readings = field(default_factory=dict)
    """The same comparisons at equal entropy."""
    sources: tuple[Source, ...] = ()
    """Where its numbers come from; parts of before 2026-11-18 do not tell."""

    @property
    def measured(self) -> str:
        """The same as a line in small print; empty if it is not known."""
        told = "; ".join(f"{each.precision}, commit {each.commit}, {each.hardware}" for each in self.sources)
        return f"<sub>Measured in {told}.</sub>" if told else ""

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        return asdict(self)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Part":
        """The part that JSON holds."""

        def readings(name: str) -> Readings:
            return {key: tuple(Reading(*each) for each in own) for key, own in found[name].items()}

        sources = tuple(Source(*each) for each in found.get("sources", ()))
        return cls(text=found["text"], readings=readings("readings"), frontier=readings("frontier"), sources=sources)

    def __add__(self, other: "Part") -> "Part":
        return Part(
            text=f"{self.text}\n\n{other.text}",
            readings={**self.readings, **other.readings},
            frontier={**self.frontier, **other.frontier},
        )

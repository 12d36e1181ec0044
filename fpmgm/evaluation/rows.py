"""Rows of results: what was measured of a model with one way of sampling, as a line of JSON in a file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fpmgm.evaluation.intervals import Interval
from fpmgm.files import append_line, flush
from fpmgm.generation import Sampling
from fpmgm.locks import claim
from fpmgm.schema import field_value, parse_object, read_object, read_text


@dataclass(frozen=True, kw_only=True)
class Match:
    """What was turned until an entropy was met, and whether it was."""

    knob: str
    entropy: float
    is_met: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How the samples of a row were measured, and where."""

    judge: str
    """Empty if nobody judged."""
    judged_by: str = ""
    """What of the samples was judged: their ids or their text."""
    convention: str = ""
    """Which tokens the judge scored: `paper` or `published`; empty if nobody judged texts. Rows of before there was a
    choice are read as `paper`."""
    num_samples: int
    length: int
    """Tokens of a sample; 0 if the file does not tell."""
    device: str = ""
    """Empty in files of before 2026-11-17, which do not tell."""
    dtype: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Version, commit and hardware."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of a cell: quality with its intervals, and what it cost."""

    key: str
    """What the row depends on, as a hash."""
    model: str
    weights: str
    sampling: Sampling
    """With steps and allocation as they were."""
    iterations: tuple[int, ...] = ()
    """Of the solver, by step. Files of before 2026-11-16 do not tell them."""
    block_evals: int
    multiply_adds: float
    """Of a sequence."""
    seconds: float
    """Of all samples."""
    metrics: dict[str, Interval]
    protocol: Measured
    matched: Match | None = None
    per_sample: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Numbers of each sample by name, for paired comparisons; empty if the sweep did not keep them."""

    @property
    def budget(self) -> int:
        return self.sampling.budget


def as_json(row: Row) -> dict[str, Any]:
    """A row as its line has it."""
    found = asdict(row)
    protocol = found.pop("protocol")
    provenance = protocol.pop("provenance")
    if found["matched"] is None:
        del found["matched"]
    if not found["per_sample"]:
        del found["per_sample"]
    return {**found, "protocol": {**protocol, **provenance}}


def row_of(found: Mapping[str, Any]) -> Row:
    """The row that a line holds; a ValueError if it lacks something or has it of the wrong kind."""
    protocol = field_value(found.get("protocol"), dict, "protocol")
    matched = field_value(found["matched"], dict, "matched") if "matched" in found else None
    return Row(
        key=field_value(found.get("key"), str, "key"),
        model=field_value(found.get("model"), str, "model"),
        weights=field_value(found.get("weights", ""), str, "weights"),
        sampling=read_object(Sampling, field_value(found.get("sampling"), dict, "sampling"), "sampling"),
        iterations=field_value(found.get("iterations", ()), tuple[int, ...], "iterations"),
        block_evals=field_value(found.get("block_evals"), int, "block_evals"),
        multiply_adds=field_value(found.get("multiply_adds"), float, "multiply_adds"),
        seconds=field_value(found.get("seconds"), float, "seconds"),
        metrics=dict(_intervals(field_value(found.get("metrics"), dict, "metrics"))),
        protocol=_measured(protocol, _usual_convention(found["metrics"])),
        matched=None if matched is None else read_object(Match, matched, "matched"),
        per_sample={
            name: field_value(values, tuple[float | None, ...], f"per_sample.{name}")
            for name, values in field_value(found.get("per_sample", {}), dict, "per_sample").items()
        },
    )


def _intervals(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Interval]]:
    field_value(metrics.get("entropy"), dict, "metrics.entropy")
    for name, metric in metrics.items():
        for part in ("value", "low", "high"):
            if not (isinstance(metric, dict) and type(metric.get(part)) in (int, float)):  # nan may be measured
                raise ValueError(f"metrics.{name} has no {part}")
        yield name, Interval(value=metric["value"], low=metric["low"], high=metric["high"])


def _usual_convention(metrics: Mapping[str, Any]) -> str:
    """That of a row that does not tell its own."""
    return "paper" if "perplexity_per_sample" in metrics else ""


def _measured(protocol: Mapping[str, Any], convention: str) -> Measured:
    usual = {"device": "", "dtype": "", "judged_by": "", "convention": convention}
    texts = {name: field_value(protocol.get(name, value), str, f"protocol.{name}") for name, value in usual.items()}
    own = {"judge", "num_samples", "length", *texts}
    return Measured(
        judge=field_value(protocol.get("judge"), str, "protocol.judge"),
        num_samples=field_value(protocol.get("num_samples"), int, "protocol.num_samples"),
        length=field_value(protocol.get("length", 0), int, "protocol.length"),
        provenance={name: value for name, value in protocol.items() if name not in own},
        **texts,
    )


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line; a last line that a kill cut off is left out."""
    if not file.exists():
        return []
    *lines, _torn = read_text(file).split("\n")  # what follows the last line end, nothing as a rule
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse_object(line, f"{file} line {number}", is_strict=False))
        except ValueError as error:
            raise ValueError(f"{error}; remove that line and what it held is measured again") from error
    return found


def append(file: Path, found: Mapping[str, Any]) -> None:
    """Add a JSON object as a whole line that survives a power cut."""
    with claim(file):
        append_line(file, json.dumps(found))
        flush(file)


def read_rows(file: Path) -> list[Row]:
    """The whole rows of a results file; a ValueError that names the line of what is no row."""
    rows = []
    for number, line in enumerate(read_lines(file), 1):
        try:
            rows.append(row_of(line))
        except ValueError as error:
            raise ValueError(
                f"{file} line {number} is no row of a sweep: {error}; remove it and its cell is measured again"
            ) from error
    return rows


def append_row(file: Path, row: Row) -> Row:
    """Add a row to a results file; returns it."""
    append(file, as_json(row))
    return row

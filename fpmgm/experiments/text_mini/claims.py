"""The paper's claims on text, and whether the page shows them: decided by a rule, not by a person.

The rule: a claim names readings of a section, such as ratios of paired samples at some budgets, and the range that it
says they lie in. It is `shown` if the interval (95 %) of every one of these readings lies within that range. It is
`not shown` if any does not. It is `not tried` if there are no readings. Intervals are not widened for the number of
readings: a claim over many budgets is the harder to show.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.parts import Part, Reading, Readings

SHOWN, NOT_SHOWN, NOT_TRIED = "shown", "not shown", "not tried"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper, and what decides it."""

    words: str
    said: str
    """The paper's numbers."""
    section: str
    reading: str
    """The name of the readings within the section."""
    low: float = -math.inf
    high: float = 1.0
    """All intervals must lie between these; as they are, a ratio must lie below 1."""
    since: int = 0
    until: int | None = None
    """Which of the readings the claim is about, in the order of the budgets, as in readings[since:until]."""
    has_frontier: bool = True
    """Whether it compares generative perplexities, and so can be read at equal entropy."""


class Verdict(NamedTuple):
    """Whether readings show a claim, and the one that decides."""

    word: str
    deciding: Reading | None
    """That which is least in favour."""

    def __str__(self) -> str:
        return self.word if self.deciding is None else f"{self.word}: {self.deciding}"


def verdict(claim: Claim, readings: Sequence[Reading]) -> Verdict:
    """The rule of this file, for readings as they were measured or for those at equal entropy."""
    about = readings[claim.since : claim.until]
    if not about:
        return Verdict(NOT_TRIED, None)
    deciding = min(about, key=lambda each: _room(claim, each))
    is_shown = _room(claim, deciding) > 0
    return Verdict(SHOWN if is_shown else NOT_SHOWN, deciding)


def _room(claim: Claim, reading: Reading) -> float:
    """How far the interval stays within the range of the claim; below 0 if it leaves it."""
    if any(map(math.isnan, reading[1:])):
        return -math.inf
    return min(reading.low - claim.low, claim.high - reading.high)


CLAIMS = (
    Claim(
        words="CoFRe has a lower generative perplexity than MDLM + SDTT at every budget",
        said="193.1 to 101.8 at 96, 47.0 to 37.8 at 768",
        section="main",
        reading="CoFRe / MDLM + SDTT",
    ),
    Claim(
        words="CoFRe has a lower generative perplexity than MDLM at every budget",
        said="830.8 to 101.8 at 96, 143.9 to 37.8 at 768",
        section="main",
        reading="CoFRe / MDLM",
    ),
    Claim(
        words="FP-MDLM has fewer parameters than MDLM",
        said="0.612",
        section="cost",
        reading="parameters",
        has_frontier=False,
    ),
    Claim(
        words="An update of FP-MDLM is faster",
        said="0.885",
        section="cost",
        reading="seconds of an update",
        has_frontier=False,
    ),
    Claim(
        words="An update of FP-MDLM takes less memory",
        said="0.831",
        section="cost",
        reading="peak memory of an update",
        has_frontier=False,
    ),
    Claim(
        words="FP-MDLM, without reuse, is better than MDLM at the two lowest budgets",
        said="830.8 to 375.6 at 96, 343.3 to 273.3 at 192",
        section="plain",
        reading="FP-MDLM, no reuse / MDLM",
        until=2,
    ),
    Claim(
        words="MDLM is better than FP-MDLM from the third budget on",
        said="196.8 and 215.2 at 384, 112.7 and 155.8 at 3072",
        section="plain",
        reading="FP-MDLM, no reuse / MDLM",
        low=1.0,
        high=math.inf,
        since=2,
    ),
    Claim(
        words="FP-MDLM has a higher validation perplexity than MDLM",
        said="23.07 and 27.45",
        section="validation",
        reading="FP-MDLM / MDLM",
        low=1.0,
        high=math.inf,
        has_frontier=False,
    ),
    Claim(
        words="L_CONS improves FP-MDLM at every budget, without reuse",
        said="375.6 to 104.2 at 96, 179.7 to 41.7 at 768",
        section="components",
        reading="FP-MDLM + L_CONS, no reuse / FP-MDLM, no reuse",
    ),
    Claim(
        words="On the base model, three-state reuse is better than full reuse at the two lowest budgets",
        said="516.7 to 454.1 at 96, 253.2 to 249.3 at 192",
        section="reuse",
        reading="FP-MDLM, three-state / FP-MDLM, full reuse",
        until=2,
    ),
    Claim(
        words="With L_CONS, three-state reuse is better than no reuse at every budget",
        said="104.2 to 101.8 at 96, 41.7 to 37.8 at 768",
        section="reuse",
        reading="FP-MDLM + L_CONS, three-state / FP-MDLM + L_CONS, no reuse",
    ),
    Claim(
        words="With L_CONS, full reuse is better than no reuse from the second budget on",
        said="70.3 to 68.5 at 192, 41.7 to 37.6 at 768",
        section="reuse",
        reading="FP-MDLM + L_CONS, full reuse / FP-MDLM + L_CONS, no reuse",
        since=1,
    ),
    Claim(
        words="With L_CONS, three-state reuse is better than full reuse at all budgets but the highest",
        said="117.6 to 101.8 at 96, 50.2 to 48.8 at 384",
        section="reuse",
        reading="FP-MDLM + L_CONS, three-state / FP-MDLM + L_CONS, full reuse",
        until=-1,
    ),
    Claim(
        words="The adapted FP-MDLM is better than the base at every budget, without reuse",
        said="375.6 to 296.8 at 96, 179.7 to 149.6 at 768",
        section="adapted",
        reading="adapted FP-MDLM, no reuse / FP-MDLM, no reuse",
    ),
    Claim(
        words="After adaptation, three-state reuse is better than no reuse from the second budget on",
        said="204.8 to 192.2 at 192, 149.6 to 131.3 at 768",
        section="reuse",
        reading="adapted FP-MDLM, three-state / adapted FP-MDLM, no reuse",
        since=1,
    ),
    Claim(
        words="After adaptation, full reuse is better than no reuse from the second budget on",
        said="204.8 to 201.5 at 192, 149.6 to 131.8 at 768",
        section="reuse",
        reading="adapted FP-MDLM, full reuse / adapted FP-MDLM, no reuse",
        since=1,
    ),
    Claim(
        words="Adaptation is better with the layers of the source, without reuse",
        said="296.8 to 276.0 at 96, 149.6 to 139.0 at 768",
        section="initialised",
        reading="adapted FP-MDLM, no reuse / adapted, fresh weights, no reuse",
    ),
    Claim(
        words="Adaptation is better with the layers of the source, with three-state reuse",
        said="298.6 to 286.4 at 96, 131.3 to 126.9 at 768",
        section="initialised",
        reading="adapted FP-MDLM, three-state / adapted, fresh weights, three-state",
    ),
    Claim(
        words="The loss of adaptation is lower with these layers, throughout",
        said="a figure",
        section="initialised",
        reading="loss",
        high=0.0,
        has_frontier=False,
    ),
    Claim(
        words="L_CONS improves MDLM at every budget",
        said="830.8 to 621.1 at 96, 143.9 to 102.7 at 768",
        section="mdlm-stages",
        reading="MDLM + L_CONS / MDLM",
    ),
    Claim(
        words="SDTT improves MDLM more than L_CONS does",
        said="621.1 to 193.1 at 96, 102.7 to 47.0 at 768",
        section="mdlm-stages",
        reading="MDLM + SDTT / MDLM + L_CONS",
    ),
    Claim(
        words="IDLM (here: MDLM + matching) has a lower generative perplexity than CoFRe",
        said="101.8 to 69.2 at 96, 37.8 to 11.3 at 768",
        section="other-methods",
        reading="MDLM + matching / CoFRe",
    ),
    Claim(
        words="The nucleus lowers the generative perplexity of CoFRe",
        said="101.8 to 39.5 at 96, 37.8 to 28.1 at 768",
        section="nucleus",
        reading="CoFRe, top-p 0.9 / CoFRe",
    ),
    Claim(
        words="With the nucleus, CoFRe has a lower generative perplexity than MDLM",
        said="293.0 to 39.5 at 96, 51.2 to 28.1 at 768",
        section="nucleus",
        reading="CoFRe, top-p 0.9 / MDLM, top-p 0.9",
    ),
    Claim(
        words="CoFRe has a higher MAUVE than MDLM at every budget",
        said="0.0106 to 0.0138 at 96",
        section="mauve",
        reading="CoFRe - MDLM",
        low=0.0,
        high=math.inf,
        has_frontier=False,
    ),
    Claim(
        words="More iterations early (decreasing) is better than each other allocation, on average",
        said="64.65; the next is fixed with 65.56",
        section="allocations",
        reading="decreasing",
    ),
    Claim(
        words="More steps are worth more than more iterations of fewer steps",
        said="heat maps",
        section="steps-iterations",
        reading="more steps",
    ),
    Claim(
        words="CoFRe is slower than MDLM + SDTT at equal budget, by at most half",
        said="1.45 at 96, 1.12 at 768",
        section="latency",
        reading="CoFRe / MDLM + SDTT",
        low=1.0,
        high=1.5,
        has_frontier=False,
    ),
    Claim(
        words="A base model after a tenth of its training samples as well as after all of it, within 10 % (FP-MDLM)",
        said="379.5 and 375.6 at 96, 180.3 and 179.7 at 768",
        section="duration",
        reading="FP-MDLM, no reuse / FP-MDLM, a tenth, no reuse",
        low=0.9,
        high=1.1,
    ),
    Claim(
        words="L_CONS with three-state reuse improves a base model of a tenth of the training too",
        said="379.5 to 96.8 at 96, 180.3 to 37.7 at 768",
        section="duration",
        reading="CoFRe, a tenth / FP-MDLM, a tenth, no reuse",
    ),
    Claim(
        words="L_CONS of mean squared distances is better than as many updates without a loss, with reuse",
        said="425.3 to 385.6 at 96, 253.1 to 226.7 at 384",
        section="losses",
        reading="mse, full reuse / short stage, no loss, full reuse",
    ),
    Claim(
        words="More solver iterations in training give a lower validation perplexity, U(0,4) and U(3,6) for U(0,2) and "
        "U(1,3)",
        said="44.60 and 47.37 with FP 1/1 on LM1B",
        section="shapes",
        reading="more iterations",
        has_frontier=False,
    ),
    Claim(
        words="Twice the learning rate gives a lower validation perplexity",
        said="44.06 and 44.60 on LM1B; with a higher clipping too, 53.28 and 58.98 on OWT",
        section="shapes",
        reading="twice the rate",
        has_frontier=False,
    ),
    Claim(
        words="The stage L_CONS lowers the generative perplexity, without reuse",
        said="a figure",
        section="dynamics",
        reading="last / first",
    ),
    Claim(
        words="A longer stage of L_CONS lowers the entropy",
        said="a figure",
        section="dynamics",
        reading="last entropy",
        high=0.0,
        has_frontier=False,
    ),
    Claim(
        words="MDLM's layers fall into two groups: CKA across them is below half of that within the late one",
        said="0.060 and 0.998",
        section="cka",
        reading="across / late",
        high=0.5,
        has_frontier=False,
    ),
    Claim(
        words="Residuals fall with solver iterations",
        said="75.97 to 0.018 without reuse",
        section="solver",
        reading="residuals fall",
        has_frontier=False,
    ),
    Claim(
        words="Full reuse starts closer to the fixed point than no reuse",
        said="76.68 to 0.0385",
        section="solver",
        reading="full starts closer",
        has_frontier=False,
    ),
    Claim(
        words="Newly revealed positions move more than others",
        said="a figure",
        section="solver",
        reading="revealed moves more",
        low=1.0,
        high=math.inf,
        has_frontier=False,
    ),
    Claim(
        words="L_CONS lowers the lagged logit KL at all lags and numbers of steps",
        said="15.2 % on average, 19.0 % at lag 1",
        section="lagged",
        reading="lower lagged KL",
        low=0.0,
        high=math.inf,
        has_frontier=False,
    ),
)
COLUMNS = (
    Column(title="claim", value=lambda line: line[0].words),
    Column(title="the paper (quoted)", value=lambda line: line[0].said),
    Column(title="as it is measured", value=lambda line: str(line[1])),
    Column(title="on the frontier", value=lambda line: "-" if line[2] is None else str(line[2])),
    Column(title="section", value=lambda line: f"[{line[0].section}](#{line[0].section})"),
)


def claims_table(parts: Mapping[str, Part], claims: Sequence[Claim] = CLAIMS) -> str:
    """All claims with their verdicts, as far as their sections are there."""
    lines = []
    for claim in claims:
        part = parts.get(claim.section, Part(text=""))
        frontier = verdict(claim, _of(part.frontier, claim)) if claim.has_frontier else None
        lines.append((claim, verdict(claim, _of(part.readings, claim)), frontier))
    return markdown(lines, COLUMNS).rstrip()


def _of(readings: Readings, claim: Claim) -> Sequence[Reading]:
    return readings.get(claim.reading, ())


RULE = (
    "A claim is **shown** if the 95 % interval of every reading that it is about lies within what it says, such as a "
    "ratio below 1 at every budget. It is **not shown** if any does not, and **not tried** if there is no reading. The "
    "reading that decides, the one least in favour, stands beside the word. Ratios are those of generative "
    "perplexities of samples that share their random numbers, of the first that the claim names to the second, and "
    "their intervals are by a paired bootstrap over samples, and over training runs where there are several. Readings "
    "of other kinds are differences (MAUVE, entropy, nats of loss) or shares; those of CKA, of the solver and of the "
    "loss span the least and the most, and those of validation and MAUVE are not paired. On the frontier the same "
    "claim is read at equal entropy."
)

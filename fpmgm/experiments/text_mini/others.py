"""Sections on validation, MAUVE, downstream tasks, and samples as they come."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

from fpmgm.checkpoint import load
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.held_out import OWN, data_for
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.mauve import reference_texts
from fpmgm.evaluation.side_by_side import VALIDATION_ITERS
from fpmgm.evaluation.sweep import Job
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.evaluation.tasks import TaskSettings, run_tasks
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.parts import Part, Reading
from fpmgm.experiments.report import precisions
from fpmgm.experiments.text_mini.lines import ADAPTED, FP, FRESH, MDLM, cofre, plain, staged
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.quoted import quoted
from fpmgm.experiments.text_mini.section import ORDER, Line, Section
from fpmgm.experiments.text_mini.trainings import VALIDATED, validated, validation_ratio
from fpmgm.generation import Sampling, generate

TASKS = ("lambada", "arc_easy", "arc_challenge", "boolq", "openbookqa", "piqa", "social_iqa")
"""The paper's, without RACE, which no package has."""
DRAWS = 8
TRAINED = ("FP-MDLM + L_CONS", "FP-MDLM + matching", "MDLM + matching")
"""Stages that are validated. The others would be trained for this alone."""


def _all_models(_: Page) -> tuple[Contestant, ...]:
    """Base models, and the stages that other sections of the page need anyway."""
    return (MDLM, FP, *(staged(name) for name in TRAINED), ADAPTED, FRESH)


def _validation(page: Page) -> Part:
    found = validated(page, _all_models(page))
    by_name = {each.name: each for each in found}
    deep, shallow = by_name[MDLM.name], by_name[FP.name]
    reading = validation_ratio("", shallow, deep)
    words = (
        f"On {page.sizes.validation} held-out sequences with the same masks, {VALIDATION_ITERS} solver iterations, the "
        f"first seed of each stage. FP-MDLM / MDLM: {reading}; the interval adds both standard errors as if they were "
        "independent, so it is too wide."
    )
    text = f"{words}\n\n{markdown(found, VALIDATED).rstrip()}\n\n{quoted('validation').rstrip()}"
    return Part(text=text, readings={"FP-MDLM / MDLM": [reading]})


class Scored(NamedTuple):
    """A line of scores, by the titles of their columns."""

    name: str
    cells: dict[str, Interval]


def _scores(lines: Sequence[Scored], best: str = "") -> str:
    """A table of such lines."""
    columns = [Column(title="model", value=lambda line: line.name)]
    columns += [_score_column(title, best) for title in lines[0].cells]
    return markdown(lines, columns).rstrip()


def _score_column(title: str, best: str) -> Column:
    return Column(title=title, value=lambda line: line.cells[title], digits=3, best=best)


def _mauve_lines() -> tuple[Line, Line]:
    return plain(MDLM), cofre()


def _mauve(page: Page) -> Part:
    if find_spec("mauve") is None:
        return Part(text="Not tried: MAUVE needs a package; run pip install 'fpmgm[eval]'.")
    lines = _mauve_lines()
    protocol = page.protocol(page.sizes.mauve, mauve=OWN)
    jobs = [
        Job(Cell(**page.models(line.contestant)[0]._asdict(), sampling=_at(page, line, budget)), protocol)
        for line in lines
        for budget in page.sizes.pair
    ]
    rows = iter(page.rows(jobs, [line.contestant for line in lines]))
    titles = [f"{budget} blocks" for budget in page.sizes.pair]
    scored = [Scored(line.name, {title: next(rows).metrics["mauve"] for title in titles}) for line in lines]
    readings = [_difference(title, scored[1].cells[title], scored[0].cells[title]) for title in titles]
    words = (
        f"{page.sizes.mauve} samples a cell against as many held-out texts, by the features of the judge; the paper "
        "has 5,000 by those of GPT-2 Large, and with so few a bootstrap finds too low scores. The interval of the "
        "difference is the root of the sum of both squared widths, as if the samples were independent: "
        f"{'; '.join(map(str, readings))}."
    )
    text = f"{words}\n\n{_scores(scored, 'highest')}\n\n{quoted('mauve').rstrip()}"
    return Part(text=text, readings={"CoFRe - MDLM": readings})


def _difference(where: str, ours: Interval, theirs: Interval) -> Reading:
    value = ours.value - theirs.value
    below = ((ours.value - ours.low) ** 2 + (theirs.high - theirs.value) ** 2) ** 0.5
    above = ((ours.high - ours.value) ** 2 + (theirs.value - theirs.low) ** 2) ** 0.5
    return Reading(where, value, value - below, value + above)


def _at(page: Page, line: Line, budget: int) -> Sampling:
    settings: dict[str, Any] = {"transition": ORDER, **line.settings}
    return Sampling(budget=budget, temperature=1.0, seed=page.seed, **settings)


def _downstream(page: Page) -> Part:
    contestants = {"MDLM": MDLM, "CoFRe": cofre().contestant}
    found = {}
    try:
        for name, each in contestants.items():
            found[name] = _answers(page, each)
    except (ValueError, OSError) as error:
        return Part(text=f"Not tried: {str(error).strip()}")
    answered = [
        Scored(name, {row["task"]: Interval(**row["accuracy"]) for row in rows}) for name, rows in found.items()
    ]
    chance = {row["task"]: row["chance"] for row in found["MDLM"]}
    guesses = ", ".join(f"{task} {chance[task]:.3f}" for task in TASKS)
    words = (
        f"The share of right answers to {page.sizes.questions} questions of each task, by likelihoods of {DRAWS} "
        f"draws; 95 % intervals. Blind guessing has {guesses}. These models know simple stories only, so an accuracy "
        "near or below that of guessing says nothing of the method. Of long questions only the end fits into 256 "
        "tokens. The paper's numbers are percentages. No package that we use has RACE."
    )
    return Part(text=f"{words}\n\n{_scores(answered)}\n\n{quoted('downstream').rstrip()}")


def _answers(page: Page, contestant: Contestant) -> list[dict[str, Any]]:
    made = page.models(contestant)[0]
    about = {**made.about, "questions": page.sizes.questions, "draws": DRAWS, "tasks": TASKS}

    def make() -> list[dict[str, Any]]:
        page.train([contestant])
        settings = TaskSettings(
            models=(made.model,),
            tasks=TASKS,
            limit=page.sizes.questions,
            scoring="llada",
            draws=DRAWS,
            seed=page.seed,
            device=page.device,
        )
        return [asdict(row) for row in run_tasks(settings)]

    rows: list[dict[str, Any]] = page.kept("tasks", about, make)
    return rows


class Failures(NamedTuple):
    """How often texts fail in ways that can be counted."""

    name: str
    blocks: str
    unknown: float
    """The share of words that half of the held-out text does not have."""
    doubled: float
    """The share of texts with a word twice in a row."""
    repeated: float
    """The share of runs of four words that occur twice in their text."""
    open_end: float
    """The share of texts that do not end with a mark."""


FAILURES = (
    Column(title="texts of", value=lambda each: each.name),
    Column(title="blocks", value=lambda each: each.blocks),
    Column(title="unknown words", value=lambda each: each.unknown, digits=3),
    Column(title="with a word twice in a row", value=lambda each: each.doubled, digits=2),
    Column(title="repeated four words", value=lambda each: each.repeated, digits=3),
    Column(title="without an end", value=lambda each: each.open_end, digits=2),
)


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return re.findall(r"[a-z']+", text.lower())


def failures_of(name: str, blocks: str, texts: Sequence[str], known: set[str]) -> Failures:
    """How often these texts fail.

    >>> failures_of("", "", ["The cat sat. The the cat"], {"the", "cat"})[2:]
    (0.16666666666666666, 1.0, 0.0, 1.0)
    """
    words = [words_of(text) for text in texts]
    flat = [word for own in words for word in own]
    runs = [[tuple(own[i : i + 4]) for i in range(len(own) - 3)] for own in words]
    total = sum(map(len, runs))
    return Failures(
        name=name,
        blocks=blocks,
        unknown=sum(word not in known for word in flat) / max(len(flat), 1),
        doubled=sum(any(a == b for a, b in pairwise(own)) for own in words) / len(texts),
        repeated=sum(own.count(run) > 1 for own in runs for run in own) / max(total, 1),
        open_end=sum(text.rstrip()[-1:] not in tuple(".!?\"'") for text in texts) / len(texts),
    )


def _sample_lines() -> tuple[Line, ...]:
    return (
        plain(MDLM),
        plain(FP),
        plain(ADAPTED),
        cofre(),
        plain(staged("FP-MDLM + matching")),
    )


def _samples(page: Page) -> Part:
    lines, num = _sample_lines(), page.sizes.shown
    real = _real_text(page)
    known, counted = set(real["known"]), [Failures(*real["other half"])]
    printed = []
    for line in lines:
        for budget in page.sizes.pair:
            texts = _texts(page, line, budget, num)
            counted.append(failures_of(line.name, str(budget), texts, known))
            printed += [f"**{line.name}, {budget} blocks**", *(_quote(text) for text in texts[:2])]
    words = (
        f"The first {num} samples of seed {page.seed}, temperature 1. Unknown words are those that half of the "
        "held-out text does not have; the line of the other half tells how many rare words real text has. Names "
        "that change within a story and turns of the plot that make no sense are not counted: read the samples."
    )
    text = [words, markdown(counted, FAILURES).rstrip(), "The first two of each, as they came:", *printed]
    return Part(text="\n\n".join(text))


def _real_text(page: Page) -> dict[str, Any]:
    """The words of half of the held-out text, and how often the other half fails by them."""
    made, num = page.models(FP)[0], page.sizes.validation

    def make() -> dict[str, Any]:
        data = data_for(load(made.model), OWN)
        texts = reference_texts(data, min(num, len(data.held_out)))
        known = {word for text in texts[::2] for word in words_of(text)}
        return {"known": sorted(known), "other half": failures_of("real text, the other half", "", texts[1::2], known)}

    found: dict[str, Any] = page.kept("real text", {**made.about, "sequences": num}, make)
    return found


def _texts(page: Page, line: Line, budget: int, num: int) -> list[str]:
    made = page.models(line.contestant)[0]
    sampling = _at(page, line, budget)
    told = {**vars(sampling), "transition": "auto"}  # as it is written where ancestral is the only rule
    about = {**made.about, "sampling": told, "samples": num, "compute": page.compute}

    def make() -> list[str]:
        page.train([line.contestant])
        model = load(made.model, device=page.device, dtype=page.compute)
        return generate(model, num_samples=num, **vars(sampling)).texts

    usable = ({**about, "compute": dtype} for dtype in precisions(page.compute))
    known = [each for each in usable if page.knows("texts", each)]
    found: list[str] = page.kept("texts", known[0] if known else about, make)
    return found


def _quote(text: str) -> str:
    """A text as a quotation, one paragraph, that no mark of it can break."""
    flat = " ".join(text.split()) or "(empty)"
    return "> " + re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", flat)


SECTIONS = (
    Section(
        name="validation",
        title="Validation perplexity",
        of_paper="the table of validation perplexity",
        run=_validation,
        trained=_all_models,
        minutes=4.0,
    ),
    Section(
        name="samples",
        title="Samples that nobody chose, and how they fail",
        of_paper="the samples of the appendix",
        run=_samples,
        trained=lambda _: tuple(line.contestant for line in _sample_lines()),
        minutes=2.0,
    ),
    Section(
        name="mauve",
        title="MAUVE",
        of_paper="the table of MAUVE scores",
        run=_mauve,
        trained=lambda _: tuple(line.contestant for line in _mauve_lines()),
        minutes=8.0,
    ),
    Section(
        name="downstream",
        title="Downstream tasks",
        of_paper="the table of downstream tasks",
        run=_downstream,
        trained=lambda _: (MDLM, cofre().contestant),
        minutes=4.0,
    ),
)

"""Models side by side: how well each knows held-out data, and its samples at some budgets."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from fpmgm.checkpoint import DEFAULT, load
from fpmgm.cluster import OnWorkers, Workers
from fpmgm.data import Dataset
from fpmgm.devices import OnDevice
from fpmgm.evaluation.cells import Cell, budget_cells
from fpmgm.evaluation.chosen import IMAGE, TEXT, chosen_evaluator, kind_of
from fpmgm.evaluation.evaluator import ConventionName, Evaluator, Validation
from fpmgm.evaluation.frontier_asked import Frontiers, why_apart
from fpmgm.evaluation.frontier_found import Found
from fpmgm.evaluation.frontiers import run_frontiers
from fpmgm.evaluation.held_out import (
    AUTO,
    HELD_OUT,
    OWN,
    check_split,
    measured_data,
    measured_on,
    split_of,
    usual_number,
)
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.layout import COSTS, MATCHED, Reference, measured_columns, write_tables
from fpmgm.evaluation.matched import RANGES
from fpmgm.evaluation.ngram import floors
from fpmgm.evaluation.paired import COLUMNS as PAIRED
from fpmgm.evaluation.paired import PairedRatio, paired_ratios
from fpmgm.evaluation.plots import quality_against_cost
from fpmgm.evaluation.rows import Row, as_json
from fpmgm.evaluation.sweep import Protocol, prepare, run_sweep
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.files import write_json, write_text
from fpmgm.generation import Sampling
from fpmgm.masking import BoundName
from fpmgm.names import check_names, choose

VALIDATION_ITERS = 6
OTHER_ITERS = (2, 12)
"""Solver iterations that validation is also reported at."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(OnDevice, OnWorkers):
    """What is measured of models side by side."""

    models: tuple[str, ...] = (DEFAULT,)
    """Bundled models, model folders, or hub ids owner/name."""
    budgets: tuple[int, ...] = (24, 48, 96, 192)
    """The budgets to sample at, in block evaluations. If there are none, nothing is sampled."""
    num_samples: int = 64
    """Samples of each model at each budget."""
    judge: str = "auto"
    """Who judges samples. Text is judged by smollm2, a causal model of ours or one of the hub; images are judged by a
    classifier of ours. With auto, the bundled judge does it. If it is empty, samples are not judged."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judge scores. paper: an end-of-text stands before the text, and every token is scored.
    published: as in the code of MDLM, ReMDM and Duo, without the first token and later ends."""
    data: str = OWN
    """The data that models are validated on: a corpus by name, a file or a folder. With auto, it is what each model was
    trained on, split as in training. If it is empty, models are not validated."""
    split: str = AUTO
    """Which part of `data` is used: all, held-out (as in training), or train, valid or test (files of that name, as
    wikitext-2 has them). With auto, it is held-out for a corpus and for what the model was trained on, and all for
    another file."""
    validation_sequences: int | None = None
    """At most so many sequences are measured, spread evenly. With None, they are 512 of held-out data, and all of other
    data."""
    masking: BoundName = "linear"
    """How many tokens of a text validation masks at time t: a share of t, or 0.999 t as the public code of MDLM does
    (log-linear)."""
    ngram: bool = False
    """Also measure 5-gram models of the training text on the same held-out tokens."""
    mauve: bool = False
    """Also measure MAUVE against the text of `data` and `split`, by the judge's features."""
    inception: bool = False
    """Also measure FID, KID, precision and recall of images by Inception. An image takes a sixth of a second of one
    core. 5,000 real images are measured too, once."""
    match: Literal["", "temperature", "top_p"] = ""
    """Also sample all models except the first with this setting changed until their entropy is that of the first. If it
    is empty, nothing is changed."""
    frontier: bool = True
    """Compare two or more models of text in pairs at equal entropy, as `fpmgm frontier` does, if samples are judged.
    Each model is sampled at four temperatures more at each budget, so that sampling takes five times as long."""
    against: str = ""
    """One of the models: the ratio of every other one's generative perplexity to its own, at each budget, with an
    interval by a paired bootstrap. If it is empty, there are no ratios."""
    seed: int = 0
    """Every random number follows from this number."""
    out: str = ""
    """The folder for rows, tables and plots. If the command was stopped, the same call goes on. If it is empty, nothing
    is written."""

    def __post_init__(self) -> None:
        self.check_device()
        self.check_workers()
        if self.match:
            choose("knob", self.match, RANGES)
            if len(self.models) < 2:
                raise ValueError("match compares the entropy of several models; give at least two")
        self._check_against()
        if self.mauve and not self.data:
            raise ValueError("MAUVE compares with held-out text; give --data")
        check_split(self.split)
        if self.split != AUTO and not self.data:
            raise ValueError(f"split is {self.split}, and there is no text to split; give --data")
        if self.ngram and (not self.data or split_of(self.data, self.split) != HELD_OUT):
            raise ValueError(
                "the 5-gram models learn what training does not hold out; give --split held-out and --data"
            )

    def _check_against(self) -> None:
        if not self.against:
            return
        if self.against not in self.models or len(self.models) < 2:
            raise ValueError(f"against is {self.against!r}; give one of at least two models: {' '.join(self.models)}")
        if not self.judge or not self.budgets:
            raise ValueError("against compares generative perplexities of samples; give --judge and --budgets")

    @property
    def evaluator(self) -> Evaluator:
        """Who measures samples."""
        if self.against and kind_of(self.models) == IMAGE:
            raise ValueError("against compares texts in pairs, and these models draw images; leave --against out")
        split = split_of(self.data, self.split) if self.data else HELD_OUT
        if self.ngram and kind_of(self.models) == IMAGE:
            raise ValueError("5-gram models count the words of texts, and these models draw images; leave --ngram out")
        return chosen_evaluator(
            self.models,
            judge=self.judge,
            convention=self.convention,
            device=self.device,
            mauve=self.data if self.mauve else "",
            mauve_split=split,
            masking=self.masking,
            inception=self.inception,
        )


@dataclass(frozen=True, kw_only=True)
class Validated(Validation):
    """How well a model knows data that it has not seen."""

    model: str
    metric: str
    """What the value is."""
    measured_on: str
    by_iterations: dict[int, float]
    """The value with other numbers of solver iterations; empty for a plain stack."""
    ngram: dict[str, float]
    """The perplexity of 5-gram models on the same tokens, by their kind; empty if it was not asked for."""
    num_training_sequences: int


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What was measured of some models."""

    validation: tuple[Validated, ...]
    """Of each model; empty if there is no data."""
    samples: tuple[Row, ...]
    """Of each model at each budget."""
    matched: tuple[Row, ...]
    """Of all models but the first, at its entropy; empty if it was not asked for."""
    frontier: Found | None = None
    """All models at equal entropy; None if it was not asked for, or if entropies do not compare."""
    why_apart: str = ""
    """Why there is no frontier though it was asked for; empty otherwise."""
    paired: tuple[PairedRatio, ...] = ()
    """Every other model against the one that was asked for, at each budget; then at its entropy, if that was matched.
    Empty if it was not asked for."""
    references: dict[str, dict[str, Interval]] = field(default_factory=dict)
    """Metrics of real images, and of these through the tokenizer of the first model; empty for text."""
    files: tuple[Path, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        return {
            "validation": [asdict(each) for each in self.validation],
            "samples": [as_json(replace(row, per_sample={})) for row in self.samples],
            "matched": [as_json(replace(row, per_sample={})) for row in self.matched],
            "paired": [asdict(pair) for pair in self.paired],
            **({} if self.frontier is None else {"frontier": self.frontier.as_json()}),
            "references": {
                name: {metric: asdict(value) for metric, value in metrics.items()}
                for name, metrics in self.references.items()
            },
            "files": [str(file) for file in self.files],
        }


def evaluate(
    models: str | Sequence[str] = DEFAULT,
    *,
    on_model: Callable[[str, str], None] | None = None,
    on_cell: Callable[[Cell, int, int], None] | None = None,
    **settings: Any,
) -> Evaluated:
    """Validate models and sample them at some budgets; settings are the fields of `Evaluation`.

    `on_model` is called with a model and what it is validated on, `on_cell` with each cell that is about to be sampled.
    With several workers, both are called afterwards.
    """
    check_names("setting", settings, Evaluation)
    names = (models,) if isinstance(models, str) else tuple(models)
    return run_evaluation(Evaluation(models=names, **settings), on_model=on_model, on_cell=on_cell)


def run_evaluation(
    asked: Evaluation,
    *,
    on_model: Callable[[str, str], None] | None = None,
    on_cell: Callable[[Cell, int, int], None] | None = None,
) -> Evaluated:
    """All that an evaluation asks for."""
    evaluator = asked.evaluator
    apart = why_apart(asked.models) if _has_frontier(asked) else ""
    frontiers = _frontiers(asked) if _has_frontier(asked) and not apart else None
    protocol = Protocol(
        num_samples=asked.num_samples,
        evaluator=evaluator,
        device=asked.device,
        dtype=asked.dtype,
        keeps_samples=bool(asked.against or frontiers),
    )
    with TemporaryDirectory() as scratch, asked.open_workers(asked.device) as workers:
        folder = Path(asked.out or scratch)
        file = folder / "samples.jsonl"
        measure = partial(run_sweep, protocol=protocol, file=file, on_cell=on_cell, workers=workers)
        cells = list(budget_cells(asked.models, Sampling(seed=asked.seed), asked.budgets))
        prepare(cells, protocol)  # what is wrong with settings, judge or text is said before anything is sampled
        validation = _validations(asked, evaluator, on_model, workers) if asked.data else []
        rows = measure(cells)
        matched = measure(_matched_cells(asked, cells, rows))
        frontier = None
        if frontiers:
            known = list(zip(cells, rows, strict=True))
            try:
                frontier = run_frontiers(frontiers, on_cell=on_cell, known=known, must_meet=False)
            except ValueError as error:  # such as samples at a low temperature that are all empty
                apart = str(error)
        references = evaluator.references(load(asked.models[0], device=asked.device), asked.num_samples)
        found = Evaluated(
            validation=tuple(validation),
            samples=tuple(rows),
            matched=tuple(matched),
            frontier=frontier,
            why_apart=apart,
            paired=tuple(_paired(asked, rows, matched)),
            references=references,
        )
        return replace(found, files=tuple(_write(folder, found, evaluator))) if asked.out else found


def _has_frontier(asked: Evaluation) -> bool:
    """Whether there are several models whose texts are judged, and their frontiers are asked for."""
    is_judged = bool(asked.judge and asked.budgets)
    return asked.frontier and is_judged and len(set(asked.models)) > 1 and kind_of(asked.models) == TEXT


def _frontiers(asked: Evaluation) -> Frontiers:
    """The frontiers of an evaluation: the points of temperature 1 are its own cells."""
    return Frontiers(
        models=tuple(dict.fromkeys(asked.models)),
        budgets=asked.budgets,
        seeds=(asked.seed,),
        num_samples=asked.num_samples,
        judge=asked.judge,
        convention=asked.convention,
        data=asked.data,
        split=asked.split,
        compute=asked.dtype,
        device=asked.device,
        out=str(Path(asked.out) / "frontier") if asked.out else "",
        workers=asked.workers,
        ray=asked.ray,
    )


def _validations(
    asked: Evaluation, evaluator: Evaluator, on_model: Callable[[str, str], None] | None, workers: Workers
) -> list[Validated]:
    """Of all models; what another process did is told afterwards."""
    is_here = workers.ray is None
    told = on_model if is_here else None
    work = {model: partial(validate, model, asked, told, evaluator) for model in asked.models}

    def tell(model: str, found: Validated) -> None:
        if on_model and not is_here:
            on_model(model, found.measured_on)

    return list(workers.run(work, "validations", on_done=tell).values())


def validate(
    name: str,
    asked: Evaluation,
    on_model: Callable[[str, str], None] | None = None,
    evaluator: Evaluator | None = None,
) -> Validated:
    """How well a model knows the data that an evaluation asks for."""
    evaluator = evaluator or asked.evaluator
    model = load(name, device=asked.device, dtype=asked.dtype)
    data, words = measured_data(model, asked.data, asked.split, with_training=asked.ngram)
    if asked.ngram and data.pad_id is not None:
        raise ValueError(f"{words} is padded, and n-gram models would count the padding; leave --ngram out")
    if asked.ngram and data.given is not None:
        raise ValueError(f"{words} has prompts, which n-gram models would count as answers; leave --ngram out")
    num = asked.validation_sequences or usual_number(asked.data, asked.split) or len(data.held_out)
    batch = data.measured(num)
    where = measured_on(data, batch, words)
    if on_model:
        on_model(name, where)
    others = OTHER_ITERS if model.config.cost.fp else ()
    on_device = batch.to(model.device)
    size = model.config.vocabulary.size
    return Validated(
        model=name,
        measured_on=where,
        metric=evaluator.validated.title,
        **asdict(evaluator.validate(model.denoiser, on_device, num_iters=VALIDATION_ITERS)),
        by_iterations={num: evaluator.validate(model.denoiser, on_device, num_iters=num).value for num in others},
        ngram=_floors(data, batch.x.numpy(), size) if asked.ngram else {},
        num_training_sequences=len(data.train),
    )


def _floors(data: Dataset, validation: np.ndarray, vocab_size: int) -> dict[str, float]:
    return floors(data.rows[data.train], validation, vocab_size=vocab_size, num_given=int(data.is_begun))


def references_of(found: Evaluated) -> list[Reference]:
    """What was measured of real data, as rows of a table."""
    return [Reference(name, metrics) for name, metrics in found.references.items()]


def _paired(asked: Evaluation, rows: Sequence[Row], matched: Sequence[Row]) -> list[PairedRatio]:
    """The others against the one that is asked for; matched ones only if their entropy is that one's."""
    if not asked.against:
        return []
    own = [row for row in rows if row.model == asked.against]
    others = [row for row in rows if row.model != asked.against]
    return paired_ratios([*others, *(matched if asked.against == asked.models[0] else ())], own)


def _matched_cells(asked: Evaluation, cells: Sequence[Cell], rows: Sequence[Row]) -> list[Cell]:
    """The cells of all models but the first, each to be turned to the first one's entropy at its budget."""
    if not asked.match:
        return []
    first = {row.budget: row for row in rows if row.model == asked.models[0]}
    return [
        replace(cell, knob=asked.match, entropy=first[cell.sampling.budget].metrics["entropy"].value)
        for cell in cells
        if cell.model != asked.models[0]
    ]


def _write(folder: Path, found: Evaluated, evaluator: Evaluator) -> list[Path]:
    columns = measured_columns(found.samples)
    references = references_of(found)
    tables: list[tuple[Sequence[Any], Sequence[Column]]] = [
        (found.samples, (*COSTS, *columns)),
        (found.matched, (*COSTS, *MATCHED, *columns)),
        (references, measured_columns(references)),
    ]
    written = write_tables(folder / "table", tables)
    if found.paired:
        write_text(folder / "paired.md", markdown(found.paired, PAIRED))
        written = [*written, folder / "paired.md"]
    write_json(folder / "results.json", found.as_json())
    files = [folder / "samples.jsonl", folder / "results.json", *written]
    files += found.frontier.files if found.frontier else ()
    if found.samples:
        primary = evaluator.primary
        files += quality_against_cost(found.samples, primary.name, primary.title, folder / "quality")
    return files

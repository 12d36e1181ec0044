"""Sections that look inside: CKA between layers, residuals and movement of the solver, lagged logits."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fpmgm.analysis.cka import LayerSimilarity, layer_similarity, strongest_boundary
from fpmgm.analysis.lagged import Lagged
from fpmgm.analysis.observed import PAPERS_ITERATIONS, observations
from fpmgm.analysis.plots import consecutive_plot, similarity_heat_map
from fpmgm.analysis.report import ANALYSES, TEXTS, Analysis, analysed, read_analysis
from fpmgm.analysis.solving import Movement, Residuals
from fpmgm.analysis.trace import MASKED, REVEALED, VISIBLE
from fpmgm.checkpoint import load, weights_of
from fpmgm.evaluation.held_out import measured_data
from fpmgm.experiments.contestants import Contestant, Made
from fpmgm.experiments.parts import Part, Reading
from fpmgm.experiments.text_mini.lines import FP, MDLM, staged
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.quoted import quoted
from fpmgm.experiments.text_mini.section import ORDER, Section
from fpmgm.randomness import generator
from fpmgm.schema import read_json

COMPARED = 128
"""At most so many sequences layers are compared on."""


def _similarity(page: Page, made: Made) -> LayerSimilarity:
    num = min(COMPARED, page.sizes.validation)

    def make() -> dict[str, Any]:
        loaded = load(made.model, device=page.device)
        batch = measured_data(loaded)[0].measured(num).to(loaded.device)
        found = layer_similarity(loaded.denoiser, batch, rng=generator(page.seed))
        return {"layers": found.layers, "times": found.times, "by_time": found.by_time.tolist()}

    kept = page.kept("CKA", {**made.about, "sequences": num, "seed": page.seed}, make)
    by_time = torch.tensor(kept["by_time"])
    return LayerSimilarity(layers=tuple(kept["layers"]), times=tuple(kept["times"]), by_time=by_time)


def _cka(page: Page) -> Part:
    found = _similarity(page, page.models(MDLM)[0])
    similarity_heat_map(found, page.folder / "cka-layers")
    consecutive_plot(found, page.folder / "cka-consecutive")
    boundary = strongest_boundary(found.mean)
    after = [strongest_boundary(at) for at in found.by_time]
    layers = found.layers
    agreeing = [each.after for each in after].count(boundary.after)
    words = (
        f"The strongest boundary lies between layers {layers[boundary.after - 1]} and {layers[boundary.after]}, at "
        f"{agreeing} of {len(found.times)} times. Mean CKA is {boundary.early:.3f} before it, {boundary.late:.3f} "
        f"after it and {boundary.across:.3f} across; the two layers at the boundary have {boundary.cka:.3f}."
    )
    pictures = "![Mean linear CKA between layers](cka-layers.png)\n\n![CKA of neighbouring layers](cka-consecutive.png)"
    across = [each.across / each.late for each in after]
    reading = Reading("the mean, least and most of all times", sum(across) / len(across), min(across), max(across))
    text = f"{words}\n\n{pictures}\n\n{quoted('cka').rstrip()}"
    return Part(text=text, readings={"across / late": [reading]})


def _analysis(page: Page, name: str, contestant: Contestant, against: Contestant | None = None) -> dict[str, Any]:
    """The analyses of a model, made once and then read from their files."""
    sizes, folder = page.sizes, page.folder / name
    models = [page.models(each)[0] for each in (contestant, against) if each]
    asked = Analysis(
        model=models[0].model,
        against=models[1].model if against else "",
        budget=sizes.pair[-1],
        steps=sizes.analysed_steps,
        depth=sizes.depth,
        transition=ORDER,
        num_samples=sizes.analysed,
        num_sequences=min(32, sizes.validation),
        seed=page.seed,
        device=page.device,
        out=str(folder),
    )
    settings = {"budget": asked.budget, "steps": asked.steps, "depth": asked.depth, "samples": asked.num_samples}
    about = {"models": [each.about for each in models], **settings, "seed": asked.seed}

    def make() -> dict[str, Any]:
        page.train([contestant])
        analysed(asked)
        return {"folder": name, "weights": [weights_of(each.model) for each in models]}

    page.kept("analyses", about, make, lambda found: _is_of(folder, asked, found["weights"]))
    return {kind: read_analysis(folder / f"{kind}.json") for kind in ANALYSES if (folder / f"{kind}.json").is_file()}


def _is_of(folder: Path, asked: Analysis, weights: Sequence[str]) -> bool:
    """Whether a folder has a report, and it is of these settings and weights: others are written to the same folder."""
    if not (folder / "report.html").is_file() or not (folder / "lagged.json").is_file():
        return False
    told = read_json(folder / "lagged.json")["protocol"]
    expected = {
        "seed": asked.seed,
        "samples": asked.num_samples,
        "budget, block evaluations": asked.budget,
        "iterations to the fixed point": asked.depth,
        "steps compared": list(asked.steps),
        **dict(zip(("weights", "weights of against"), weights, strict=False)),
    }
    return all(told.get(name) == value for name, value in expected.items())


def _solver(page: Page) -> Part:
    found = _analysis(page, "inside-base", FP)
    text = [_seen(found), *_pictures("inside-base", ("residuals", "movement", "starts")), quoted("inside").rstrip()]
    residuals, movement = found["residuals"], found["movement"]
    readings = {
        "residuals fall": _falls(residuals),
        "full starts closer": _closer(residuals),
        "revealed moves more": list(_moves_more(movement)),
    }
    return Part(text="\n\n".join(text), readings=readings)


def _lagged(page: Page) -> Part:
    found = _analysis(page, "inside-l-cons", staged("FP-MDLM + L_CONS"), FP)
    lagged: Lagged = found["lagged"]
    rows = zip(lagged.steps, lagged.reduction, lagged.reduction_low, lagged.reduction_high, strict=True)
    readings = [
        Reading(f"{num} steps, lag {lag}", value, low, high)
        for num, *columns in rows
        for lag, value, low, high in zip(lagged.lags, *columns, strict=True)
        if value is not None and low is not None and high is not None
    ]
    text = [_seen({"lagged": lagged}), *_pictures("inside-l-cons", ("lagged",)), quoted("inside").rstrip()]
    return Part(text="\n\n".join(text), readings={"lower lagged KL": readings})


def _seen(found: dict[str, Any]) -> str:
    seen = "\n".join(f"* {each}" for each in observations(found))
    return f"Here `shown` is said of means, and not of intervals as in the table of claims.\n\n{seen}"


def _pictures(folder: str, names: Sequence[str]) -> list[str]:
    return [f"{TEXTS[name][1]}\n\n![{TEXTS[name][0]}]({folder}/{name}.png)" for name in names]


def _spread(where: str, values: Sequence[float]) -> Reading:
    return Reading(
        f"{where}; the mean, least and most of all steps", sum(values) / len(values), min(values), max(values)
    )


def _falls(found: Residuals) -> list[Reading]:
    """The residual after as many iterations as the paper reads it at, over that at the start, by reuse."""
    stop = min(PAPERS_ITERATIONS, len(found.residuals[0][0]) - 1)
    return [
        _spread(reuse, [step[stop] / step[0] for step in steps])
        for reuse, steps in zip(found.reuses, found.residuals, strict=True)
    ]


def _closer(found: Residuals) -> list[Reading]:
    """Where the solver starts with full reuse over where it starts without, in all steps but the first."""
    none, full = (found.first(found.reuses.index(reuse)) for reuse in ("none", "full"))
    ratios = [ours / theirs for ours, theirs in zip(full[1:], none[1:], strict=True)]
    return [_spread("full / none", ratios)] if ratios else []


def _moves_more(found: Movement) -> Iterator[Reading]:
    """How far newly revealed positions move over how far others do, by step."""
    for kind in (VISIBLE, MASKED):
        pairs = zip(found.moved[REVEALED], found.moved[kind], strict=True)
        ratios = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
        if ratios:
            yield _spread(f"newly revealed / {found.kinds[kind]}", ratios)


SECTIONS = (
    Section(
        name="cka",
        title="How alike the layers of MDLM are",
        of_paper="both figures of CKA",
        run=_cka,
        minutes=4.0,
    ),
    Section(
        name="solver",
        title="What the solver does: residuals, movement, distance to the solution",
        of_paper="the figures of residuals and of movement by transition type",
        run=_solver,
        minutes=5.0,
    ),
    Section(
        name="lagged",
        title="Lagged logits, with and without L_CONS",
        of_paper="the figure of lagged logits",
        run=_lagged,
        trained=lambda _: (staged("FP-MDLM + L_CONS"),),
        minutes=5.0,
    ),
)

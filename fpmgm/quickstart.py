"""The quick start: a bundled model writes a story, a table shows quality at four budgets, another model draws."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from fpmgm.budget import plan
from fpmgm.checkpoint import DEFAULT, Model, load
from fpmgm.codecs import ImageCodec
from fpmgm.devices import OnDevice
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.judges import BUNDLED_JUDGE
from fpmgm.evaluation.tables import Column, terminal_table
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.evaluation.threads import use_threads
from fpmgm.files import write_bytes
from fpmgm.generation import Generated, generate
from fpmgm.pictures import grid_png, scale_for
from fpmgm.places import BUNDLED
from fpmgm.progress import tracked
from fpmgm.replay import Replay, drawing
from fpmgm.schema import MAX_SAMPLES, read_json, require

BUDGETS = (24, 48, 96, 192)
WATCHED = 96
TEMPERATURE = 0.8
"""Of the story that is watched. The table is of temperature 1."""
MDLM = "stories-mdlm"
QUALITY = "perplexity_per_sample"
IMAGES = "fashion"
DRAWN = ("sneaker", "bag", "dress", "trouser")
"""The classes of images that are drawn, if the model knows them."""
NUM_DRAWN = 4
"""Images of each class, and classes if the model knows others."""


class Line(NamedTuple):
    """What is shown of a budget."""

    budget: int
    out: Generated
    found: dict[str, Interval]
    plain: Generated
    """By a plain MDLM."""
    of_plain: dict[str, Interval]


COLUMNS = (
    Column(title="budget", value=lambda line: line.budget),
    Column(title="steps", value=lambda line: line.out.steps),
    Column(title="seconds", value=lambda line: line.out.seconds, digits=2),
    Column(title="entropy", value=lambda line: line.found["entropy"].value, digits=2),
    Column(title="perplexity", value=lambda line: line.found[QUALITY].value, digits=0),
    Column(title="MDLM's", value=lambda line: line.of_plain[QUALITY].value, digits=0),
    Column(title="its seconds", value=lambda line: line.plain.seconds, digits=2),
)


@dataclass(frozen=True, kw_only=True)
class Quickstart(OnDevice):
    """Watch the bundled FP-MDLM write a story, sample it at four budgets, and see images of a bundled FP-MaskGIT."""

    num_samples: int = 16
    """Texts sampled at each budget."""
    seed: int = 0
    """What every random number depends on."""
    svg: str = ""
    """Save what the terminal shows as a picture, to this file."""

    def __post_init__(self) -> None:
        self.check_device()
        require("num_samples", self.num_samples, 1, MAX_SAMPLES)
        if self.svg and not Path(self.svg).resolve().parent.is_dir():
            raise ValueError(f"svg is {self.svg}; its folder does not exist")


def run(config: Quickstart) -> None:
    """Print the whole quick start."""
    console = Console(record=bool(config.svg), width=100 if config.svg else None, highlight=False)
    model = load(device=config.device, dtype=config.dtype)
    use_threads(model.config, config.num_samples)
    size = sum(parameter.numel() for parameter in model.denoiser.parameters())
    console.print(
        f"An FP-MDLM of {size:,} parameters, trained further for few steps, writes a story of at most "
        f"{model.config.vocabulary.length} tokens with {WATCHED} block evaluations, at temperature {TEMPERATURE}. It "
        "has learned on two CPU cores from stories that a larger model wrote. A dot is a token still masked; a step "
        "reveals tokens that lie far apart.\n"
    )
    steps = plan(WATCHED, model.denoiser.cost).num_steps
    moments = {steps // 4 - 1, steps // 2 - 1, steps - 1}  # what a pipe gets to see
    with Replay(model, console, steps=moments) as replay:
        generate(model, budget=WATCHED, temperature=TEMPERATURE, seed=config.seed, on_step=replay)
    console.print()
    console.print(budget_table(model, config, console.width))
    if stored := stored_lines():
        console.print(stored)
    if (BUNDLED / IMAGES).is_dir():
        draw_images(config, console)
    console.print(
        'Next: ./run sample --watch --prompt "The dog"     goes on from your words\n'
        '      ./run sample --infill "He saw a ___."       fills in\n'
        "      ./run sample fashion --class bag --watch    draws images\n"
        "      ./run train mine --data.source FILE         learns your own text\n"
        "      ./run --help                                lists the rest"
    )
    if config.svg:
        picture = console.export_svg(title="./run quickstart")
        Path(config.svg).write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # no fonts from afar


def draw_images(config: Quickstart, console: Console) -> None:
    """Draw images of a few classes, a row each, and save them as a PNG."""
    model = load(IMAGES, device=config.device, dtype=config.dtype)
    codec = model.speech
    assert isinstance(codec, ImageCodec)
    classes = [name for name in DRAWN if name in codec.class_names] or list(codec.class_names[:NUM_DRAWN])
    use_threads(model.config, len(classes) * NUM_DRAWN)
    out = generate(model, classes=classes, num_samples=NUM_DRAWN, budget=WATCHED, seed=config.seed)
    file = Path(mkdtemp(prefix="fpmgm-")) / f"{Path(IMAGES).name}.png"
    captions = [codec.class_names[label] for label in out.labels or ()]
    write_bytes(file, grid_png(out.shown, columns=NUM_DRAWN, scale=scale_for(out.shown[0]), captions=captions))
    size = sum(parameter.numel() for parameter in model.denoiser.parameters())
    console.print(
        f"An {model.config.kind} of {size:,} parameters draws {len(out.tokens)} images with {out.block_evals} block "
        f"evaluations each, in {out.seconds:.1f} s; a row each: {', '.join(classes)}.\n"
    )
    in_colours = True if config.svg else None
    console.print(drawing(out.shown, console, columns=NUM_DRAWN, in_colours=in_colours))
    console.print(f"\nThe same as a file: {file}\n", soft_wrap=True)


def budget_table(model: Model, config: Quickstart, width: int) -> Table:
    """Quality at each budget, of this model and of a plain MDLM, measured now."""
    evaluator = TextEvaluator(judge=BUNDLED_JUDGE, device=config.device)
    plain = load(MDLM, device=config.device, dtype=config.dtype)
    rows = [_row(budget, model, plain, evaluator, config) for budget in tracked(BUDGETS, "measuring at four budgets")]
    return terminal_table(
        rows,
        COLUMNS,
        width,
        title=f"{config.num_samples} texts at each budget of block evaluations, temperature 1, three-state reuse",
        caption=f"Perplexity by {BUNDLED_JUDGE}, a small causal model of stories, a mean over texts. MDLM: a plain "
        f"stack of {plain.denoiser.cost.pre} blocks with as many base updates, not trained further.",
    )


def stored_lines() -> str:
    """What the judge found in held-out stories, and the source of the stories, which is not bundled, in samples of both
    models and in its own; empty if unknown.
    """
    kept: dict[str, Any] = {name: read_json(BUNDLED / name / "report.json").get("frontier") for name in (DEFAULT, MDLM)}
    own = kept[DEFAULT]
    real = read_json(BUNDLED / BUNDLED_JUDGE / "report.json").get("held_out")
    if not all(kept.values()) or not own["real"] or not real:
        return ""
    nearest = min((point["setting"] for point in own["points"]), key=lambda setting: abs(setting - 1))
    found = {name: _stored(each, nearest) for name, each in kept.items()}
    budgets = [budget for budget in BUDGETS if all(budget in each for each in found.values())]
    first, second = (", ".join(f"{found[name][budget]:,.0f}" for budget in budgets) for name in (DEFAULT, MDLM))
    ours, theirs = (kept[name]["num_samples"] * len(kept[name]["seeds"]) for name in (DEFAULT, MDLM))
    return (
        "Stored, not measured now: in held-out stories the same small model finds a perplexity of "
        f"{real['metrics'][QUALITY]['value']:.1f} ({real['num_texts']} texts). {own['judge']}, which wrote the stories "
        f"that were learned, finds {own['real']['metrics'][QUALITY]['value']:.1f} in stories of its own, {first} in "
        f"samples at budgets {', '.join(map(str, budgets))} ({ours} each, temperature {nearest:g}), and {second} in "
        f"MDLM's ({theirs} each).\n"
    )


def _stored(kept: Mapping[str, Any], setting: float) -> dict[int, float]:
    """Perplexities by budget at a temperature."""
    points = (point for point in kept["points"] if point["setting"] == setting)
    return {point["budget"]: point["metrics"][QUALITY]["value"] for point in points}


def _row(budget: int, model: Model, plain: Model, evaluator: TextEvaluator, config: Quickstart) -> Line:
    out, other = (
        generate(each, num_samples=config.num_samples, budget=budget, seed=config.seed) for each in (model, plain)
    )
    found, of_other = (
        evaluator.measure(each, torch.tensor(texts.tokens)) for each, texts in ((model, out), (plain, other))
    )
    return Line(budget, out, found, other, of_other)

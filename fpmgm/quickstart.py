"""The quick start: the bundled model writes, token by token, and a table shows what a budget buys."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from fpmgm.budget import plan
from fpmgm.checkpoint import BUNDLED, Model, load
from fpmgm.evaluation.judges import BUNDLED_JUDGE, load_judge
from fpmgm.evaluation.text import measure
from fpmgm.generation import documents, generate
from fpmgm.replay import Replay

BUDGETS = (24, 48, 96, 192)
WATCHED = 96
MDLM = "text-mini-mdlm"
COLUMNS = ("budget", "spent", "steps", "seconds", "entropy", "different pairs", "perplexity", "MDLM's")
QUALITY = "perplexity_per_sample"


@dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Watch the bundled FP-MDLM write verse, then sample it at four budgets."""

    num_samples: int = 16
    """Texts sampled at each budget."""
    seed: int = 0
    """What every random number depends on."""
    svg: str = ""
    """Save what the terminal shows as a picture, to this file."""

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples is {self.num_samples}; it must be at least 1")
        if self.svg and not Path(self.svg).resolve().parent.is_dir():
            raise ValueError(f"svg is {self.svg}; its folder does not exist")


def run(config: Quickstart) -> None:
    """Print the whole quick start."""
    console = Console(record=bool(config.svg), width=100 if config.svg else None, highlight=False)
    model = load()
    size = sum(parameter.numel() for parameter in model.denoiser.parameters())
    console.print(
        f"An FP-MDLM of {size:,} parameters, trained on poetry on two CPU cores, then for consistency across steps, "
        f"writes {model.config.length} tokens with {WATCHED} block evaluations. A dot is a token still masked.\n"
    )
    steps = plan(WATCHED, model.denoiser.cost).num_steps
    moments = {steps // 4 - 1, steps // 2 - 1, steps - 1}  # what a pipe gets to see
    with Replay(model, console, steps=moments) as replay:
        generate(model, budget=WATCHED, seed=config.seed, on_step=replay)
    console.print()
    console.print(budget_table(model, config))
    console.print(
        'Next: ./run sample --watch --prompt "The sea"     goes on from your words\n'
        '      ./run sample --infill "the ___ of the ___"  fills in\n'
        "      ./run train text-mini --data.source FILE    trains on your own text\n"
        "      ./run --help                                lists the rest"
    )
    if config.svg:
        picture = console.export_svg(title="./run quickstart")
        Path(config.svg).write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # no fonts from afar


def budget_table(model: Model, config: Quickstart) -> Table:
    """What each budget buys, of this model and of a plain MDLM, measured now."""
    judge, plain = load_judge(BUNDLED_JUDGE), load(MDLM)
    report = json.loads((BUNDLED / BUNDLED_JUDGE / "report.json").read_text())
    table = Table(
        title=f"{config.num_samples} texts at each budget of block evaluations, three-state reuse",
        caption=f"Perplexity by a causal model of poetry, which finds {report['validation'][0]['value']:.0f} in poems "
        f"it has not seen; MDLM: a plain stack of {plain.denoiser.cost.pre} blocks, trained alike but for consistency.",
    )
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for budget in BUDGETS:
        out, other = (
            generate(each, num_samples=config.num_samples, budget=budget, seed=config.seed) for each in (model, plain)
        )
        found, of_other = (
            measure(torch.tensor(each.tokens), judge.read([documents(model, row) for row in each.tokens]))
            for each in (out, other)
        )
        table.add_row(
            str(budget),
            str(out.block_evals),
            str(out.steps),
            f"{out.seconds:.2f}",
            f"{found['entropy']['value']:.2f}",
            f"{found['distinct_2']['value']:.1%}",
            f"{found[QUALITY]['value']:.0f}",
            f"{of_other[QUALITY]['value']:.0f}",
        )
    return table

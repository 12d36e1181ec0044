"""The command plan: what a recipe would cost on hardware that is not here."""

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from fpmgm.commands import open_console
from fpmgm.evaluation.tables import terminal_table
from fpmgm.experiments.plan import CHECKED, COLUMNS, Asked, Planned, plan_of


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Asked):
    """Plan a run: parameters, operations, memory and hours, plain and fixed point side by side. Nothing is trained."""

    recipe: Annotated[str, tyro.conf.Positional]
    """The recipe to plan, such as owt."""
    json: bool = False
    """Print one JSON object."""


def run_plan(command: PlanCommand) -> None:
    """Print the plan, how it was made, and what the paper has."""
    found = plan_of(command, on_measure=lambda name: print(f"measuring updates of {name}", file=sys.stderr))
    if command.json:
        print(json.dumps(found.as_json()))
        return
    print_plan(open_console(), found)


def print_plan(console: Console, found: Planned) -> None:
    """The table of both sides, their ratios beside the paper's, and runs that were checked."""
    title = (
        f"{found.hardware}, {found.precision}, {found.efficiency:.1%} of the peak rate ({found.efficiency_from}), "
        f"{found.sides[0].updates:,} updates"
    )
    console.print(terminal_table(found.sides, COLUMNS, console.width, title=title))
    published = found.paper.get("ratios", {})
    for name, ratio in found.ratios.items():
        beside = f" (the paper: {published[name]:.3f})" if name in published else ""
        console.print(
            f"{name.replace('_', ' ')}, {found.sides[-1].recipe} / {found.sides[0].recipe}: {ratio:.3f}{beside}"
        )
    if found.paper:
        (plain, fixed), (first, second) = found.paper["hours"], found.paper["gib"]
        console.print(
            f"The paper reports {plain:.1f} and {fixed:.1f} hours, {first} and {second} GiB on "
            f"{found.paper['hardware']}."
        )
    console.print(
        "Operations are counted by formula. Memory is that of weights, gradients, optimiser, moving average and what "
        "autograd keeps, from shapes alone; what libraries and the allocator take comes on top. Hours do not contain "
        "validations, checkpoints and waiting for data."
    )
    if found.checked:
        console.print(terminal_table(found.checked, CHECKED, console.width, title="runs that were made"))

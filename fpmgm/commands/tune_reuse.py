"""The command tune-reuse: reuse coefficients and a tolerance for a model."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from typing import Annotated

import tyro

from fpmgm.analysis.tuning import Proposal, Tuned, Tuning, tune
from fpmgm.commands import open_console


@dataclass(frozen=True, kw_only=True)
class TuneReuseCommand(Tuning):
    """Propose reuse coefficients and a tolerance for a model, and check them against the paper's on other seeds.

    The coefficients are those whose starts are nearest to the fixed points. The tolerance is the largest that changes
    little of what tokens are drawn from. Both are then compared with the paper's coefficients and no tolerance, on
    seeds that they were not made from and with the same random numbers.
    """

    model: Annotated[str, tyro.conf.Positional]
    """A bundled model, a model folder, or a hub id owner/name. It must have a fixed point."""
    json: bool = False
    """Print one JSON object."""


def run_tune_reuse(command: TuneReuseCommand) -> None:
    """Print the proposal, how it did, and where it was saved."""
    tuned = tune(command)
    if command.json:
        print(json.dumps(tuned.as_json()))
        return
    console = open_console()
    for line in described(tuned, asks_to_save=command.save):
        console.print(line, soft_wrap=True, markup=False)


def described(tuned: Tuned, *, asks_to_save: bool) -> Iterator[str]:
    """What was found, in words."""
    held_out = tuned.protocol["checked_on"]
    yield f"the paper's: {Proposal()}"
    yield f"proposed:    {tuned.proposal}"
    yield f"on seeds {', '.join(map(str, held_out['seeds']))}, {held_out['num_samples']} samples each, in pairs:"
    before, after = tuned.block_evals
    yield f"  block evaluations of a sequence: {before:.1f}, proposed {after:.1f}"
    for check in tuned.checks:
        verdict = "no worse" if check.is_no_worse else "not shown to be no worse"
        numbers = f"{check.default:.4f}, proposed {check.proposed:.4f}, difference {check.difference:.4f} (90 %)"
        yield f"  {check.name}: {numbers}; {verdict} (limit {check.limit:+g})"
        if check.name == "log generative perplexity":
            yield f"  generative perplexity: {exp(check.default):.2f}, proposed {exp(check.proposed):.2f}"
    if tuned.saved is not None:
        yield f"saved in {tuned.saved}"
    elif asks_to_save:
        yield "nothing was saved: the proposal is not shown to be no worse; more samples may show it"

"""The command analyse MODEL: all analyses of a model as one report."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from fpmgm.analysis.report import Analysis, analysed
from fpmgm.commands import open_console


@dataclass(frozen=True, kw_only=True)
class AnalyseReportCommand(Analysis):
    """Look at what a model's solver does along a sampling run, and at what the model says from step to step.

    The report is a page that opens from disk, with JSON and figures of each analysis beside it: residuals by iteration
    and step, movement of the solution by transition type, distance from start to solution, iterations under a
    tolerance, change of logits and lagged KL, and CKA of the layers. Other analyses have fields of their own: analyse
    MODEL cka, analyse MODEL optimum, analyse RUN dynamics.
    """

    model: Annotated[str, tyro.conf.Positional]
    """A bundled model, a model folder, or a hub id owner/name."""
    json: bool = False
    """Print one JSON object."""


def run_analyse_report(command: AnalyseReportCommand) -> None:
    """Print what of the paper's observations is shown, and what was written."""
    report = analysed(command)
    if command.json:
        found = {"observations": [asdict(each) for each in report.seen], "left_out": report.left_out}
        print(json.dumps({**found, "protocol": report.protocol, "files": [str(file) for file in report.files]}))
        return
    console = open_console()
    for line in (*map(str, report.seen), *(f"left out: {line}" for line in report.left_out)):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"wrote {report.files[0]} and {len(report.files) - 1} files beside it", soft_wrap=True)

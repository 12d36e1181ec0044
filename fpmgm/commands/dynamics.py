"""The dynamics of a stage: quality, entropy and validation perplexity of its snapshots, by update."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fpmgm.analysis.plots import dynamics_plot
from fpmgm.commands import open_console
from fpmgm.commands.evaluate import announce
from fpmgm.evaluation.judges import judge_named
from fpmgm.evaluation.sweep import Protocol, Row, budget_cells, run_sweep
from fpmgm.evaluation.tables import Column, markdown, metric
from fpmgm.generation import Sampling
from fpmgm.training.state import read_metrics

COLUMNS = (
    Column(title="update", value=lambda row: row["update"]),
    Column(title="budget", value=lambda row: row["sampling"]["budget"]),
    metric("perplexity_per_sample", "generative perplexity", best="lowest"),
    metric("entropy", "entropy", digits=2),
    Column(title="validation perplexity", value=lambda row: row["validation"], digits=2),
)


@dataclass(frozen=True, kw_only=True)
class DynamicsCommand:
    """Sample every snapshot of a run: does it still get better, or only sharper?"""

    run: Annotated[str, tyro.conf.Positional]
    """A run folder with snapshots (--snapshot-every)."""
    analysis: Annotated[str, tyro.conf.Positional] = "dynamics"
    budgets: tuple[int, ...] = (24, 96)
    num_samples: int = 64
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or of the hub; auto: the bundled judge; empty: nobody."""
    reuse: str = "none"
    """none (as the paper's figure), full, three-state or auto."""
    seed: int = 0
    out: str = ""
    """A folder for rows, table and plot; empty: RUN/dynamics."""


def run_dynamics(command: DynamicsCommand) -> None:
    """Measure all snapshots, print where they lie, write table and plot."""
    run = Path(command.run)
    snapshots = sorted((run / "snapshots").glob("update-*"))
    if not snapshots:
        raise ValueError(f"{run} has no snapshots; train with --snapshot-every N")
    judge = judge_named(command.judge)
    folder = Path(command.out) if command.out else run / "dynamics"
    base = Sampling(seed=command.seed, reuse=command.reuse)
    cells = list(budget_cells([str(snapshot) for snapshot in snapshots], base, command.budgets))
    protocol = Protocol(num_samples=command.num_samples, judge=judge)
    validation = validation_by_update(run)
    rows = [with_update(row, validation) for row in run_sweep(cells, protocol, folder / "rows.jsonl", on_cell=announce)]
    (folder / "table.md").write_text(markdown(rows, COLUMNS))
    limit = next((row["stopped"] for row in read_metrics(run) if "stopped" in row), None)
    files = [folder / "table.md", *dynamics_plot(rows, validation, limit, folder / "dynamics")]
    console = open_console()
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)


def with_update(row: Row, validation: dict[int, float]) -> Row:
    """A row with the update of its snapshot, and the validation perplexity there if it was measured."""
    update = int(Path(row["model"]).name.split("-")[1])
    return {**row, "update": update, "validation": validation.get(update)}


def validation_by_update(run: Path) -> dict[int, float]:
    """What a run has measured of itself, the start among it."""
    rows: list[dict[str, Any]] = read_metrics(run)
    found = {row["update"]: row["validation_perplexity"] for row in rows if "validation_perplexity" in row}
    start = run / "start.json"
    return {0: json.loads(start.read_text())["validation_perplexity"], **found} if start.exists() else found

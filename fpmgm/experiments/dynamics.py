"""The dynamics of a stage: quality, entropy and validation perplexity of its snapshots, by update."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fpmgm.analysis.plots import Snapshot, dynamics_plot
from fpmgm.devices import OnDevice
from fpmgm.evaluation.cells import Cell, budget_cells
from fpmgm.evaluation.judges import judge_named
from fpmgm.evaluation.sweep import Protocol, run_sweep
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.files import write_text
from fpmgm.generation import Sampling
from fpmgm.reuse import ReuseName
from fpmgm.training.metrics import read_metrics, read_start
from fpmgm.training.state import folders_by_update, update_of

COLUMNS = (
    Column(title="update", value=lambda each: each.update),
    Column(title="budget", value=lambda each: each.row.budget),
    Column(
        title="generative perplexity", value=lambda each: each.row.metrics.get("perplexity_per_sample"), best="lowest"
    ),
    Column(title="entropy", value=lambda each: each.row.metrics.get("entropy"), digits=2),
    Column(title="validation perplexity", value=lambda each: each.validation, digits=2),
)


@dataclass(frozen=True, kw_only=True)
class Dynamics(OnDevice):
    """How the snapshots of a run are sampled."""

    run: str
    """A run folder with snapshots (--snapshot-every)."""
    budgets: tuple[int, ...] = (24, 96)
    """The budgets to sample at, in block evaluations."""
    num_samples: int = 64
    """Samples of each snapshot at each budget."""
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or one of the hub. With auto, the bundled judge does it. If
    it is empty, samples are not judged."""
    reuse: Literal["auto", ReuseName] = "none"
    """Where the solver starts. The paper's figure has none."""
    seed: int = 0
    """Every random number follows from this number."""
    out: str = ""
    """The folder for rows, table and plot. If it is empty, it is RUN/dynamics."""

    def __post_init__(self) -> None:
        self.check_device()


def measure_dynamics(
    asked: Dynamics, on_cell: Callable[[Cell, int, int], None] | None = None
) -> tuple[list[Snapshot], list[Path]]:
    """Measure all snapshots, write table and plot; returns what was measured and the files."""
    run = Path(asked.run)
    folders = folders_by_update(run / "snapshots")[::-1]
    if not folders:
        raise ValueError(f"{run} has no snapshots; train with --snapshot-every N")
    out = Path(asked.out) if asked.out else run / "dynamics"
    cells = budget_cells(list(map(str, folders)), Sampling(seed=asked.seed, reuse=asked.reuse), asked.budgets)
    evaluator = TextEvaluator(judge=judge_named(asked.judge), device=asked.device)
    protocol = Protocol(num_samples=asked.num_samples, evaluator=evaluator, device=asked.device, dtype=asked.dtype)
    validation = validation_by_update(run)
    snapshots = []
    for row in run_sweep(cells, protocol, out / "rows.jsonl", on_cell=on_cell):
        update = update_of(Path(row.model))
        snapshots.append(Snapshot(update, row, validation.get(update)))
    write_text(out / "table.md", markdown(snapshots, COLUMNS))
    limit = next((row["stopped"] for row in read_metrics(run) if "stopped" in row), None)
    return snapshots, [out / "table.md", *dynamics_plot(snapshots, validation, limit, out / "dynamics")]


def validation_by_update(run: Path) -> dict[int, float]:
    """What a run has measured of itself, the start among it."""
    found = {row["update"]: row["validation"] for row in read_metrics(run) if "validation" in row}
    start = read_start(run)
    return found if start is None else {0: start, **found}

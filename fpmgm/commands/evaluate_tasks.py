"""`evaluate --tasks`: models answer the questions of benchmarks, through lm-eval."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fpmgm.commands import open_console
from fpmgm.evaluation.harness_scoring import Scoring, ScoringName
from fpmgm.evaluation.side_by_side import Evaluation
from fpmgm.evaluation.tables import Column, markdown, model_column, terminal_table
from fpmgm.evaluation.tasks import SourceName, TaskRow, TaskSettings, as_json, run_tasks
from fpmgm.files import make_folder, write_json, write_text
from fpmgm.provenance import provenance

SHARED = {"models", "seed", "out", "device", "dtype"}
"""Settings of `evaluate` that tasks use too."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions(Evaluation):
    """What `--tasks` adds to the settings of `evaluate`."""

    tasks: tuple[str, ...] = ()
    """Benchmarks to answer: lambada, arc_easy, arc_challenge, boolq, openbookqa, piqa, social_iqa, hellaswag,
    winogrande, sciq, race (from the hub only), and every other task of lm-eval if the hub answers. If it is empty,
    held-out data and samples are measured instead."""
    limit: int | None = None
    """For tasks: so many questions of each are asked, the first ones. With None, all are asked."""
    scoring: ScoringName = "duo"
    """For tasks: how a masked model scores an answer. duo takes the mean over question and answer; smdm and llada take
    the sum over the answer. A causal model is always exact."""
    draws: int = Scoring.draws
    """For tasks: the number of masks that are drawn to score an answer."""
    task_batch: int = Scoring.batch_size
    """For tasks: the number of sequences in a pass."""
    task_source: SourceName = "auto"
    """For tasks: where questions come from. asset is a package that is fetched once. hub is lm-eval's own tasks. With
    auto, it is the hub if it answers, and otherwise the asset."""

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {each.name for each in fields(TaskOptions)} - {each.name for each in fields(Evaluation)}
        unused = {each.name for each in fields(Evaluation)} - SHARED if self.tasks else own - {"tasks"}
        for name in sorted(unused):
            if getattr(self, name) != getattr(TaskOptions, name):
                reason = "tasks do not use it" if self.tasks else "it is for --tasks, and no task is given"
                raise ValueError(f"--{name.replace('_', '-')} is given, and {reason}; leave it out")

    @property
    def task_settings(self) -> TaskSettings:
        """What is asked of the models; a ValueError if it cannot be."""
        return TaskSettings(
            models=self.models,
            tasks=self.tasks,
            limit=self.limit,
            scoring=self.scoring,
            draws=self.draws,
            seed=self.seed,
            batch_size=self.task_batch,
            source=self.task_source,
            device=self.device,
            dtype=self.dtype,
        )


def run_evaluate_tasks(command: Any) -> None:
    """Print a row for each model and task, and write them if a folder is given."""
    rows = run_tasks(command.task_settings, on_model=lambda name: print(f"asking {name}", file=sys.stderr))
    if command.json:
        print(json.dumps([as_json(row) for row in rows]))
    else:
        console = open_console()
        console.print(terminal_table(rows, columns(rows), console.width, caption=_caption(rows)))
    if command.out:
        files = write_rows(rows, Path(command.out))
        print("\n".join(f"wrote {file}" for file in files), file=sys.stderr)


def columns(rows: Sequence[TaskRow]) -> tuple[Column, ...]:
    """The columns of a table of tasks."""
    return (
        model_column(rows),
        Column(title="task", value=lambda row: row.task),
        Column(title="accuracy", value=lambda row: row.accuracy, digits=3),
        Column(title="chance", value=lambda row: row.chance, digits=3),
        Column(title="by length", value=lambda row: row.length_normalised, digits=3, rank=3),
        Column(title="nats", value=lambda row: row.target_nats, digits=2, rank=4),
        Column(title="questions", value=lambda row: row.num_questions, rank=1),
        Column(title="cut", value=lambda row: row.num_cut, rank=1),
        Column(title="scoring", value=_scoring, rank=2),
        Column(title="seconds", value=lambda row: row.seconds, digits=0, rank=5),
    )


def _scoring(row: TaskRow) -> str:
    return f"{row.scoring}, {row.draws} draws" if row.draws else f"{row.scoring}, exact"


def _caption(rows: Sequence[TaskRow]) -> str:
    sources = ", ".join(sorted({row.source for row in rows}))
    return f"Accuracy with its 95 % interval. Questions from {sources}."


def write_rows(rows: Sequence[TaskRow], folder: Path) -> list[Path]:
    """tasks.json, with versions and the commit, and tasks.md."""
    make_folder(folder)
    write_json(folder / "tasks.json", {"provenance": provenance(), "rows": [as_json(row) for row in rows]})
    write_text(folder / "tasks.md", f"{markdown(rows, columns(rows))}\n{_caption(rows)}\n")
    return [folder / "tasks.json", folder / "tasks.md"]

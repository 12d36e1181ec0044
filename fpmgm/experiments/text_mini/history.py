"""What a run told on its way, kept beside the page: a machine that did not train it has no run folder."""

from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.dynamics import validation_by_update
from fpmgm.experiments.report import HISTORY
from fpmgm.experiments.text_mini.page import Page
from fpmgm.training.folder import SNAPSHOTS
from fpmgm.training.metrics import read_metrics
from fpmgm.training.state import folders_by_update, update_of


class History(NamedTuple):
    """The way of a run."""

    losses: list[tuple[int, float]]
    """The cross entropy of each update."""
    validation: dict[int, float]
    snapshots: list[int]
    """Updates whose models were kept."""
    limit: float | None
    """The validation that stopped it, if a rule did."""


def history(page: Page, contestant: Contestant) -> History:
    """The way of a contestant's first run, which is trained if nobody has kept its history."""

    def make() -> dict[str, Any]:
        page.train([contestant])
        return _read(next(contestant.folders(page.runs))[1])

    found = page.kept(HISTORY, page.models(contestant)[0].about, make)
    return History(
        losses=[(update, loss) for update, loss in found["losses"]],
        validation=dict(found["validation"]),
        snapshots=found["snapshots"],
        limit=found["limit"],
    )


def is_known(page: Page, contestant: Contestant) -> bool:
    """Whether the history was kept."""
    return page.knows(HISTORY, page.models(contestant)[0].about)


def _read(run: Path) -> dict[str, Any]:
    rows = read_metrics(run)
    return {
        "losses": [(row["update"], row["base"] if "base" in row else row["loss"]) for row in rows],
        "validation": sorted(validation_by_update(run).items()),
        "snapshots": [update_of(folder) for folder in folders_by_update(run / SNAPSHOTS)[::-1]],
        "limit": next((row["stopped"] for row in rows if "stopped" in row), None),
    }

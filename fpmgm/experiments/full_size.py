"""Full-size reproductions: the plan of every stage with its cost, what is missing here, and the stages themselves.

A stage is a command of this package. Stages run in order, each in a process of its own; training goes on by itself
where it was stopped, and a stage that is done is not run again.
"""

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fpmgm.budget import plan
from fpmgm.data.assets import hub_answers
from fpmgm.evaluation.rows import append, read_lines
from fpmgm.evaluation.tables import Column
from fpmgm.experiments.hardware import CPU, hardware_of
from fpmgm.experiments.plan import Asked, papers_efficiency, plan_of
from fpmgm.experiments.workloads import expected_multiply_adds
from fpmgm.names import choose
from fpmgm.recipes import RECIPES

DONE = "stages.jsonl"
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A command, and what its cost is counted from."""

    name: str
    command: tuple[str, ...]
    """Words after `fpmgm`."""
    trains: str = ""
    """The recipe that it trains; empty if it trains none."""
    samples: dict[str, tuple[int, tuple[int, ...]]] | None = None
    """Of the network of each recipe, how many samples at which budgets."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """All stages of a reproduction, and what they need."""

    stages: tuple[Stage, ...]
    hardware: str
    """What the paper used."""
    micro_batch: int
    """Sequences in a pass of a device; 0: each recipe says it."""
    packages: tuple[str, ...]
    """What must be installed besides the core."""
    from_hub: tuple[str, ...]
    """What is fetched from the hub."""
    disk: float
    """Bytes of data, runs and models, roughly."""


BUDGETS = (96, 192, 384, 768)
FP_MODELS = ("runs/owt/model", "runs/owt-cofre/model", "runs/owt-adapt/model")
PLAIN_MODELS = ("runs/owt-mdlm/model", "runs/owt-mdlm-cons/model", "runs/owt-sdtt/model")
JUDGED = ("--judge", "gpt2-large")


def _train(recipe: str) -> Stage:
    return Stage(name=f"train {recipe}", command=("train", recipe), trains=recipe)


def _words(numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, numbers))


def _sweep(preset: str, models: Sequence[str], budgets: Sequence[int]) -> Stage:
    command = ("sweep", preset, *models, "--budgets", *_words(budgets), "--num-samples", "1024", *JUDGED)
    return Stage(name=f"sweep {preset}", command=(*command, "--out", f"results/owt/{preset}"))


OWT = Whole(
    stages=(
        Stage(name="data", command=("prepare", "owt")),
        Stage(name="the public MDLM", command=("convert", "kuleshov-group/mdlm-owt", "runs/mdlm-owt", "--map", "none")),
        _train("owt-mdlm"),
        _train("owt"),
        _train("owt-cofre"),
        _train("owt-mdlm-cons"),
        _train("owt-sdtt"),
        _train("owt-adapt"),
        Stage(
            name="main table, validation",
            command=(
                *("evaluate", *PLAIN_MODELS, *FP_MODELS, "--budgets", *_words((*BUDGETS, 1536, 3072))),
                *("--num-samples", "1024", *JUDGED, "--masking", "log-linear", "--against", PLAIN_MODELS[0]),
                *("--no-frontier", "--out", "results/owt/main"),
            ),
            samples={
                "owt-mdlm": (3 * 1024, (*BUDGETS, 1536, 3072)),
                "owt": (3 * 1024, (*BUDGETS, 1536, 3072)),
            },
        ),
        Stage(
            name="frontier",
            command=(
                *("frontier", *PLAIN_MODELS, *FP_MODELS, "--budgets", *_words(BUDGETS), *JUDGED),
                *("--num-samples", "1024", "--out", "results/owt/frontier"),
            ),
            samples={"owt-mdlm": (15 * 1024, BUDGETS), "owt": (15 * 1024, BUDGETS)},
        ),
        Stage(
            name="MAUVE",
            command=(
                *("evaluate", "runs/owt-mdlm/model", "runs/owt-cofre/model", "--budgets", *_words(BUDGETS)),
                *("--num-samples", "5000", *JUDGED, "--mauve", "--no-frontier", "--out", "results/owt/mauve"),
            ),
            samples={"owt-mdlm": (5000, BUDGETS), "owt": (5000, BUDGETS)},
        ),
        _sweep("allocations", FP_MODELS[:2], BUDGETS),
        _sweep("steps-iterations", FP_MODELS[1:2], BUDGETS),
        _sweep("gamma-masked", FP_MODELS[1:2], BUDGETS),
        _sweep("gamma-changed", FP_MODELS[1:2], BUDGETS),
        _sweep("nucleus", (PLAIN_MODELS[0], FP_MODELS[1]), BUDGETS),
        Stage(
            name="tasks",
            command=(
                *("evaluate", "runs/owt-mdlm/model", "runs/owt/model", "runs/owt-cofre/model", "--tasks"),
                *("lambada", "arc_easy", "arc_challenge", "hellaswag", "piqa", "winogrande"),
            ),
        ),
        Stage(
            name="latency",
            command=("benchmark", "owt-mdlm", "owt", "--budget", "96", "--batch-size", "32", "--train", "--json"),
        ),
        Stage(name="inside the solver", command=("analyse", "runs/owt-cofre/model", "--out", "results/owt/analysis")),
    ),
    hardware="8xH200",
    micro_batch=32,
    packages=("transformers", "datasets", "mauve", "lm_eval", "accelerate"),
    from_hub=("Skylion007/openwebtext", "gpt2", "gpt2-large", "kuleshov-group/mdlm-owt"),
    disk=200e9,
)
IMAGE_BUDGETS = (48, 96, 192, 384)
IMAGE_MODELS = tuple(
    f"runs/{recipe}/model"
    for recipe in ("imagenette-maskgit-large", "imagenette-maskgit-12", "imagenette", "imagenette-cofre")
)
IMAGENETTE = Whole(
    stages=(
        Stage(name="data", command=("prepare", "imagenette-tokenizer")),
        _train("imagenette-tokenizer"),
        _train("imagenette-maskgit-large"),
        _train("imagenette-maskgit-12"),
        _train("imagenette"),
        _train("imagenette-cofre"),
        Stage(
            name="main table",
            command=(
                *("evaluate", *IMAGE_MODELS, "--judge", "", "--inception", "--num-samples", "10000"),
                *("--budgets", *_words(IMAGE_BUDGETS), "--out", "results/imagenette/main"),
            ),
            samples={"imagenette-maskgit-large": (20_000, IMAGE_BUDGETS), "imagenette": (20_000, IMAGE_BUDGETS)},
        ),
        Stage(
            name="latency",
            command=("benchmark", "imagenette-maskgit-large", "imagenette", "--budget", "96", "--train", "--json"),
        ),
    ),
    hardware="1xA100",
    micro_batch=0,
    packages=("datasets", "PIL", "accelerate"),
    from_hub=("frgfm/imagenette",),
    disk=40e9,
)
FULL_SIZE = {"owt": OWT, "imagenette": IMAGENETTE}


@dataclass(frozen=True, kw_only=True)
class FullSize:
    """Reproduce a table of the paper at full size: print the plan, say what is missing, and run what can be run."""

    report: str
    hardware: str = ""
    """What the plan is for, such as 8xH200. If it is empty, it is what the paper used."""
    efficiency: float = 0.0
    """The share of the peak rate. With 0, it is that of the paper's run of MDLM by our count of operations."""
    dry_run: bool = False
    """Print the plan and what is missing, and run nothing."""
    out: str = ""
    """The folder that notes which stages are done. If it is empty, it is results/ and the name of the report."""

    def __post_init__(self) -> None:
        choose("report", self.report, FULL_SIZE)
        _, device = hardware_of(self.used)
        if device.name == CPU:
            raise ValueError(f"hardware is {self.hardware}, and full-size runs need GPUs; give one such as 8xH200")

    @property
    def whole(self) -> Whole:
        return FULL_SIZE[self.report]

    @property
    def used(self) -> str:
        """The hardware that is planned for."""
        return self.hardware or self.whole.hardware

    @property
    def folder(self) -> Path:
        return Path(self.out or f"results/{self.report}")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A stage as the plan shows it."""

    name: str
    command: str
    hours: float | None
    """None if its operations are not counted."""
    gib: float | None
    """Memory of a device while it trains."""
    is_done: bool


COLUMNS = (
    Column(title="stage", value=lambda line: line.name),
    Column(title="hours", digits=1, value=lambda line: line.hours),
    Column(title="GiB a device", digits=1, value=lambda line: line.gib),
    Column(title="done", value=lambda line: "yes" if line.is_done else None),
    Column(title="command", rank=1, value=lambda line: line.command),
)


def planned(asked: FullSize) -> list[Line]:
    """Every stage with its cost."""
    done = finished(asked)
    return [
        Line(
            name=stage.name,
            command=shlex.join(command_of(stage, asked)),
            is_done=_mark(stage) in done,
            **_cost(stage, asked),
        )
        for stage in asked.whole.stages
    ]


def _cost(stage: Stage, asked: FullSize) -> dict[str, float | None]:
    settings: dict[str, Any] = {"hardware": asked.used, "efficiency": asked.efficiency, "against": ""}
    if stage.samples:
        rate = _rate(settings)
        return {"hours": sum(_sampling(*each) for each in stage.samples.items()) / rate / 3600, "gib": None}
    if not stage.trains:
        return {"hours": None, "gib": None}
    try:
        found = plan_of(Asked(recipe=stage.trains, micro_batch=asked.whole.micro_batch, **settings)).sides[0]
    except ValueError:  # an objective that is not counted, such as the tokenizer's
        return {"hours": None, "gib": None}
    return {"hours": found.hours, "gib": found.memory.peak / GIB}


def _rate(settings: dict[str, Any]) -> float:
    """Operations a second of all devices."""
    num, device = hardware_of(settings["hardware"])
    return num * device.bf16 * (settings["efficiency"] or papers_efficiency())


def _sampling(recipe: str, asked: tuple[int, tuple[int, ...]]) -> float:
    """Operations of samples of a recipe's network at some budgets; what a judge costs is not among them."""
    num, budgets = asked
    network = RECIPES[recipe].network
    spent = (expected_multiply_adds(network, plan(budget, network.cost).iterations) for budget in budgets)
    return 2.0 * num * sum(spent)


def missing(asked: FullSize, lines: Sequence[Line]) -> Iterator[str]:
    """What this machine lacks for the stages of the plan, a line each."""
    whole = asked.whole
    needed, device = hardware_of(asked.used)
    num = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num < needed:
        yield f"GPUs: {needed} of {device.name} are planned for, and {num} are here (--hardware plans for others)"
    for line in lines:
        if line.gib is not None and device.bytes and line.gib * GIB > device.bytes:
            room = f"{device.name} has {device.bytes / GIB:.1f}"
            yield f"memory: {line.name} needs {line.gib:.1f} GiB of a device, and {room} (--hardware plans for others)"
    yield from (f"package: {name} is not installed" for name in whole.packages if not importlib.util.find_spec(name))
    if not hub_answers():
        yield f"the hub does not answer, and these come from it: {', '.join(whole.from_hub)}"
    free = shutil.disk_usage(".").free
    if free < whole.disk:
        yield f"disk: {whole.disk / 1e9:.0f} GB are needed, and {free / 1e9:.0f} GB are free here"


def command_of(stage: Stage, asked: FullSize) -> list[str]:
    """What is run: training by one process for each device, in mixed precision."""
    num, _ = hardware_of(asked.used)
    if not stage.trains:
        return ["fpmgm", *stage.command]
    micro = ["--micro-batch-size", str(asked.whole.micro_batch)] if asked.whole.micro_batch else []
    launch = ["accelerate", "launch", "--num_processes", str(num), "-m"] if num > 1 else []
    return [*launch, "fpmgm", *stage.command, "--mixed-precision", "bf16", *micro]


def finished(asked: FullSize) -> set[str]:
    """Marks of the stages that are done."""
    return {str(line.get("mark")) for line in read_lines(asked.folder / DONE)}


def run_stages(asked: FullSize) -> None:
    """Run every stage that is not done, in order; a RuntimeError if one fails."""
    for stage in asked.whole.stages:
        if _mark(stage) in finished(asked):
            continue
        command = command_of(stage, asked)
        print(shlex.join(command), file=sys.stderr)
        code = subprocess.run(_runnable(command), check=False).returncode
        if code:
            raise OSError(f"the stage {stage.name!r} ended with exit code {code}; mend it and repeat the command")
        append(asked.folder / DONE, {"mark": _mark(stage), **asdict(stage)})


def _runnable(command: Sequence[str]) -> list[str]:
    """The command by this Python, wherever it is installed."""
    words = [word if word != "accelerate" else "accelerate.commands.accelerate_cli" for word in command]
    return [sys.executable, "-m", *words]


def _mark(stage: Stage) -> str:
    return json.dumps(stage.command)

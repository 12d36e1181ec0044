"""Plans: parameters, operations, memory and hours of a recipe on named hardware, plain and fixed point side by side."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from fpmgm.devices import wait_for
from fpmgm.evaluation.latency import interleave
from fpmgm.evaluation.tables import Column
from fpmgm.experiments.costs import (
    Memory,
    asked_share,
    base_of,
    memory_of,
    optimiser_multiply_adds,
    parameters_of,
    pass_multiply_adds,
    update_multiply_adds,
)
from fpmgm.experiments.hardware import CPU, Hardware, hardware_of
from fpmgm.experiments.workloads import Updater, random_denoiser
from fpmgm.names import choose
from fpmgm.recipes import RECIPES
from fpmgm.schema import require
from fpmgm.training.config import Training
from fpmgm.training.folder import settings_before, settings_of
from fpmgm.training.metrics import read_metrics
from fpmgm.training.sharding import mixed_precision

GIB = 1 << 30
FEWEST_UPDATES = 20
"""A run is checked by at least so many updates, after the first ones, which are slower."""


PLAIN = {
    "owt": "owt-mdlm",
    "owt-cofre": "owt-mdlm-cons",
    "stories-fp": "stories-mdlm",
    "stories-cofre": "stories-mdlm-cons",
    "stories-fp-sdtt": "stories-sdtt",
    "poetry": "poetry-mdlm",
    "poetry-cofre": "poetry-mdlm-cons",
    "poetry-fp-sdtt": "poetry-sdtt",
    "fashion-fp": "fashion-maskgit",
    "imagenette": "imagenette-maskgit-large",
}
"""The plain stack beside each recipe with a fixed point."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the paper reports of two runs, plain and fixed point."""

    hardware: str
    parameters: tuple[float, float] | None
    hours: tuple[float, float]
    gib: tuple[float, float]


PAPER = {
    "owt": Published(hardware="8xH200", parameters=(170e6, 104e6), hours=(139.0, 123.0), gib=(112.4, 93.44)),
    "imagenette": Published(hardware="1xA100", parameters=None, hours=(17 + 46 / 60, 9 + 8 / 60), gib=(72.45, 35.74)),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is planned."""

    recipe: str
    hardware: str = "8xH200"
    """How many of which devices: 8xH200, A100, RTX4090, 2xcpu (cores). One process runs on each device, but one process
    on all cores."""
    against: str = "auto"
    """The recipe beside it. With auto, it is the plain stack of a recipe with a fixed point. If it is empty, there is
    none."""
    precision: Literal["auto", "bf16", "float32"] = "auto"
    """What layers compute in: bf16 (mixed) or float32. With auto, it is bf16 on GPUs and float32 on the CPU."""
    batch_size: int = 0
    """Sequences in an update. With 0, it is the recipe's."""
    micro_batch: int = 0
    """Sequences in a pass of a device. With 0, it is the recipe's, or all that a device has of an update."""
    updates: int = 0
    """Updates of the run. With 0, it is the recipe's."""
    efficiency: float = 0.0
    """The share of the device's peak rate that an update reaches. With 0, it is measured, or on GPUs it is that of the
    paper's run of MDLM by our count of operations."""
    measure: bool = False
    """Measure the efficiency on this machine, which must be of that hardware, by some updates with random weights."""
    measure_batch: int = 4
    """Sequences in an update that is measured."""
    check: tuple[str, ...] = ()
    """Run folders of the recipe, or of the one beside it: their measured seconds are set against the planned ones."""

    def __post_init__(self) -> None:
        choose("recipe", self.recipe, RECIPES)
        if self.against not in ("auto", ""):
            choose("recipe", self.against, RECIPES)
        _, device = hardware_of(self.hardware)
        choose("precision", self.precision, dict.fromkeys(("auto", "bf16", "float32")))
        for name in ("batch_size", "micro_batch", "updates"):
            require(name, getattr(self, name), 0)
        require("measure_batch", self.measure_batch, 1)
        if not 0 <= self.efficiency <= 1:
            raise ValueError(f"efficiency is {self.efficiency}; it must be a share of the peak rate, 0 to 1")
        if self.efficiency and self.measure:
            raise ValueError("efficiency is given and also to be measured; leave one of the two out")
        if device.name == CPU and not (self.efficiency or self.measure):
            raise ValueError("the efficiency of a CPU is not known; give --measure on that machine, or --efficiency")
        if self.measure and (device.name == CPU) == torch.cuda.is_available():
            here = "a GPU" if torch.cuda.is_available() else "no GPU"
            raise ValueError(f"hardware is {self.hardware}, and this machine has {here}; give --efficiency instead")

    @property
    def is_mixed(self) -> bool:
        """Whether layers compute in bfloat16."""
        return self.precision == "bf16" or (self.precision == "auto" and hardware_of(self.hardware)[1].name != CPU)

    @property
    def beside(self) -> str:
        """The recipe beside the planned one; empty if there is none."""
        return PLAIN.get(self.recipe, "") if self.against == "auto" else self.against


@dataclass(frozen=True, kw_only=True)
class Side:
    """The plan of one recipe."""

    recipe: str
    blocks: str
    parameters: int
    multiply_adds_token: float
    """Of a token in a pass forward, at the mean number of iterations, logits where tokens are masked."""
    update_multiply_adds: float
    """Of a whole update, forward and backward, without the optimiser's own."""
    batch_size: int
    """Sequences in an update."""
    micro_batch: int
    """Sequences in a pass of a device."""
    memory: Memory
    """On a device."""
    fits: bool | None
    """Whether the peak is below the memory of the device; None if that is not known."""
    seconds_per_update: float
    updates: int
    hours: float


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A run that was really made, against its plan."""

    run: str
    recipe: str
    updates: int
    seconds_per_update: float
    """The mean of those that were measured."""
    planned: float
    ratio: float
    """Planned over measured."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan, plain stack first."""

    hardware: str
    precision: str
    efficiency: float
    efficiency_from: str
    sides: tuple[Side, ...]
    ratios: dict[str, float]
    """Fixed point over plain: parameters, multiply_adds_token, hours, peak memory, memory at the mean draw."""
    paper: dict[str, Any]
    """The same ratios, hours and memory as the paper reports them; empty for other recipes."""
    checked: tuple[Checked, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        found = asdict(self)
        for side, own in zip(found["sides"], self.sides, strict=True):
            side["memory"] |= {"peak": own.memory.peak, "mean": own.memory.mean}
        return found


COLUMNS = (
    Column(title="recipe", value=lambda side: side.recipe),
    Column(title="blocks", value=lambda side: side.blocks),
    Column(title="10^6 parameters", digits=1, value=lambda side: side.parameters / 1e6),
    Column(title="10^6 multiply-adds a token", digits=1, value=lambda side: side.multiply_adds_token / 1e6),
    Column(title="in a pass", rank=2, digits=0, value=lambda side: side.micro_batch),
    Column(title="GiB at most", digits=1, value=lambda side: side.memory.peak / GIB),
    Column(title="GiB at the mean draw", rank=1, digits=1, value=lambda side: side.memory.mean / GIB),
    Column(title="fits", rank=1, value=lambda side: None if side.fits is None else "yes" if side.fits else "no"),
    Column(title="s an update", rank=1, digits=3, value=lambda side: side.seconds_per_update),
    Column(title="hours", digits=1, value=lambda side: side.hours),
)
CHECKED = (
    Column(title="run", value=lambda each: each.run),
    Column(title="updates", value=lambda each: each.updates),
    Column(title="s an update", digits=3, value=lambda each: each.seconds_per_update),
    Column(title="planned", digits=3, value=lambda each: each.planned),
    Column(title="planned / measured", digits=2, value=lambda each: each.ratio),
)


def plan_of(asked: Asked, *, on_measure: Callable[[str], None] | None = None) -> Planned:
    """Count, lay out and divide; measure if that is asked for."""
    names = [name for name in (asked.beside, asked.recipe) if name]
    configs = {name: _sized(asked, RECIPES[name]) for name in names}
    for config in configs.values():
        base_of(config)  # what cannot be counted or checked is refused before anything is measured
    runs = [_made(Path(run), names, asked) for run in asked.check]
    efficiency, source = _efficiency(asked, configs, on_measure)
    sides = tuple(_side(name, config, asked, efficiency) for name, config in configs.items())
    return Planned(
        hardware=asked.hardware,
        precision="bf16" if asked.is_mixed else "float32",
        efficiency=efficiency,
        efficiency_from=source,
        sides=sides,
        ratios=_ratios(*sides) if len(sides) == 2 else {},
        paper=_published(asked.recipe) if asked.recipe in PAPER and len(sides) == 2 else {},
        checked=tuple(_checked(run, sides) for run in runs),
    )


def _sized(asked: Asked, config: Training) -> Training:
    changes: dict[str, Any] = {"batch_size": asked.batch_size, "updates": asked.updates}
    changes["micro_batch_size"] = asked.micro_batch
    return replace(config, **{name: value for name, value in changes.items() if value})


def _side(name: str, config: Training, asked: Asked, efficiency: float) -> Side:
    num, device = hardware_of(asked.hardware)
    processes = 1 if device.name == CPU else num
    share = -(-config.batch_size // processes)
    micro_batch = min(config.micro_batch_size or share, share)
    network, base = config.network, base_of(config)
    iterations = base.iterations
    mean = (iterations.no_grad_min + iterations.no_grad_max + iterations.grad_min + iterations.grad_max) / 2
    length = network.vocabulary.length
    memory = memory_of(config, micro_batch, mixed=asked.is_mixed)
    whole = config.batch_size * update_multiply_adds(config)
    step = optimiser_multiply_adds(config)
    seconds = 2 * (whole + processes * step) / (num * _peak(device, asked) * efficiency)
    return Side(
        recipe=name,
        blocks=str(network.cost),
        parameters=parameters_of(config),
        multiply_adds_token=pass_multiply_adds(network, mean, asked_share(base) * length) / length,
        update_multiply_adds=whole,
        batch_size=config.batch_size,
        micro_batch=micro_batch,
        memory=memory,
        fits=memory.peak < device.bytes if device.bytes else None,
        seconds_per_update=seconds,
        updates=config.updates,
        hours=seconds * config.updates / 3600,
    )


def _peak(device: Hardware, asked: Asked) -> float:
    return device.bf16 if asked.is_mixed else device.float32


def _ratios(plain: Side, fixed: Side) -> dict[str, float]:
    return {
        "parameters": fixed.parameters / plain.parameters,
        "multiply_adds_token": fixed.multiply_adds_token / plain.multiply_adds_token,
        "update_multiply_adds": fixed.update_multiply_adds / plain.update_multiply_adds,
        "hours": fixed.hours / plain.hours,
        "peak_memory": fixed.memory.peak / plain.memory.peak,
        "mean_memory": fixed.memory.mean / plain.memory.mean,
    }


def _published(recipe: str) -> dict[str, Any]:
    found = PAPER[recipe]
    ratios = {"hours": found.hours[1] / found.hours[0], "peak_memory": found.gib[1] / found.gib[0]}
    if found.parameters:
        ratios["parameters"] = found.parameters[1] / found.parameters[0]
    return {**asdict(found), "ratios": ratios}


def papers_efficiency() -> float:
    """The share of its peak rate that a device reached in the paper's run of MDLM, by our count of operations."""
    config, found = RECIPES["owt-mdlm"], PAPER["owt"]
    num, device = hardware_of(found.hardware)
    operations = 2 * config.updates * config.batch_size * update_multiply_adds(config)
    return operations / (found.hours[0] * 3600 * num * device.bf16)


def _efficiency(
    asked: Asked, configs: dict[str, Training], on_measure: Callable[[str], None] | None
) -> tuple[float, str]:
    if asked.efficiency:
        return asked.efficiency, "given"
    if not asked.measure:
        return papers_efficiency(), "the paper's run of MDLM on 8 H200, by our count of operations"
    name = asked.recipe
    if on_measure:
        on_measure(name)
    return measured_efficiency(configs[name], asked), f"measured here with {name}"


def measured_efficiency(config: Training, asked: Asked) -> float:
    """The share of the peak rate that updates of a network with random weights reach on this machine."""
    num, device = hardware_of(asked.hardware)
    place = torch.device("cpu" if device.name == CPU else "cuda")
    if device.name == CPU:
        torch.set_num_threads(num)
    network, base = config.network, base_of(config)
    update = Updater(random_denoiser(network).to(place), asked.measure_batch, base, config.optim)
    counts = (2, 4) if network.cost.fp else (0, 0)

    def run() -> None:
        with torch.autocast(place.type, torch.bfloat16, enabled=asked.is_mixed):
            update(*counts)
        wait_for(place)

    seconds = interleave({config.data.name: run}, 3)[config.data.name].median
    positions = asked_share(base) * network.vocabulary.length
    forward = pass_multiply_adds(network, float(sum(counts)), positions)
    both = forward + 2 * pass_multiply_adds(network, float(counts[1]), positions)
    whole = asked.measure_batch * both + optimiser_multiply_adds(config)
    devices = num if device.name == CPU else 1
    return 2 * whole / seconds / (devices * _peak(device, asked))


class _Made(NamedTuple):
    """A run that was really made."""

    folder: Path
    recipe: str
    batch_size: int
    seconds: list[float]
    """Of its updates; the first ones, and those that validated, are left out."""


def _made(run: Path, recipes: Sequence[str], asked: Asked) -> _Made:
    """What a run tells of itself; a ValueError if the plan is of something else."""
    settings = settings_before(run)
    if settings is None:
        raise ValueError(f"{run} is no run folder; give the folder of a run, such as runs/stories-fp")
    recipe = _recipe_of(run, settings, recipes)
    own = replace(
        RECIPES[recipe], **{name: settings[name] for name in ("mixed_precision", "device") if name in settings}
    )
    if (precision := mixed_precision(own)) != ("bf16" if asked.is_mixed else "no"):
        told = {"bf16": ("bfloat16", "bf16"), "no": ("float32", "float32")}[precision]
        raise ValueError(
            f"{run} computed in {told[0]}, and the plan is of another precision; give --precision {told[1]}"
        )
    rows = [row for row in read_metrics(run)[FEWEST_UPDATES // 2 :] if "validation" not in row]
    if len(rows) < FEWEST_UPDATES:
        raise ValueError(f"{run} has {len(rows)} updates to check by; give a run of at least {2 * FEWEST_UPDATES}")
    batch_size = settings.get("batch_size", RECIPES[recipe].batch_size)
    return _Made(run, recipe, batch_size, [row["seconds"] for row in rows])


def _checked(run: _Made, sides: tuple[Side, ...]) -> Checked:
    """The mean seconds of a run's updates beside those of its plan."""
    side = next(side for side in sides if side.recipe == run.recipe)
    seconds = statistics.fmean(run.seconds)
    planned = side.seconds_per_update * run.batch_size / side.batch_size
    return Checked(
        run=str(run.folder),
        recipe=run.recipe,
        updates=len(run.seconds),
        seconds_per_update=seconds,
        planned=planned,
        ratio=planned / seconds,
    )


def _recipe_of(run: Path, settings: dict[str, Any], recipes: Sequence[str]) -> str:
    """The recipe whose network, length and objective the run has."""
    parts = ("model.", "data.length", "objective")
    for recipe in recipes:
        planned = settings_of(RECIPES[recipe])
        if all(settings.get(name, value) == value for name, value in planned.items() if name.startswith(parts)):
            return recipe
    raise ValueError(
        f"{run} has another network, length or objective than {' and '.join(recipes)}; plan its own recipe"
    )

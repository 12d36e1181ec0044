"""What networks cost: images per second, memory of sampling, and time and memory of an update."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from fpmgm.evaluation.tables import Column, markdown
from fpmgm.experiments.benchmark import Benchmark, config_of
from fpmgm.experiments.image_mini.lines import DEEP, FP, SHALLOW
from fpmgm.experiments.image_mini.page import ImagePage
from fpmgm.experiments.image_mini.quoted import quoted
from fpmgm.experiments.image_mini.tables import not_here
from fpmgm.experiments.parts import Part, Reading
from fpmgm.experiments.text_mini.quoted import quoted as quoted_text
from fpmgm.experiments.timings import TIMING, about_timing, round_ratio, timed, update_memories
from fpmgm.recipes import RECIPES

SPEED = "speed"
NAMES = tuple(line.recipe for line in (DEEP, SHALLOW, FP))
"""Recipes, whose networks are timed with random weights; ratios are to the first."""
BATCH, BUDGET = 32, 96
OF_TEXT = "The paper gives no latency of images; that of language is this."


class Cost(NamedTuple):
    """What a network costs, and that over the first network's."""

    name: str
    parameters: int
    found: Mapping[str, Any]
    memory: int
    """Of the largest update."""
    sampling: Reading
    update: Reading

    @property
    def seconds(self) -> float:
        return median(self.found["seconds"])


def _told(reading: Reading) -> str:
    return f"{reading.value:.3f} [{reading.low:.3f}, {reading.high:.3f}]"


COLUMNS = (
    Column(title="network", value=lambda each: each.name),
    Column(title="parameters", value=lambda each: f"{each.parameters:,}"),
    Column(title="seconds a batch", value=lambda each: each.seconds, digits=3),
    Column(title="images a second", value=lambda each: BATCH / each.seconds, digits=1),
    Column(title="ratio of time", value=lambda each: _told(each.sampling)),
    Column(title="MB of sampling", value=lambda each: each.found["peak_bytes"] / 1e6, digits=0),
    Column(title="seconds an update", value=lambda each: median(each.found["update_seconds"]), digits=3),
    Column(title="ratio of time, update", value=lambda each: _told(each.update)),
    Column(title="MB of an update", value=lambda each: each.memory / 1e6, digits=0),
)


def speed_part(page: ImagePage) -> Part:
    """Times of networks that took turns, if they were measured or are asked for, and the paper's beside them."""
    quotes = f"{quoted('training').rstrip()}\n\n{OF_TEXT} {quoted_text('latency').rstrip()}"
    if SPEED not in page.asked and not is_timed(page):
        return Part(text=f"{not_here(SPEED)}\n\n{quotes}")
    found = timed(page, _asked(page), networks())
    memories = update_memories(page, NAMES, networks(), BATCH, _most_iterations())
    costs = [_cost(index, found, memories) for index in range(len(NAMES))]
    words = (
        f"Networks have random weights and take turns; ratios are medians of those within a round, with the least and "
        f"the most. Of {BATCH} images at {BUDGET} block evaluations without guidance, two batches warm up and "
        f"{page.repeats} are timed, from all masked to the last code, without tokenizer and judge. An update has "
        f"{BATCH} images; its time is at the mean draw of the paper's numbers of iterations, its memory the peak of "
        "the largest one of the recipe."
    )
    readings = {"images, time of sampling": [costs[-1].sampling], "images, time of an update": [costs[-1].update]}
    return Part(text=f"{words}\n\n{markdown(costs, COLUMNS).rstrip()}\n\n{quotes}", readings=readings)


def _asked(page: ImagePage) -> Benchmark:
    return Benchmark(names=NAMES, budget=BUDGET, batch_size=BATCH, repeats=page.repeats, train=True, device=page.device)


def networks() -> list[str]:
    """What the timed networks are known by."""
    return [str(config_of(name)) for name in NAMES]


def is_timed(page: ImagePage) -> bool:
    """Whether the times are there."""
    return page.knows(TIMING, about_timing(_asked(page), networks()))


def _most_iterations() -> tuple[int, int]:
    """Without and with gradients, of the recipe with a fixed point."""
    objective: Any = RECIPES[FP.recipe].objective
    return objective.iterations.no_grad_max, objective.iterations.grad_max


def _cost(index: int, found: Sequence[Mapping[str, Any]], memories: Sequence[int]) -> Cost:
    own, first = found[index], found[0]
    return Cost(
        name=(DEEP, SHALLOW, FP)[index].name,
        parameters=sum(each.numel() for each in config_of(NAMES[index]).build().parameters()),
        found=own,
        memory=memories[index],
        sampling=round_ratio("", own, first, "seconds"),
        update=round_ratio("", own, first, "update_seconds"),
    )

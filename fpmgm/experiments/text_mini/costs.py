"""Sections on cost: parameters, updates and memory, tokens per second, latency, and quality against it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from fpmgm.checkpoint import find_folder, read_config
from fpmgm.evaluation.plots import COLOURS, quality_against_cost, save
from fpmgm.evaluation.tables import Column, markdown
from fpmgm.evaluation.text import GENERATIVE
from fpmgm.experiments.benchmark import Benchmark, config_of
from fpmgm.experiments.parts import Part, Reading
from fpmgm.experiments.text_mini.compared import measured
from fpmgm.experiments.text_mini.headline import main_tables
from fpmgm.experiments.text_mini.lines import FP, MDLM
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.quoted import quoted
from fpmgm.experiments.text_mini.section import Section
from fpmgm.experiments.timings import round_ratio, timed, update_memories

BATCH = 4
MOST_ITERATIONS = (4, 6)
"""Solver iterations of the largest update, without and with gradients; the paper's memory is that of such updates."""
BUSY = (
    "Times are from the machine that made this page. Contestants took turns, and ratios are medians of those within a "
    "round, with the least and the most: what slows a whole round cancels."
)


def _timed(page: Page, budget: int, *, train: bool = False) -> list[dict[str, Any]]:
    """Rounds of MDLM and of FP-MDLM with three-state reuse, measured once for each pair of networks."""
    names = _names(page)
    asked = Benchmark(
        names=tuple(names),
        budget=budget,
        batch_size=BATCH,
        repeats=page.sizes.repeats,
        train=train,
        device=page.device,
    )
    return timed(page, asked, _networks(names))


def _names(page: Page) -> list[str]:
    return [page.models(each)[0].model for each in (MDLM, FP)]


def _networks(names: Sequence[str]) -> list[str]:
    return [str(read_config(find_folder(name))) for name in names]


def _ratio(where: str, found: Sequence[Mapping[str, Any]], name: str) -> Reading:
    """Of the second to the first, by round."""
    return round_ratio(where, found[1], found[0], name)


def _memory(page: Page) -> list[int]:
    names = _names(page)
    return update_memories(page, names, _networks(names), page.sizes.batch_size, MOST_ITERATIONS)


class Bar(NamedTuple):
    """One kind of cost of both networks."""

    what: str
    mdlm: str
    fp: str
    ratio: Reading


BARS = (
    Column(title="cost", value=lambda bar: bar.what),
    Column(title="MDLM", value=lambda bar: bar.mdlm),
    Column(title="FP-MDLM", value=lambda bar: bar.fp),
    Column(title="ratio", value=lambda bar: f"{bar.ratio.value:.3f} [{bar.ratio.low:.3f}, {bar.ratio.high:.3f}]"),
)


def _cost(page: Page) -> Part:
    counts = [
        sum(parameter.numel() for parameter in config_of(page.models(each)[0].model).build().parameters())
        for each in (MDLM, FP)
    ]
    timed, memory = _timed(page, page.sizes.pair[-1], train=True), _memory(page)
    seconds = [median(each["update_seconds"]) for each in timed]
    megabytes = [f"{each / 1e6:.0f}" for each in memory]
    size, bytes_ratio = counts[1] / counts[0], memory[1] / max(memory[0], 1)
    bars = [
        Bar("parameters", f"{counts[0]:,}", f"{counts[1]:,}", Reading("", size, size, size)),
        Bar("seconds of an update", f"{seconds[0]:.3f}", f"{seconds[1]:.3f}", _ratio("", timed, "update_seconds")),
        Bar("peak memory of an update, MB", megabytes[0], megabytes[1], Reading("", *[bytes_ratio] * 3)),
    ]
    _draw_bars(page, bars)
    words = (
        f"{BUSY} An update has {BATCH} sequences and the mean of the paper's numbers of iterations, which are larger "
        f"than those that the base model was trained with; its memory is that of the largest one, with "
        f"{page.sizes.batch_size} sequences and {MOST_ITERATIONS[1]} iterations with gradients, in a process of its "
        "own. Updates and samples of this section are in float32. CoFRe has the costs of FP-MDLM, and its stage beside "
        "them."
    )
    table = markdown(bars, BARS).rstrip()
    text = f"{words}\n\n![FP-MDLM relative to MDLM](cost.png)\n\n{table}\n\n{quoted('cost').rstrip()}"
    return Part(text=text, readings={bar.what.partition(",")[0]: [bar.ratio] for bar in bars})


def _draw_bars(page: Page, bars: Sequence[Bar]) -> None:
    figure = Figure(figsize=(6, 3.2), layout="constrained", facecolor="white")
    axis = figure.subplots()
    for offset, (name, heights) in enumerate((("MDLM", [1.0] * len(bars)), ("FP-MDLM", [b.ratio.value for b in bars]))):
        places = [index + 0.4 * (offset - 0.5) for index in range(len(bars))]
        axis.bar(places, heights, 0.36, color=COLOURS[offset], label=name)
    axis.set_xticks(range(len(bars)), [bar.what.partition(",")[0] for bar in bars])
    axis.set_ylabel("relative to MDLM")
    axis.legend(frameon=False)
    save(figure, page.folder / "cost")


class Speed(NamedTuple):
    """Both lines at a budget."""

    budget: int
    mdlm: float
    fp: float
    ratio: Reading
    tokens: tuple[float, float]
    megabytes: tuple[float, float]
    perplexity: tuple[float, float]


SPEEDS = (
    Column(title="blocks", value=lambda each: each.budget),
    Column(title="MDLM + SDTT, s", value=lambda each: each.mdlm, digits=2),
    Column(title="CoFRe, s", value=lambda each: each.fp, digits=2),
    Column(title="ratio", value=lambda each: f"{each.ratio.value:.2f} [{each.ratio.low:.2f}, {each.ratio.high:.2f}]"),
    Column(title="MDLM + SDTT, tokens/s", value=lambda each: each.tokens[0], digits=0),
    Column(title="CoFRe, tokens/s", value=lambda each: each.tokens[1], digits=0),
    Column(title="MDLM + SDTT, peak MB", value=lambda each: each.megabytes[0], digits=0),
    Column(title="CoFRe, peak MB", value=lambda each: each.megabytes[1], digits=0),
    Column(title="MDLM + SDTT, perplexity", value=lambda each: each.perplexity[0]),
    Column(title="CoFRe, perplexity", value=lambda each: each.perplexity[1]),
)


def _latency(page: Page) -> Part:
    (table,) = main_tables(page)
    found = measured(page, [table])
    names = ("MDLM + SDTT", "CoFRe")
    speeds, rows = [], []
    for budget in table.budgets:
        timed = _timed(page, budget)
        own = [found[name, budget, 1.0] for name in names]
        medians = [median(each["seconds"]) for each in timed]
        speeds.append(
            Speed(
                budget,
                medians[0],
                medians[1],
                _ratio(f"{budget} blocks", timed, "seconds"),
                tokens=(timed[0]["tokens_per_second"], timed[1]["tokens_per_second"]),
                megabytes=(timed[0]["peak_bytes"] / 1e6, timed[1]["peak_bytes"] / 1e6),
                perplexity=(_perplexity(own[0]), _perplexity(own[1])),
            )
        )
        for name, line, seconds in zip(names, own, medians, strict=True):
            rows.append(replace(line[0], model=name, seconds=seconds / BATCH * line[0].protocol.num_samples))
    quality_against_cost(rows, GENERATIVE.name, GENERATIVE.title, page.folder / "latency")
    words = (
        f"{BUSY} A batch has {BATCH} sequences; two batches warm up, and {page.sizes.repeats} are timed, from all "
        "masked to the last token, without the judge. Peak memory is that of a batch over what was there before, in a "
        "process of its own. Perplexities are those of the main table, which has their "
        "frontier."
    )
    picture = "![Generative perplexity against cost and seconds, first seed](latency.png)"
    text = f"{words}\n\n{markdown(speeds, SPEEDS).rstrip()}\n\n{picture}\n\n{quoted('latency').rstrip()}"
    return Part(text=text, readings={"CoFRe / MDLM + SDTT": [each.ratio for each in speeds]})


def _perplexity(rows: Sequence[Any]) -> float:
    return mean(row.metrics[GENERATIVE.name].value for row in rows)


SECTIONS = (
    Section(
        name="cost",
        title="Parameters, training time and memory",
        of_paper="Figure 1 (right), and the training costs",
        run=_cost,
        minutes=5.0,
    ),
    Section(
        name="latency",
        title="Tokens per second, latency, and quality against latency",
        of_paper="the table and the figure of latency",
        run=_latency,
        tables=main_tables,
        minutes=5.0,
    ),
)

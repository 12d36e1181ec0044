"""The parts of the report on images: tables, costs, and grids of samples that nobody chose."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from fpmgm.checkpoint import Model, load
from fpmgm.codecs.images import Picture, as_picture
from fpmgm.data.pixels import PixelsConfig, load_pixels
from fpmgm.evaluation.images import ImageEvaluator, image_codec
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.rows import Row
from fpmgm.files import whole_file
from fpmgm.generation import Sampling, generate
from fpmgm.pictures import grid_png
from fpmgm.training.metrics import read_metrics

FINDINGS = "findings.md"
"""A file beside the report, written by a person, which the report opens with if it is there."""
COLUMNS = 10
"""Of a grid: a class each."""
NUM_ROWS = 4
GRID_BUDGET = 96

Lines = Mapping[tuple[str, str], Sequence[Sequence[Row]]]
"""By name and reuse: for every seed a row for every budget."""


def claims(folder: Path) -> str:
    """What the tables show of the paper's claims, in a person's words; a hint if nobody has written them yet."""
    file = folder / FINDINGS
    if not file.is_file():
        return f"(Nobody has written down yet what these tables show: put it into {FINDINGS} beside this page.)"
    return file.read_text(encoding="utf-8").strip()


def results_table(lines: Lines, budgets: Sequence[int], num_samples: int, cfg_weight: float) -> str:
    """A line for every network and reuse, a column for every budget; the best distance of a column is bold."""
    means = {line: _by_budget(by_seed, "frechet") for line, by_seed in lines.items()}
    best = {budget: min(own[budget].value for own in means.values()) for budget in budgets}
    text = [
        f"{num_samples} samples a cell and seed, {_guided(cfg_weight)}; 95 % intervals over samples, of several seeds "
        "all that they span.",
        "",
        f"| model | reuse | seeds | {' | '.join(f'{budget} blocks' for budget in budgets)} |",
        f"| --- | --- | --- |{' --- |' * len(budgets)}",
    ]
    for (name, reuse), by_seed in lines.items():
        own, accuracy = means[name, reuse], _by_budget(by_seed, "accuracy")
        cells = [f"{_bold(own[budget], best[budget])}<br>{accuracy[budget].value:.1%}" for budget in budgets]
        text.append(f"| {name} | {reuse} | {len(by_seed)} | {' | '.join(cells)} |")
    return "\n".join(text)


def _by_budget(by_seed: Sequence[Sequence[Row]], metric: str) -> dict[int, Interval]:
    """A metric over the seeds that were measured at a budget."""
    found: dict[int, list[Interval]] = {}
    for row in (row for rows in by_seed for row in rows):
        found.setdefault(row.budget, []).append(row.metrics[metric])
    return {budget: _over_seeds(own) for budget, own in found.items()}


def _guided(cfg_weight: float) -> str:
    return f"guidance of weight {cfg_weight:g}" if cfg_weight else "without guidance"


def _bold(own: Interval, best: float) -> str:
    value = f"**{own.value:.2f}**" if own.value == best else f"{own.value:.2f}"
    return f"{value} [{own.low:.2f}, {own.high:.2f}]"


def _over_seeds(found: Sequence[Interval]) -> Interval:
    """The mean over seeds, and all that their intervals span."""
    return Interval(
        value=sum(each.value for each in found) / len(found),
        low=min(each.low for each in found),
        high=max(each.high for each in found),
    )


def real_table(model: Model, evaluator: ImageEvaluator, num_samples: int) -> str:
    """The same numbers of real images, and of real images through the tokenizer: what samples could reach at best."""
    lines = ["## Real images", "", "| images | Fréchet distance | label accuracy |", "| --- | --- | --- |"]
    for name, metrics in evaluator.references(model, num_samples).items():
        distance, accuracy = metrics["frechet"], metrics["accuracy"]
        lines.append(f"| {name} | {_bold(distance, -1.0)} | {accuracy.value:.1%} |")
    return "\n".join(lines)


def inception_table(found: Mapping[str, Sequence[Row]], num_samples: int) -> str:
    """FID, KID, precision and recall of the headline lines, one seed."""
    lines = [
        "## FID by Inception",
        "",
        f"{num_samples} samples a cell against at most 2,500 held-out images, one seed. With so few samples FID is "
        "biased upwards: it is not comparable with values of other numbers of samples.",
        "",
        "| model | reuse | blocks | FID | KID | precision | recall |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, rows in found.items():
        for row in rows:
            values = [row.metrics[metric] for metric in ("fid", "kid", "precision", "recall")]
            cells = " | ".join(f"{each:.{digits}f}" for each, digits in zip(values, (1, 4, 3, 3), strict=True))
            lines.append(f"| {name.partition(', ')[2]} | {row.sampling.reuse} | {row.budget} | {cells} |")
    return "\n".join(lines)


def costs_table(runs: Mapping[str, Path]) -> str:
    """What training took: updates and minutes, as the runs counted them on whatever machine was free."""
    lines = [
        "## What training took",
        "",
        "Minutes of updates are those of a machine with neighbours; `benchmarks/images.py` compares speeds.",
        "",
        "| model | updates | minutes | validation, nats a masked token |",
        "| --- | --- | --- | --- |",
    ]
    for name, run in runs.items():
        rows = read_metrics(run)
        minutes = sum(row.get("seconds", 0.0) for row in rows) / 60
        validation = next((row["validation"] for row in reversed(rows) if "validation" in row), None)
        told = "" if validation is None else f"{validation:.3f}"
        lines.append(f"| {name} | {rows[-1]['update']:,} | {minutes:.0f} | {told} |")
    return "\n".join(lines)


def grids(models: Mapping[str, str], folder: Path, sampling: Callable[[int], Sampling]) -> str:
    """Grids of samples, the first indices of seed 0, a class a column, beside real images."""
    lines = ["## Samples, uncurated", "", "A class a column, the first samples of seed 0; real images first.", ""]
    num = COLUMNS * NUM_ROWS
    first = load(next(iter(models.values())))
    _draw(folder / "real.png", real_pictures(first, num))
    lines.append("![Real held-out images](real.png)")
    for index, (name, place) in enumerate(models.items()):
        how = sampling(GRID_BUDGET)
        out = generate(load(place), num_samples=num, **vars(how))
        file = f"samples-{index}.png"
        _draw(folder / file, out.shown)
        lines += ["", f"{name}, {out.block_evals} block evaluations:", "", f"![Samples of {name}]({file})"]
    return "\n".join(lines)


def real_pictures(model: Model, num: int) -> list[Picture]:
    """Held-out images, of the classes in turn."""
    assert isinstance(model.data, PixelsConfig)
    pixels, names = load_pixels(model.data), image_codec(model).class_names
    by_class = [pixels.held_out[pixels.labels[pixels.held_out] == index] for index in range(len(names))]
    rows = [by_class[index % len(names)][index // len(names)] for index in range(num)]
    return [as_picture(torch.from_numpy(pixels.images[row].copy())) for row in rows]


def _draw(file: Path, pictures: Sequence[Picture]) -> None:
    with whole_file(file) as scratch:
        scratch.write_bytes(grid_png(list(pictures), columns=COLUMNS, scale=2))

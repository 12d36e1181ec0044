"""Draws the figures of docs/concepts.md with the code that they explain: python scripts/concept_figures.py [FOLDER]"""

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.budget import ALLOCATIONS, Cost, plan
from fpmgm.checkpoint import load
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.plots import COLOURS
from fpmgm.generation import generate
from fpmgm.masking import mask_schedule_by_name, masked_below
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import Reuse, reuse_by_name, three_state_reuse
from fpmgm.sampling import Step, even_times, masked_start, sample
from fpmgm.solvers import Solver, anderson, picard
from fpmgm.transitions import Ancestral
from fpmgm.types import Solved, Tokens

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"
BLUE, ORANGE, GREEN, PINK, GREY = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3], "#d9d9d9"
NUM_ITERS = 10
MASK = 0


def save(figure: Figure, file: Path) -> Path:
    """Write the figure as SVG with real text in it, the same bytes whenever the same is drawn."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "fpmgm", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(file, metadata={"Date": None})
    return file


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def draw_denoiser(file: Path) -> Path:
    """The parts of a denoiser, and what goes round in its middle."""
    figure = _figure(9, 2.5)
    axis = figure.subplots()
    axis.set(xlim=(0, 18), ylim=(0, 5))
    axis.axis("off")
    boxes = {
        1.9: ("tokens z", "some of them masked", "white"),
        5.4: ("pre", "K_pre blocks: h_pre", "#e8f1f8"),
        9.4: ("fixed point", "h = F(h), K_fp blocks", "#fdebd0"),
        13.4: ("post and head", "K_post blocks: logits", "#e8f1f8"),
        16.6: ("transition", "new tokens", "white"),
    }
    for middle, (name, about, colour) in boxes.items():
        box = FancyBboxPatch(
            (middle - 1.25, 1.6), 2.5, 1.7, boxstyle="round,pad=0.1", facecolor=colour, edgecolor="#666"
        )
        axis.add_patch(box)
        axis.text(middle, 2.75, name, ha="center", va="center", fontsize=11)
        axis.text(middle, 2.05, about, ha="center", va="center", fontsize=6.5, color="#444")
    places = list(boxes)
    for left, right in pairwise(places):
        _arrow(axis, (left + 1.35, 2.45), (right - 1.35, 2.45), 0.0)
    _arrow(axis, (10.2, 3.45), (8.6, 3.45), 0.9)
    axis.text(9.4, 4.75, "N iterations of the solver", ha="center", fontsize=8, color=ORANGE)
    _arrow(axis, (16.6, 1.45), (1.9, 1.45), -0.12)
    axis.text(9.4, 0.15, "the next step starts from the last solution (reuse)", ha="center", fontsize=8, color=BLUE)
    return save(figure, file)


def _arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float], bend: float) -> None:
    style = f"arc3,rad={bend}"
    axis.add_patch(
        FancyArrowPatch(start, end, connectionstyle=style, arrowstyle="-|>", mutation_scale=11, color="#444")
    )


def draw_masks(file: Path) -> Path:
    """One set of uniform numbers masks the same sequence at every time, so that the masks nest."""
    figure = _figure(9, 3)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    length, times = 32, (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
    u = torch.rand(1, length, generator=generator(3)).expand(len(times), -1)
    x = torch.ones(len(times), length, dtype=torch.long)
    z = masked_below(x, u, torch.tensor(times), mask_id=MASK)
    for row, shown in enumerate((z != MASK).tolist()):
        for column, is_visible in enumerate(shown):
            colour = BLUE if is_visible else GREY
            left.add_patch(Rectangle((column, -row), 0.86, 0.7, facecolor=colour))
    left.set(xlim=(-0.5, length + 0.3), ylim=(1 - len(times) - 0.2, 1), xlabel="position")
    left.set_yticks([0.35 - row for row in range(len(times))], [f"t = {t:g}" for t in times])
    left.set_title("visible (blue) and masked (grey) tokens", fontsize=10)
    t = torch.linspace(0.001, 1, 200)
    for index, name in enumerate(("linear", "cosine", "arccos", "exponential")):
        right.plot(t, mask_schedule_by_name(name).masked(t), color=COLOURS[index], label=name)
    right.set(xlabel="time t", ylabel="masked share, 1 - alpha(t)")
    right.legend(frameon=False, fontsize=8)
    right.grid(alpha=0.3)
    return save(figure, file)


def draw_reuse(file: Path) -> Path:
    """What three-state reuse keeps of the last solution, position by position."""
    before = [5, MASK, 7, MASK, MASK, 2, MASK, MASK, 9, MASK, MASK, 4]
    after = [5, MASK, 7, 6, MASK, 2, 8, MASK, MASK, MASK, 3, 4]
    kept = kept_shares(before, after)
    colours = [_state_colour(old, new) for old, new in zip(before, after, strict=True)]
    figure = _figure(9, 2.9)
    axis = figure.subplots()
    for row, tokens in ((1.55, before), (1.15, after)):
        for column, token in enumerate(tokens):
            colour = colours[column] if row < 1.5 else ("white" if token else GREY)
            axis.add_patch(Rectangle((column - 0.42, row), 0.84, 0.3, facecolor=colour, edgecolor="#666"))
            ink = "white" if colour in (BLUE, GREEN) else "black"
            label = str(token) if token else "mask"
            axis.text(column, row + 0.15, label, ha="center", va="center", fontsize=8, color=ink)
    axis.bar(range(len(kept)), kept, width=0.84, color=colours, edgecolor="#666")
    for column, share in enumerate(kept):
        axis.text(column, share + 0.02, f"{share:.2f}", ha="center", fontsize=7)
    axis.set(xlim=(-0.7, 11.7), ylim=(0, 2), ylabel="share kept", xlabel="position")
    axis.set_yticks([0, 0.5, 1, 1.3, 1.7], ["0", "0.5", "1", "tokens now", "tokens before"])
    names = {"unchanged, visible": BLUE, "still masked": GREY, "revealed": GREEN, "masked again": PINK}
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="#666") for colour in names.values()]
    figure.legend(handles, list(names), loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return save(figure, file)


def kept_shares(before: list[int], after: list[int]) -> list[float]:
    """The shares of the last solution that the paper's rule keeps: with h_pre 0 and the solution 1, they are h_init."""
    z, z_last = torch.tensor([after]), torch.tensor([before])
    h_pre = torch.zeros(1, len(after), 1)
    h_init = three_state_reuse(h_pre, z, Solved(z=z_last, h_star=torch.ones_like(h_pre)), mask_id=MASK)
    shares: list[float] = h_init[0, :, 0].tolist()
    return shares


def _state_colour(old: int, new: int) -> str:
    if old == new:
        return BLUE if new else GREY
    return GREEN if new else PINK


def draw_allocations(file: Path) -> Path:
    """How each allocation spreads the iterations of one budget over the denoising steps."""
    figure = _figure(9, 2.3)
    axes = figure.subplots(1, len(ALLOCATIONS), sharey=True)
    for index, (axis, name) in enumerate(zip(axes, ALLOCATIONS, strict=True)):
        iterations = plan(96, Cost(1, 1, 1), num_steps=16, allocation=name).iterations
        axis.bar(range(1, 17), iterations, color=COLOURS[index])
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("denoising step")
    axes[0].set_ylabel("solver iterations")
    return save(figure, file)


def draw_solve(denoiser: Denoiser, z: Tokens, file: Path) -> Path:
    """How fast the solver converges, by solver and by where it starts."""
    figure = _figure(9, 3.1)
    left, right = figure.subplots(1, 2, sharey=True)
    for index, t in enumerate((0.9, 0.5, 0.1)):
        masked = _masked(denoiser, z, t)
        for name, solver, style in (("Picard", picard, "-"), ("Anderson", anderson, "--")):
            residuals = _residuals(denoiser, masked, t, solver)
            left.plot(range(1, NUM_ITERS + 1), residuals, style, color=COLOURS[index], label=f"{name}, t = {t}")
    left.set(xlabel="solver iteration", ylabel="relative residual", yscale="log", title="from h_pre")
    left.legend(frameon=False, fontsize=7)
    for index, name in enumerate(("none", "full", "three-state")):
        residuals = _residuals_of_second_step(denoiser, z, reuse_by_name(name))
        right.plot(range(1, NUM_ITERS + 1), residuals, color=COLOURS[index], label=name)
    right.set(xlabel="solver iteration", title="t = 0.45, after a step at t = 0.5, by reuse")
    right.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        axis.grid(alpha=0.3)
    return save(figure, file)


def _masked(denoiser: Denoiser, z: Tokens, t: float) -> Tokens:
    u = torch.rand(z.shape, generator=generator(0))
    return masked_below(z, u, torch.full((len(z),), t), mask_id=denoiser.mask_id)


@torch.no_grad()
def _residuals(
    denoiser: Denoiser, z: Tokens, t: float, solver: Solver, start: Callable[..., torch.Tensor] = lambda h_pre: h_pre
) -> list[float]:
    """The mean residual after each number of iterations; every number is a solve of its own."""
    cond = denoiser.condition(z, t)
    h_pre = denoiser.pre(z, cond)
    f = denoiser.fixed_point_map(h_pre, cond)
    return [float(solver(f, start(h_pre), n).residual.mean()) for n in range(1, NUM_ITERS + 1)]


@torch.no_grad()
def _residuals_of_second_step(denoiser: Denoiser, z: Tokens, rule: Reuse) -> list[float]:
    first, second = _masked(denoiser, z, 0.5), _masked(denoiser, z, 0.45)
    cond = denoiser.condition(first, 0.5)
    h_pre = denoiser.pre(first, cond)
    last = Solved(z=first, h_star=picard(denoiser.fixed_point_map(h_pre, cond), h_pre, 4).h)

    def start(h: torch.Tensor) -> torch.Tensor:
        return rule(h, second, last, mask_id=denoiser.mask_id)

    return _residuals(denoiser, second, 0.45, picard, start)


def draw_filling(denoiser: Denoiser, first: int, length: int, file: Path) -> Path:
    """Which positions a sampler fills at which step, and how far its solver was from the fixed point."""
    steps: list[Step] = []
    spending = plan(96, denoiser.cost)
    sample(
        denoiser,
        masked_start(denoiser, [[first]], length),
        times=even_times(spending.num_steps),
        iterations=spending.iterations,
        transition=Ancestral(),
        reuse=three_state_reuse,
        rng=Streams.of(0, range(1)),
        on_step=steps.append,
    )
    figure = _figure(9, 3.1)
    left, right = figure.subplots(1, 2, width_ratios=(1.8, 1))
    shown = np.array([(step.z_next[0] != denoiser.mask_id).tolist() for step in steps], float)
    left.imshow(shown, aspect="auto", cmap="Blues", vmin=-0.15, vmax=1.3, interpolation="nearest")
    left.set(xlabel="position", ylabel="denoising step", title="tokens that are visible after each step")
    right.plot([float(step.solution.residual[0]) for step in steps], color=ORANGE, marker="o", markersize=3)
    right.set(xlabel="denoising step", ylabel="residual at the last iteration", yscale="log")
    right.grid(alpha=0.3)
    return save(figure, file)


def main(folder: Path = FOLDER, *, with_model: bool = True) -> list[Path]:
    """Draw all figures; without the bundled model, those of a solver are of a small network with fresh weights."""
    files = [
        draw_denoiser(folder / "denoiser.svg"),
        draw_masks(folder / "masks.svg"),
        draw_reuse(folder / "reuse.svg"),
        draw_allocations(folder / "allocations.svg"),
    ]
    if with_model:
        model = load()
        denoiser, tokens = model.denoiser, torch.tensor(generate(model, num_samples=8, budget=192, seed=0).tokens)
    else:
        config = MDLMConfig(
            vocab_size=40, mask_id=39, length=32, width=32, num_heads=2, num_pre=1, num_fp=1, num_post=1
        )
        denoiser = mdlm(config).eval()
        tokens = torch.randint(39, (2, 32), generator=generator(1))
    files.append(draw_solve(denoiser, tokens, folder / "solve.svg"))
    files.append(draw_filling(denoiser, int(tokens[0, 0]), tokens.shape[1], folder / "filling.svg"))
    return files


if __name__ == "__main__":
    for drawn in main(*map(Path, sys.argv[1:2])):
        print(f"wrote {drawn}", file=sys.stderr)

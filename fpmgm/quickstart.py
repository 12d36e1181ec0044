"""The quick start: train a toy denoiser for a minute, watch it write, and see what a budget buys."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpmgm.backbones.dit import MDLMConfig, mdlm
from fpmgm.budget import plan
from fpmgm.data import toy
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.diversity import unigram_entropy
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import three_state_reuse
from fpmgm.sampling import Sampled, Step, even_times, masked_start, sample
from fpmgm.training.progress import Progress
from fpmgm.transitions import Ancestral

MODEL = MDLMConfig(
    vocab_size=toy.VOCAB_SIZE,
    mask_id=toy.MASK_ID,
    length=toy.LENGTH,
    width=64,
    num_heads=4,
    num_pre=1,
    num_fp=1,
    num_post=1,
    dropout=0.0,
)
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
BUDGETS = (6, 24, 72)


@dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Train a toy FP-MDLM for about a minute on sentences made on the spot, then sample it at three budgets."""

    updates: int = 1200
    """Training updates, of 64 sentences each."""
    num_samples: int = 512
    """Sentences sampled at each budget."""
    seed: int = 0
    """What every random number depends on."""
    svg: str = ""
    """Save what the terminal shows as a picture, to this file."""

    def __post_init__(self) -> None:
        if self.updates < 1 or self.num_samples < 1:
            raise ValueError(f"updates is {self.updates}, num_samples {self.num_samples}; both must be at least 1")
        if self.svg and not Path(self.svg).resolve().parent.is_dir():
            raise ValueError(f"svg is {self.svg}; its folder does not exist")


def run(config: Quickstart) -> None:
    """Print the whole quick start."""
    console = Console(record=bool(config.svg), width=100 if config.svg else None, highlight=False)
    denoiser = mdlm(MODEL, seed=config.seed)
    parameters = sum(p.numel() for p in denoiser.parameters())
    console.print(f"An FP-MDLM of 1/1/1 blocks with {parameters:,} parameters learns sentences such as")
    for tokens in toy.sentences(3, rng=generator(config.seed)).tolist():
        console.print(f"    {toy.decode(tokens)}", style="green")
    train(denoiser, config, console)
    watch(denoiser, "the _ knight _ _ _ _ _ _ _ .", config.seed, console)
    console.print(budget_table(denoiser, config))
    console.print("Next: docs/concepts.md for the method, ./run test for its proof.")
    if config.svg:
        picture = console.export_svg(title="./run quickstart")
        Path(config.svg).write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))  # no fonts from afar


def train(denoiser: Denoiser, config: Quickstart, console: Console) -> None:
    """Minimise the masked cross entropy."""
    # Fewer iterations than the paper's 0-4 and 3-6: eleven words need less depth, and a minute is short.
    counts = IterationCounts(no_grad_max=2, grad_min=1, grad_max=3)
    objective = MaskedCrossEntropy(weighting="masked", counts=counts)
    optimiser = torch.optim.AdamW(denoiser.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    lr_schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda u: min(1, (u + 1) / 50, 2.5 * (1 - u / config.updates))
    )
    start = time.perf_counter()
    with Progress("update", config.updates, seconds=10.0) as progress:
        for update in range(config.updates):
            rng = generator(config.seed, update)
            loss = objective(denoiser, toy.sentences(BATCH_SIZE, rng=rng), rng=rng).total
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(denoiser.parameters(), 1.0)
            optimiser.step()
            lr_schedule.step()
            progress.step(f"loss {float(loss.detach()):.3f}")
    seconds = time.perf_counter() - start
    console.print(f"Trained {config.updates} updates in {seconds:.0f} s.\n")


def watch(denoiser: Denoiser, prompt: str, seed: int, console: Console) -> None:
    """Fill in a prompt, one line per denoising step, new words in bold."""
    console.print(f"It fills in [green]{prompt}[/]")

    def show(step: Step) -> None:
        line = Text(f"  t = {step.t:.2f}  ")
        for before, after in zip(step.z[0].tolist(), step.z_next[0].tolist(), strict=True):
            line.append(toy.decode([after]) + " ", style="bold" if before != after else "dim")
        console.print(line)

    _sample(denoiser, [toy.encode(prompt)], 48, seed, on_step=show)
    console.print()


def budget_table(denoiser: Denoiser, config: Quickstart) -> Table:
    """What each budget buys, measured now."""
    table = Table(title=f"{config.num_samples} sentences at each budget, three-state reuse")
    for column in ("budget", "block evaluations", "steps", "coherent", "different", "entropy", "seconds"):
        table.add_column(column, justify="right")
    for budget in BUDGETS:
        start = time.perf_counter()
        sampled = _sample(denoiser, [toy.encode(toy.START)] * config.num_samples, budget, config.seed)
        seconds = time.perf_counter() - start
        rows = sampled.z.tolist()
        table.add_row(
            str(budget),
            str(int(sampled.block_evals.max())),
            str(plan(budget, denoiser.cost).num_steps),
            f"{sum(map(toy.is_coherent, rows)) / len(rows):.1%}",
            f"{len({tuple(row) for row in rows}) / len(rows):.1%}",
            f"{float(unigram_entropy(sampled.z).mean()):.2f}",
            f"{seconds:.2f}",
        )
    return table


def _sample(
    denoiser: Denoiser,
    prompts: list[list[int]],
    budget: int,
    seed: int,
    on_step: Callable[[Step], None] | None = None,
) -> Sampled:
    spending = plan(budget, denoiser.cost)
    return sample(
        denoiser,
        masked_start(denoiser, prompts),
        times=even_times(spending.num_steps),
        iterations=spending.iterations,
        transition=Ancestral(),
        reuse=three_state_reuse,
        rng=Streams.of(seed, range(len(prompts))),
        on_step=on_step,
    )

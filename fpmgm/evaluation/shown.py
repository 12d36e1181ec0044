"""Samples for a model card."""

from typing import Any

from fpmgm.checkpoint import Model
from fpmgm.draws import Draw
from fpmgm.generation import Sampling, generate
from fpmgm.randomness import Streams
from fpmgm.sampling import left_to_right, masked_start


def samples_of(model: Model, num: int) -> tuple[str, list[Any]]:
    """How samples were made, and what a person sees of them: seed 0, the first indices, whatever they are."""
    if model.config.is_causal:
        assert model.speech.first is not None
        start = masked_start(model.denoiser, [[model.speech.first]] * num)
        rows = left_to_right(model.denoiser, start, draw=Draw(), rng=Streams.of(0, range(num))).z.tolist()
        return "Left to right, temperature 1, seed 0.", [model.speech.show(row) for row in rows]
    budget = max(Sampling.budget, model.denoiser.cost.step(1))
    out = generate(model, num_samples=num, budget=budget, seed=0)
    return f"{out.block_evals} block evaluations in {out.steps} steps, {told(out.sampling)}.", out.shown


def told(sampling: Sampling) -> str:
    """The settings of sampling that a reader wants to know."""
    guided = f", guidance {sampling.cfg_weight:g}" if sampling.cfg_weight else ""
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return f"{sampling.transition}{guided}, temperature {temperature:g}, seed {sampling.seed}"

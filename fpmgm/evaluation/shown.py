"""Samples for a model card."""

import math
from typing import Any

from fpmgm.checkpoint import Model
from fpmgm.data import Dataset
from fpmgm.draws import Draw
from fpmgm.generation import Sampling, generate, until_end
from fpmgm.progress import StepProgress
from fpmgm.randomness import Streams
from fpmgm.sampling import left_to_right, masked_start


def samples_of(
    model: Model, num: int, data: Dataset | None = None, temperature: float | None = None
) -> tuple[str, list[Any]]:
    """How samples were made, and what a person sees of them: seed 0, the first indices, whatever they are.

    If prompts are given in the data, the model answers held-out ones. Without a temperature, it is the model's own.
    """
    prompts = [] if data is None else held_out_prompts(data, num)
    about = " Each goes on from a held-out prompt." if prompts else ""
    if model.config.is_causal:
        assert model.speech.first is not None
        rows = prompts or [[model.speech.first]] * num
        start = masked_start(model.denoiser, rows)
        draw = Draw() if temperature is None else Draw(temperature=temperature)
        found = left_to_right(model.denoiser, start, draw=draw, rng=Streams.of(0, range(num))).z.tolist()
        if model.has_ends:
            pairs = zip(found, rows, strict=True)
            found = [until_end(row, model.speech, len(given)) for row, given in pairs]
        return f"Left to right, temperature {draw.temperature:g}, seed 0.{about}", [
            model.speech.show(row) for row in found
        ]
    budget = max(Sampling.budget, model.denoiser.cost.step(1))
    asked: dict[str, Any] = {"num_samples": num}
    if prompts:
        asked = {"prompts": [model.speech.show(prompt) for prompt in prompts]}
    with StepProgress("sampling for the card", math.ceil(num / Sampling.batch_size)) as shown:
        out = generate(model, budget=budget, temperature=temperature, seed=0, on_step=shown, **asked)
    return f"{out.block_evals} block evaluations in {out.steps} steps, {told(out.sampling)}.{about}", out.shown


def held_out_prompts(data: Dataset, num: int) -> list[list[int]]:
    """The tokens that are given of `num` held-out rows, spread over all, again from the first if there are fewer."""
    if data.given is None:
        return []
    rows = data.held_out[:: max(1, len(data.held_out) // num)]
    return [data.rows[row][: data.given[row]].tolist() for row in (rows[index % len(rows)] for index in range(num))]


def told(sampling: Sampling) -> str:
    """The settings of sampling that a reader wants to know."""
    guided = f", guidance {sampling.cfg_weight:g}" if sampling.cfg_weight else ""
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return f"{sampling.transition}{guided}, temperature {temperature:g}, seed {sampling.seed}"

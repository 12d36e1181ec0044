"""Does resting change what is filled in? python benchmarks/infilling.py

Half of the tokens of held-out stories are given, spread by chance, and a model fills in the others: with every position
iterated, and with rules that let positions rest, all with the same random numbers. A judge reads the results. Ratios of
its perplexities are paired, sample by sample. The first run draws the held-out stories, which takes minutes.
"""

import argparse
import json
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fpmgm import load
from fpmgm.budget import plan
from fpmgm.checkpoint import Model
from fpmgm.evaluation.cells import RESTING
from fpmgm.evaluation.evaluator import evaluator_for
from fpmgm.evaluation.held_out import data_for
from fpmgm.evaluation.intervals import bootstrap
from fpmgm.evaluation.judges import BUNDLED_JUDGE
from fpmgm.generation import Sampling, rules_of
from fpmgm.provenance import provenance
from fpmgm.randomness import Streams, generator
from fpmgm.sampling import even_times, sample

BATCH = 32


def filled(model: Model, starts: Tensor, how: Sampling) -> tuple[Tensor, float]:
    """The sequences with no mask left, and the position-blocks of one."""
    spending = plan(how.budget, model.denoiser.cost)
    found, worked = [], 0
    for first in range(0, len(starts), BATCH):
        rows = range(first, min(first + BATCH, len(starts)))
        out = sample(
            model.denoiser,
            starts[first : first + BATCH],
            times=even_times(spending.num_steps),
            iterations=spending.iterations,
            rng=Streams.of(how.seed, rows),
            **rules_of(how, model.denoiser.cost),
        )
        found.append(out.z)
        worked += int(out.position_blocks.sum())
    return torch.cat(found), worked / len(starts)


def ratio_of(difference: np.ndarray) -> str:
    """exp of the mean difference of nats, with its interval."""
    return format(bootstrap(difference[:, None], lambda means: np.exp(means[:, 0])), ".3f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="stories-fp")
    parser.add_argument("--budgets", type=int, nargs="+", default=[96])
    parser.add_argument("--num-samples", type=int, default=256)
    arguments = parser.parse_args()
    model, evaluator = load(arguments.model), evaluator_for("text", judge=BUNDLED_JUDGE)
    batch = data_for(model).measured(arguments.num_samples)
    x = batch.x
    is_hidden = batch.sparing(torch.rand(x.shape, generator=generator(0))) < 0.5
    starts = x.masked_fill(is_hidden, model.denoiser.mask_id)
    print(json.dumps({**provenance(), "judge": evaluator.judged_by(), "num_samples": len(x)}))
    for budget in arguments.budgets:
        read = partial(filled, model, starts)
        runs = [read(Sampling(budget=budget, **rule)) for rule in RESTING]
        scores = [evaluator.per_sample(model, tokens) for tokens, _ in runs]
        nats, entropy = (np.array([each[name] for each in scores], float) for name in ("nats", "entropy"))
        for index, rule in enumerate(RESTING):
            print(
                f"budget {budget} {json.dumps(rule)}: work {runs[index][1] / runs[0][1]:.2f}, perplexity "
                f"{np.exp(nats[index].mean()):.2f}, ratio {ratio_of(nats[index] - nats[0])}, entropy "
                f"{entropy[index].mean():.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""How long sampling takes at equal block budgets: python benchmarks/sampling.py

MDLM-small (12 blocks, 768 wide, GPT-2's vocabulary) and its 1/1/1 fixed-point form, random weights, length 256, batch
4, 2 threads. Contestants are interleaved; each time is the median of `--repeats`. Ratios of one run are what counts.
The textbook sampler is MDLM's rule written down plainly: all logits, SUBS and a float64 draw over (B, L, V) at every
step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from fpmgm import Ancestral, Denoiser, MDLMConfig, Streams, even_times, mdlm, no_reuse, plan, sample, three_state_reuse
from fpmgm.provenance import provenance

BUDGETS = (96, 192, 384)
MDLM = MDLMConfig(length=256, dropout=0.0)
COFRE = replace(MDLM, num_pre=1, num_fp=1, num_post=1)


class Textbook:
    """Ancestral sampling as the papers write it; keeps the seconds of each of its parts."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = denoiser
        self.parts = {"blocks": 0.0, "head": 0.0, "subs": 0.0, "draw": 0.0}

    @torch.no_grad()
    def __call__(self, batch: int, budget: int) -> Tensor:
        backbone, mask = self.denoiser.backbone, self.denoiser.mask_id
        times = even_times(budget // self.denoiser.cost.pre)
        z = torch.full((batch, backbone.max_length), mask)
        everywhere = torch.ones_like(z, dtype=torch.bool)
        for t, t_next in pairwise(times):
            begin = time.perf_counter()
            cond = backbone.condition(z, t)
            h = backbone.embed(z)
            for index in range(self.denoiser.cost.pre):
                h = backbone.run_block(index, h, cond)
            begin = self._clock("blocks", begin)
            logits = backbone.head(backbone.finish(h.flatten(0, 1), cond, everywhere)).view(*z.shape, -1)
            begin = self._clock("head", begin)
            logits[..., mask] = -torch.inf
            log_p = logits.double().log_softmax(dim=-1)
            visible = z != mask
            log_p[visible] = -torch.inf
            log_p[visible, z[visible]] = 0
            begin = self._clock("subs", begin)
            weights = log_p.exp() * (t - t_next)
            weights[..., mask] = t_next
            drawn = (weights / -torch.rand_like(weights).log()).argmax(dim=-1)  # an exponential race
            z = torch.where(visible, z, drawn)
            self._clock("draw", begin)
        return z

    def _clock(self, part: str, begin: float) -> float:
        now = time.perf_counter()
        self.parts[part] += now - begin
        return now


def ours(denoiser: Denoiser) -> Callable[[int, int], Tensor]:
    """This library's sampler; with a fixed point, three-state reuse and decreasing iterations."""

    def run(batch: int, budget: int) -> Tensor:
        spending = plan(budget, denoiser.cost, allocation="decreasing")
        out = sample(
            denoiser,
            torch.full((batch, denoiser.max_length), denoiser.mask_id),
            times=even_times(spending.num_steps),
            iterations=spending.iterations,
            transition=Ancestral(),
            reuse=three_state_reuse if denoiser.cost.fp else no_reuse,
            rng=Streams.of(0, range(batch)),
        )
        assert int(out.block_evals.max()) <= budget
        return out.z

    return run


def random_weights(config: MDLMConfig) -> Denoiser:
    """Weights that are nowhere 0: gates of 0 would be a special case."""
    denoiser = mdlm(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in denoiser.modules():
            if isinstance(module, nn.Linear) and not module.weight.any():
                module.weight.copy_(0.02 * torch.randn(module.weight.shape, generator=generator))
    return denoiser


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    plain = random_weights(MDLM)
    textbook = Textbook(plain)
    contestants: dict[str, Callable[[int, int], Tensor]] = {
        "textbook": textbook,
        "mdlm": ours(plain),
        "cofre": ours(random_weights(COFRE)),
        "cofre_linear": ours(random_weights(replace(COFRE, injection="linear"))),
    }
    print(json.dumps(provenance()))
    for run in contestants.values():
        run(arguments.batch, min(arguments.budgets))  # warm-up
    medians: dict[int, dict[str, float]] = {}
    for budget in arguments.budgets:
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        textbook.parts = dict.fromkeys(textbook.parts, 0.0)
        for _ in range(arguments.repeats):
            for name, run in contestants.items():
                begin = time.perf_counter()
                run(arguments.batch, budget)
                seconds[name].append(time.perf_counter() - begin)
        medians[budget] = {name: statistics.median(found) for name, found in seconds.items()}
        for name, found in seconds.items():
            print(f"budget {budget:4} {name:13} {medians[budget][name]:7.2f} s  ({min(found):.2f} to {max(found):.2f})")
        total = sum(textbook.parts.values())
        print("  textbook: " + ", ".join(f"{part} {spent / total:.0%}" for part, spent in textbook.parts.items()))

    def ratio(name: str, other: str) -> dict[str, float]:
        return {str(budget): round(found[name] / found[other], 3) for budget, found in medians.items()}

    result = {
        "mdlm_vs_textbook": max(ratio("mdlm", "textbook").values()),  # the worst of the budgets
        "cofre_vs_mdlm": ratio("cofre", "mdlm"),
        "cofre_linear_vs_mdlm": ratio("cofre_linear", "mdlm"),
        "cofre_vs_textbook": max(ratio("cofre", "textbook").values()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

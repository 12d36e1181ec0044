"""How long sampling takes at equal block budgets: python benchmarks/sampling.py

MDLM-small (12 blocks, 768 wide, GPT-2's vocabulary) and its 1/1/1 fixed-point form, random weights, length 256, batch
4, 2 threads. Contestants are interleaved; each ratio is the median over rounds of the ratio within a round.
The textbook sampler is MDLM's rule written down plainly: all logits, SUBS and a float64 draw over (B, L, V) at every
step. It is timed at the first budget only: a step costs it the same at every budget.
Names that end in `_resting` solve `changed-and-masked`, those in `_second` do so with a whole first iteration at every
second step only, those in `_bare` without any. `infill` is the same fixed-point network filling in sequences of which
half is given.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from fpmgm import Denoiser, MDLMConfig, even_times
from fpmgm.evaluation.latency import Timing, interleave
from fpmgm.experiments.workloads import draw, random_denoiser
from fpmgm.positionwise import Where
from fpmgm.provenance import provenance
from fpmgm.types import Places

BUDGETS = (96, 192, 384)
SHORTEST = 12
MDLM = MDLMConfig(length=256, dropout=0.0)
COFRE = replace(MDLM, num_pre=1, num_fp=1, num_post=1)
LINEAR = replace(COFRE, injection="linear")
DIAGONAL = replace(COFRE, injection="diagonal")
RESTING = Where()
SECOND = Where(whole_every=2)
BARE = Where(whole_first=False)
FIXED_POINTS = ("cofre", "cofre_linear", "cofre_diagonal")
AGAINST_MDLM = tuple(f"{name}{how}" for name in FIXED_POINTS for how in ("", "_resting", "_second", "_bare"))


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
        everywhere = Places.of(torch.ones_like(z, dtype=torch.bool))
        for t, t_next in pairwise(times):
            begin = time.perf_counter()
            cond = backbone.condition(z, t)
            h = backbone.embed(z)
            for index in range(self.denoiser.cost.pre):
                h = backbone.run_block(index, h, cond)
            begin = self._clock("blocks", begin)
            logits = self.denoiser.head(backbone.finish(h.flatten(0, 1), cond, everywhere)).view(*z.shape, -1)
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


class Contestant:
    """A sampler at a budget. Its first call, which warms up and is not timed, is a short one."""

    def __init__(self, sampler: Callable[[int, int], object], batch: int, budget: int) -> None:
        self.sampler, self.batch, self.budget, self.is_warm = sampler, batch, budget, False

    def __call__(self) -> object:
        budget, self.is_warm = self.budget if self.is_warm else SHORTEST, True
        return self.sampler(self.batch, budget)


def rested(name: str, sampler: Callable[..., object]) -> dict[str, Callable[[int, int], object]]:
    """A sampler at all positions, and where it matters."""
    rules = {"resting": RESTING, "second": SECOND, "bare": BARE}
    return {name: sampler, **{f"{name}_{how}": partial(sampler, where=where) for how, where in rules.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--contestants", nargs="+", help="besides mdlm; all of them without this")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    plain, fixed_point = random_denoiser(MDLM), random_denoiser(COFRE)
    textbook = Textbook(plain)
    contestants: dict[str, Callable[[int, int], object]] = {
        "textbook": textbook,
        "mdlm": partial(draw, plain),
        **rested("cofre", partial(draw, fixed_point)),
        **rested("cofre_linear", partial(draw, random_denoiser(LINEAR))),
        **rested("cofre_diagonal", partial(draw, random_denoiser(DIAGONAL))),
        **rested("infill", partial(draw, fixed_point, given=0.5)),
    }
    asked = {"mdlm", *(arguments.contestants or contestants)}
    if unknown := asked - set(contestants):
        parser.error(f"no contestant {min(unknown)}; there are {', '.join(contestants)}")
    contestants = {name: run for name, run in contestants.items() if name in asked}
    print(json.dumps(provenance()))
    found: dict[int, dict[str, Timing]] = {}
    for index, budget in enumerate(arguments.budgets):
        names = [name for name in contestants if index == 0 or name != "textbook"]
        runs = {name: Contestant(contestants[name], arguments.batch, budget) for name in names}
        found[budget] = interleave(runs, arguments.repeats)
        for name, timing in found[budget].items():
            print(f"budget {budget:4} {name:22} {timing}", flush=True)
    if "textbook" in contestants:
        total = sum(textbook.parts.values())
        print("textbook: " + ", ".join(f"{part} {spent / total:.0%}" for part, spent in textbook.parts.items()))

    def by_budget(name: str, other: str = "mdlm") -> dict[str, float]:
        pairs = {
            budget: (timings[name], timings[other])
            for budget, timings in found.items()
            if name in timings and other in timings
        }
        return {str(budget): round(own.against(its), 3) for budget, (own, its) in pairs.items()}

    pairs = [("mdlm", "textbook"), ("cofre", "textbook"), *((name, "mdlm") for name in AGAINST_MDLM)]
    pairs += [("infill_resting", "infill"), ("infill_bare", "infill")]
    shown = [pair for pair in pairs if asked.issuperset(pair)]
    print(json.dumps({f"{name}_vs_{other}": by_budget(name, other) for name, other in shown}))


if __name__ == "__main__":
    main()

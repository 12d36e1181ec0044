"""Who is compared: base models, the stages of `reproduce frontier`, and short runs that only this page needs."""

from dataclasses import replace
from typing import Any

from fpmgm.budget import Cost
from fpmgm.experiments.contestants import Contestant
from fpmgm.experiments.stages import LINES
from fpmgm.experiments.text_mini.page import Page
from fpmgm.experiments.text_mini.section import Line, Table
from fpmgm.experiments.variants import variant
from fpmgm.gradients import IterationCounts
from fpmgm.recipes import RECIPES
from fpmgm.recipes.stories import AS_SAMPLED
from fpmgm.reuse import ReuseName

STAGED = {line.name: line for line in LINES}
"""Base models and stages; these runs are shared with `reproduce frontier`."""
MDLM, FP = STAGED["MDLM"], STAGED["FP-MDLM"]
ADAPTED = Contestant(name="adapted FP-MDLM", recipe="stories-adapt")
FRESH = Contestant(name="adapted, fresh weights", recipe="stories-adapt", changes={"init": "", "init_map": ""})
CONS, DEEP, SHALLOW = "stories-cofre", "stories-mdlm", "stories-fp"
"""Recipes that short runs are cut from."""

REUSES: dict[ReuseName, str] = {"none": "no reuse", "full": "full reuse", "three-state": "three-state"}


def staged(name: str, num_seeds: int = 1) -> Contestant:
    """A stage with so many seeds; the first ones are those that `reproduce frontier` trains."""
    return replace(STAGED[name], num_seeds=num_seeds)


def plain(contestant: Contestant, name: str = "", **settings: Any) -> Line:
    """A line that is sampled as its model usually is."""
    return Line(name or contestant.name, contestant, settings)


def reusing(contestant: Contestant, reuse: ReuseName, **settings: Any) -> Line:
    """A line with a kind of reuse."""
    return Line(f"{contestant.name}, {REUSES[reuse]}", contestant, {"reuse": reuse, **settings})


def every_reuse(contestant: Contestant) -> tuple[Line, ...]:
    """A line for each kind of reuse."""
    return tuple(reusing(contestant, reuse) for reuse in REUSES)


def cofre(num_seeds: int = 1, **settings: Any) -> Line:
    """FP-MDLM, L_CONS and three-state reuse, which the paper calls CoFRe, on our base model."""
    return Line("CoFRe", staged("FP-MDLM + L_CONS", num_seeds), {"reuse": "three-state", **settings})


def table_of(
    page: Page,
    lines: tuple[Line, ...],
    pairs: tuple[tuple[str, str], ...],
    budgets: tuple[int, ...],
    num_samples: int,
) -> Table:
    """A table of one seed, at the temperatures of the page."""
    temperatures = page.sizes.temperatures
    return Table(lines=lines, budgets=budgets, pairs=pairs, temperatures=temperatures, num_samples=num_samples)


def short_stage(page: Page, name: str, objective: Any, start: Contestant | None = None) -> Contestant:
    """A stage from FP-MDLM, or from another run, of few updates, without the rule that stops it."""
    sizes = page.sizes
    cut = {"updates": sizes.stage, "validate_every": sizes.stage, "batch_size": sizes.batch_size}
    rest = {"snapshot_every": 0, "stop_above": 0.0, "objective": objective}
    return Contestant(name=name, recipe=CONS, changes={**cut, **rest}, start=start, card_samples=1)


def l_cons(**settings: Any) -> Any:
    """The objective of the stage L_CONS with other settings."""
    objective: Any = RECIPES[CONS].objective
    return replace(objective, **settings)


def loss_types(page: Page) -> tuple[Contestant, ...]:
    """The control without a loss first, then every kind of loss, three also with the moving average as teacher."""
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("mse", {}),
        ("cosine", {}),
        ("projected-cosine", {}),
        ("kl", {"weight": 0.1}),
        ("kl-bwd", {"weight": 0.1}),
    )
    teachers = {"": "self", ", EMA teacher": "ema"}
    return (
        short_stage(page, "short stage, no loss", AS_SAMPLED),
        *(
            short_stage(page, f"{kind}{words}", l_cons(distance=kind, teacher=teacher, **settings))
            for kind, settings in kinds
            for words, teacher in teachers.items()
            if teacher == "self" or kind in ("mse", "cosine", "kl")
        ),
    )


def l_cons_choices(page: Page) -> tuple[Contestant, ...]:
    """Where states are compared, and how the distance is summed."""
    return (
        short_stage(page, "mse", l_cons(distance="mse")),
        short_stage(page, "mse, both masked", l_cons(positions="both-masked")),
        short_stage(page, "mean, weight 1", l_cons(weight=1.0)),
        short_stage(page, "sum (squared norm), weight 0.1", l_cons(weight=0.1, distance="squared-norm")),
    )


def scratch(name: str, recipe: str, updates: int, **changes: Any) -> Contestant:
    """A base recipe cut short, with fresh weights, on the corpus of the stages."""
    data = RECIPES[CONS].data
    return variant(name, recipe, updates=updates, num_seeds=1, snapshot_every=0, data=data, **changes)


def tenths(page: Page) -> tuple[Contestant, Contestant]:
    """MDLM and FP-MDLM, trained a tenth as long."""
    updates = page.sizes.tenth
    return scratch("MDLM, a tenth", DEEP, updates), scratch("FP-MDLM, a tenth", SHALLOW, updates)


def tenth_with_l_cons(page: Page) -> Contestant:
    """L_CONS after a tenth of the training."""
    return short_stage(page, "FP-MDLM, a tenth, L_CONS", l_cons(), start=tenths(page)[1])


def shapes(page: Page) -> tuple[Contestant, ...]:
    """Blocks before and after the fixed point."""
    model: Any = RECIPES[CONS].model
    return tuple(
        scratch(f"FP {num}/{num}", SHALLOW, page.sizes.proxy, model=replace(model, num_pre=num, num_post=num))
        for num in (1, 2, 3, 4)
    )


RANGES = ((0, 2, 1, 3), (0, 4, 3, 6), (12, 12, 12, 12))
"""Iterations without gradients, from and to, and with them. FP 1/1 has 0 to 2 and 2 to 4, the paper's choice is 0 to 4
and 3 to 6."""


def solver_ranges(page: Page) -> tuple[Contestant, ...]:
    """Iterations of training, drawn from other ranges."""
    found = []
    for low, high, grad_low, grad_high in RANGES:
        counts = IterationCounts(no_grad_min=low, no_grad_max=high, grad_min=grad_low, grad_max=grad_high)
        objective: Any = RECIPES[SHALLOW].objective
        found.append(
            scratch(
                f"U({low},{high}) without and U({grad_low},{grad_high}) with gradients",
                SHALLOW,
                page.sizes.proxy,
                objective=replace(objective, iterations=counts),
            )
        )
    return tuple(found)


def rates(page: Page) -> tuple[Contestant, ...]:
    """Half and twice the learning rate, and gradients clipped at half and twice the norm."""
    updates = page.sizes.proxy
    optim = scratch("", SHALLOW, updates).changes["optim"]
    changed = {
        "half the rate": replace(optim, lr=optim.lr / 2),
        "twice the rate": replace(optim, lr=optim.lr * 2),
        "clipped at half": replace(optim, clip=optim.clip / 2),
        "clipped at twice": replace(optim, clip=optim.clip * 2),
    }
    return tuple(scratch(name, SHALLOW, updates, optim=own) for name, own in changed.items())


def proxy_mdlm(page: Page) -> Contestant:
    """The plain stack beside these short runs."""
    return scratch("MDLM, short", DEEP, page.sizes.proxy)


def cost_of(contestant: Contestant) -> Cost:
    """The blocks of a contestant's network, trained or not."""
    model: Any = contestant.changes.get("model", RECIPES[contestant.recipe].model)
    return Cost(model.num_pre, model.num_fp, model.num_post)

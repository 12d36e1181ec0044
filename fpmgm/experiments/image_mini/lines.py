"""Who is compared: networks and stages of Fashion-MNIST, as lines of the tables of the page.

A line of a table is a network with one kind of reuse. Headline lines have three seeds: of sampling for networks that
are trained once, of training and sampling for the stage that the paper calls CoFRe.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from fpmgm.experiments.contestants import Contestant
from fpmgm.post_training.consistency import Consistency
from fpmgm.recipes import RECIPES
from fpmgm.recipes.images import BASE, MINI
from fpmgm.reuse import ReuseName

SHORT = 300
"""Updates of runs that compare shapes, and of those with a consistency loss from the start."""
HEADLINE_SEEDS = 3
FEW = 2
"""Samples in the cards of runs that are made for a table only."""
BUDGETS = (12, 24, 48, 96, 192)
"""Half of the paper's 48, 96, 192 and 384, since the networks are half as deep, and 12: one step of 12 blocks."""
MORE_BUDGETS = (120, 240)
"""Half of the other two of the paper, 240 and 480."""
ABLATION_BUDGETS = (12, 24, 96)
INCEPTION_BUDGETS = (24, 96)
INCEPTION_LATE = (24,)
"""Those of them that came to the page later."""
MOST_FOR_SEEDS = 96
"""Beyond this budget the first seed alone is measured."""
REUSES: tuple[ReuseName, ...] = ("none", "full", "three-state")
REUSE_WORDS: dict[ReuseName, str] = {"none": "no reuse", "full": "full reuse", "three-state": "three-state"}
WEIGHTS = {"mse": 30.0, "cosine": 2.3, "projected-cosine": 2.8, "kl": 0.15}
"""Of the consistency losses: each is then about 4 % of the cross entropy at the start of a stage."""

DEEP = Contestant(name="MaskGIT, 12 blocks", recipe="fashion-maskgit", is_headline=True)
SHALLOW = Contestant(name="MaskGIT, 6 blocks", recipe="fashion-maskgit-6")
FP = Contestant(name="FP-MaskGIT 2/2", recipe="fashion-fp", is_headline=True)
COFRE = Contestant(
    name="FP-MaskGIT 2/2 + L_CONS", recipe="fashion", start=FP, num_seeds=HEADLINE_SEEDS, is_headline=True
)
BUNDLED = tuple(
    Contestant(name=f"bundled {model}", recipe=line.recipe, is_base=True, changes={"init": model})
    for line, model in ((DEEP, "fashion-maskgit"), (COFRE, "fashion"))
)
"""The first seeds of the deep stack and of L_CONS, in half precision: models that are there without training."""

USUAL: dict[str, ReuseName] = {DEEP.name: "none", FP.name: "three-state", COFRE.name: "three-state"}
"""How headline lines are sampled."""


def _short(name: str, recipe: str, **changes: Any) -> Contestant:
    return Contestant(name=name, recipe=recipe, changes={**changes, "updates": SHORT}, card_samples=FEW)


def _shape(num: int) -> Contestant:
    model = replace(MINI, num_pre=num, num_post=num)
    return _short(f"FP-MaskGIT {num}/{num}, short", "fashion-fp", model=model)


def _objective(distance: Any, teacher: str) -> Consistency:
    return Consistency(base=BASE, weight=WEIGHTS[distance], distance=distance, teacher=teacher)


def _named(distance: str, teacher: str) -> str:
    return f"{distance}, {'EMA teacher' if teacher == 'ema' else 'no EMA'}"


def _stage(distance: str, teacher: str) -> Contestant:
    changes = {"objective": _objective(distance, teacher)}
    name = _named(distance, teacher)
    return Contestant(name=name, recipe="fashion", start=FP, changes=changes, card_samples=FEW)


def _from_start(distance: str, teacher: str) -> Contestant:
    name = f"from the start: {_named(distance, teacher)}"
    return _short(name, "fashion-from-start", objective=_objective(distance, teacher))


SHAPES = tuple(_shape(num) for num in (1, 2, 3, 4))
PLAIN_SHORT = tuple(_short(f"{line.name}, short", line.recipe) for line in (DEEP, SHALLOW))
"""Plain stacks of as many updates as the shapes."""
CONTROL = Contestant(name="no L_CONS, as many updates", recipe="fashion-control", start=FP, card_samples=FEW)
STAGES = tuple(
    _stage(distance, teacher)
    for distance in ("kl", "projected-cosine", "mse", "cosine")
    for teacher in ("self", "ema")
    if (distance, teacher) != ("mse", "self")  # that is COFRE
)
FROM_START = tuple(_from_start(distance, teacher) for distance in ("mse", "cosine") for teacher in ("self", "ema"))


class Line(NamedTuple):
    """A line of a table."""

    contestant: Contestant
    reuse: ReuseName
    num_seeds: int = 1
    """Of training, and of sampling where a network is trained once."""
    is_late: bool = False
    """Whether it came to the page later: it is measured only if its section is asked for by name."""

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def key(self) -> tuple[str, ReuseName]:
        """What tells it from other lines of a table."""
        return self.name, self.reuse

    @property
    def words(self) -> str:
        """The network and how it is sampled; a stack has nothing to reuse."""
        model: Any = RECIPES[self.contestant.recipe].model
        return f"{self.name}, {REUSE_WORDS[self.reuse]}" if model.num_fp else self.name


class Table(NamedTuple):
    """A table of the page."""

    lines: tuple[Line, ...]
    budgets: tuple[int, ...]
    num_samples: int
    cfg_weight: float
    late_budgets: tuple[int, ...] = ()
    """Those that came to the page later."""
    has_inception: bool = False

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        """Whose models are sampled, each once."""
        return tuple({line.name: line.contestant for line in self.lines}.values())


def headline(contestant: Contestant, reuse: ReuseName) -> Line:
    """A line of the main table: all seeds with the usual reuse of a headline, and the first with another."""
    is_usual = contestant.is_headline and reuse == USUAL.get(contestant.name)
    return Line(contestant, reuse, HEADLINE_SEEDS if is_usual else 1)

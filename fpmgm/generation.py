"""Generation: a request in, what people see out, around the sampling loop."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch

from fpmgm.budget import ALLOCATIONS, AllocationName, Cost, shares_given, spending_of
from fpmgm.checkpoint import Model
from fpmgm.codecs import Codec
from fpmgm.draws import NUCLEI, Draw, NucleusName
from fpmgm.guidance import GUIDANCES, Guidance, GuidanceName
from fpmgm.masking import SCHEDULES, ScheduleName, mask_schedule_by_name
from fpmgm.names import choose
from fpmgm.positionwise import SOLVES, PositionSettings
from fpmgm.randomness import Streams
from fpmgm.remasking import Remasking, RemaskRule, ReMDMCap, ReMDMConf, ReMDMLoop, ReMDMRescale
from fpmgm.reuse import CHANGED, MASKED, REUSES, Reuse, ReuseName, ThreeStateReuse, reuse_by_name
from fpmgm.sampling import Step, Timed, even_times, sample
from fpmgm.schema import MAX_SAMPLES, require
from fpmgm.solvers import SOLVERS, Solver, SolverName, check_tolerance, solver_by_name
from fpmgm.transitions import Ancestral, Confidence, Halton, RacedAncestral, Transition, TransitionName


@dataclass(frozen=True, kw_only=True)
class Sampling(PositionSettings):
    """How to spend a budget on a sample."""

    budget: int = 96
    """Block evaluations for each sequence."""
    steps: int | None = None
    """The number of denoising steps. With None, generation_config.json says it for the budget; if it does not, the
    budget is spent at four iterations a step on average."""
    iterations: int | None = None
    """The same number of solver iterations at every step. With --steps, both are as they are given, and the budget is a
    limit. With None, the budget is spent by `allocation`."""
    allocation: Literal["auto", AllocationName] = "auto"
    """How solver iterations are spread over the steps. With auto, generation_config.json says it for the budget; if it
    does not, it is decreasing: more iterations early. The paper gives no formulas: all shapes but fixed are ours."""
    reuse: Literal["auto", ReuseName] = "auto"
    """Where the solver of a step starts: at h_pre (none), at the last solution (full), or between the two, by what
    happened to each token (three-state). With auto, it is three-state, and none for a plain stack."""
    reuse_masked: tuple[float, float] | None = None
    """What three-state reuse keeps of the last solution at masked positions, if nothing and if all is visible. With
    None, generation_config.json says it; if it does not, they are the paper's: 0.75 and 0.9."""
    reuse_changed: tuple[float, float] | None = None
    """The same two shares at positions whose token has changed; the paper's are 0.2 and 0.2."""
    solver: SolverName = "picard"
    """What solves the fixed point: picard applies the block again and again; anderson mixes the last results."""
    tolerance: float | None = None
    """A sequence's solver stops when its relative residual is at most this; with 0 it runs all iterations. With None,
    generation_config.json says it for three-state reuse; if it does not, all iterations are run."""
    transition: Literal["auto", TransitionName] = "auto"
    """Which masked tokens a step reveals. ancestral: each by chance. confidence: the surest, by what the name says.
    halton: cells of `grid` in Halton order, so that those of one step lie far apart. remdm: as ancestral, and some
    tokens are masked again. With auto, generation_config.json says it; if it does not, it is halton for images and
    ancestral for text."""
    schedule: ScheduleName = "linear"
    """How many tokens are masked at a time, for ancestral and confidence. Other transitions have their own."""
    confidence_noise: float = 0.0
    """The weight of Gumbel noise on the score of confidence, multiplied by the time of the next step."""
    eta: float | None = None
    """How much remdm-cap, remdm-rescale and remdm-loop mask again. None: 0.008, 0.015 and 0.02, as in its scripts."""
    t_on: float | None = None
    t_off: float | None = None
    """When remdm-loop begins to mask again, and when it ends. None: 0.55 and 0.05."""
    alpha_on: float | None = None
    """The share of tokens that are visible while remdm-loop masks again. None: 0.9."""
    grid: tuple[int, int] | None = None
    """Rows and columns that halton fills. With None, they are those of the model's images, and a text is one row."""
    halton_roll: bool = False
    """Each sample begins the Halton order at a random place of its own."""
    cfg_weight: float | None = None
    """The weight w of guidance towards the class: logits are (1 + w) conditional - w unconditional. With None,
    generation_config.json says it; if it does not, it is 0, and nothing is guided."""
    guidance: Literal["auto", GuidanceName] = "auto"
    """At which steps guidance has its weight: at all (constant), rising from 0 (ramp), or at later ones (late). With
    auto, generation_config.json says it; if it does not, it is constant."""
    guidance_begin: float = 0.5
    """The share of the steps after which late guidance begins."""
    temperature: float | None = None
    """Logits are divided by this; 0 takes the most probable token. With None, generation_config.json says it, or it is
    1."""
    top_k: int | None = None
    """Only so many of the most probable tokens can be drawn. With None, all can."""
    top_p: float | None = None
    """Only the most probable tokens whose probabilities add up to this can be drawn. With None, all can."""
    nucleus: NucleusName = "inclusive"
    """Whether top_p keeps the token at which the sum reaches p (inclusive) or stops before it (strict)."""
    precision: Literal["float64", "float32"] = "float64"
    """The precision of the draws of ancestral. float32 is there for comparison: it draws as much public code does."""
    seed: int = 0
    """Every random number follows from this number and from the number of the sample."""
    batch_size: int = 32
    """Sequences that are sampled at the same time. It does not change the samples."""

    def __post_init__(self) -> None:
        require("seed", self.seed, 0)
        for name, choices in CHOICES.items():
            choose(name, getattr(self, name), choices)


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Samples and what they cost."""

    codec: Codec = field(repr=False)
    tokens: list[list[int]]  # whole rows, whatever comes after an end
    given: list[int]  # of each row, how many tokens there are up to the last one that was given
    has_ends: bool  # whether the model has learned where a sequence ends
    labels: list[int] | None  # the class of each sample, if the model has classes
    block_evals: int  # the most that any sequence spent
    position_blocks: float = 0.0  # blocks times the positions they ran at, the mean of all sequences
    seconds: float
    iterations: tuple[int, ...]  # of the solver, by step; 0 for a plain stack
    sampling: Sampling  # the settings, with all that was left open decided

    @property
    def steps(self) -> int:
        return len(self.iterations)

    @property
    def allocation(self) -> Literal["auto", AllocationName]:
        return self.sampling.allocation

    @cached_property
    def shown(self) -> list[Any]:
        """What a person sees of each sample: a text, or an image as an array. It is made when it is asked for.

        A text of a model that has learned ends goes up to its first end; `whole` has what comes after it too.
        """
        return [self.codec.show(row) for row in self._ended]

    @property
    def texts(self) -> list[str]:
        """The samples of a text model, up to their ends."""
        return _as_texts(self.shown)

    @property
    def continuations(self) -> list[str]:
        """What a text model wrote after the last token that was given, up to its end: the answer to a prompt."""
        rows = zip(self.texts, self._ended, self.given, strict=True)
        return [text.removeprefix(self.codec.show(row[:given])) for text, row, given in rows]

    @property
    def whole(self) -> list[Any]:
        """What a person sees of whole rows, whatever comes after an end."""
        return [self.codec.show(row) for row in self.tokens]

    @property
    def _ended(self) -> list[list[int]]:
        if not self.has_ends:
            return self.tokens
        return [until_end(row, self.codec, num_given) for row, num_given in zip(self.tokens, self.given, strict=True)]


def _as_texts(shown: list[Any]) -> list[str]:
    if not all(isinstance(each, str) for each in shown):
        raise ValueError("these samples are no texts; see `shown`")
    return shown


def until_end(tokens: list[int], codec: Codec, num_given: int = 0) -> list[int]:
    """The tokens before the first end that comes after some text and after all that is given; all if there is none."""
    has_text = False
    for place, token in enumerate(tokens):
        if token == codec.last and has_text and place >= num_given:
            return tokens[:place]
        has_text = has_text or token not in (codec.first, codec.last)
    return tokens


def count_given(start: Sequence[int], mask_id: int) -> int:
    """The number of tokens up to the last one that is given; 0 if none is."""
    return max((place for place, token in enumerate(start, 1) if token != mask_id), default=0)


def generate(
    model: Model,
    *,
    num_samples: int = 1,
    on_step: Callable[[Step], None] | None = None,
    **settings: Any,
) -> Generated:
    """Sample from nothing, or what is asked for: settings are the fields of `Sampling`, and the request of the codec.

    Of a text model, `prompts` are texts to continue, and `infill` are texts with blanks. A blank is a run of
    underscores, one for each token. Tokens carry the space before them, so a blank takes the space before it, and a
    space at the end of a prompt belongs to what follows. One string is one prompt.

    Of an image model, `classes` are names or numbers of classes; without them sample i is of class i modulo their
    number. `inpaint` is an image and `inpaint_mask` says where to fill it in.

    If the model has learned where texts end (its data was packed otherwise than by `wrap`), texts go up to their end.

    `num_samples` are drawn for every start. The time that `on_step` takes is not counted in `seconds`.
    """
    own = {each.name for each in fields(Sampling)}
    for name in settings:
        choose("setting", name, dict.fromkeys([*sorted(own), *model.speech.request_names]))
    how = Sampling(**{name: value for name, value in settings.items() if name in own})
    require("num_samples", num_samples, 1, MAX_SAMPLES)
    request = {name: value for name, value in settings.items() if name not in own}
    asked = model.starts(request, num_samples)
    starts, labels = asked.tokens, asked.labels
    how = with_saved_settings(model.generation, how, model.speech.grid)
    check_guided(how, model.config.vocabulary.num_classes)
    spending = spending_of(how, model.denoiser.cost, shares_given(starts, model.config.vocabulary.mask_id))
    watched = Timed(on_step) if on_step else None
    rules: dict[str, Any] = {
        "times": even_times(spending.num_steps),
        "iterations": spending.iterations,
        "on_step": watched,
        **rules_of(how, model.denoiser.cost),
    }
    rows: list[list[int]] = [[]] * len(starts)
    spent, worked = 0, 0
    begin = time.perf_counter()
    for batch in _batches(starts, how.batch_size):
        z = torch.tensor([starts[index] for index in batch], device=model.device)
        label = None if labels is None else torch.tensor([labels[index] for index in batch], device=model.device)
        sampled = sample(model.denoiser, z, label=label, rng=Streams.of(how.seed, batch), **rules)
        spent, worked = max(spent, int(sampled.block_evals.max())), worked + int(sampled.position_blocks.sum())
        for index, row in zip(batch, sampled.z.tolist(), strict=True):
            rows[index] = row
    seconds = time.perf_counter() - begin - (watched.seconds if watched else 0.0)
    return Generated(
        codec=model.speech,
        tokens=rows,
        given=[count_given(start, model.config.vocabulary.mask_id) for start in starts],
        has_ends=model.has_ends,
        labels=labels,
        block_evals=spent,
        position_blocks=worked / len(starts),
        seconds=seconds,
        iterations=tuple(spending.iterations),
        sampling=replace(how, steps=spending.num_steps),
    )


def rules_of(how: Sampling, cost: Cost) -> dict[str, Any]:
    """Transition, reuse, solver, where it solves, and guidance; a ValueError if the settings make no sense.

    What the settings leave open must have been decided by `with_saved_settings`.
    """
    temperature = 1.0 if how.temperature is None else how.temperature
    draw = Draw(temperature=temperature, top_k=how.top_k, top_p=how.top_p, nucleus=how.nucleus)
    return {
        "transition": TRANSITIONS["ancestral" if how.transition == "auto" else how.transition](how, draw),
        "reuse": _reuse(how, cost),
        "solver": _solver(how),
        "where": how.where(has_solver=cost.fp > 0),
        "guidance": _guidance(how),
    }


def _remasking(rule: Callable[..., RemaskRule], how: Sampling, draw: Draw) -> Transition:
    names = [each.name for each in fields(rule)]  # type: ignore[arg-type]
    _check_used(how, *names)
    given = {name: getattr(how, name) for name in names if getattr(how, name) is not None}
    return Remasking(rule=rule(**given), draw=draw)


def _ancestral(how: Sampling, draw: Draw) -> Transition:
    _check_used(how, "schedule", "precision")
    rule = RacedAncestral if how.precision == "float32" else Ancestral
    return rule(draw=draw, schedule=mask_schedule_by_name(how.schedule))


def _confidence(score: str, how: Sampling, draw: Draw) -> Transition:
    _check_used(how, "schedule", "confidence_noise")
    schedule = mask_schedule_by_name(how.schedule)
    return Confidence(score=score, noise=how.confidence_noise, draw=draw, schedule=schedule)


def _halton(how: Sampling, draw: Draw) -> Transition:
    _check_used(how, "grid", "halton_roll")
    height, width = (1, None) if how.grid is None else how.grid
    return Halton(height=height, width=width, roll=how.halton_roll, draw=draw)


def _check_used(how: Sampling, *used: str) -> None:
    """A ValueError if a setting that only other transitions read is not at its default."""
    for name in ("schedule", "confidence_noise", "grid", "halton_roll", "precision", *REMASKED):
        value = getattr(how, name)
        if name not in used and value != getattr(Sampling, name):
            raise ValueError(f"{name} is {value}, and transition {how.transition} does not use it; leave it out")


REMASKED = ("eta", "t_on", "t_off", "alpha_on")
"""Settings of ReMDM's rules."""
TRANSITIONS: dict[str, Callable[[Sampling, Draw], Transition]] = {
    "ancestral": _ancestral,
    "confidence": partial(_confidence, "top-probability"),
    "confidence-margin": partial(_confidence, "margin"),
    "confidence-entropy": partial(_confidence, "entropy"),
    "confidence-drawn": partial(_confidence, "drawn-probability"),
    "halton": _halton,
    "remdm-cap": partial(_remasking, ReMDMCap),
    "remdm-rescale": partial(_remasking, ReMDMRescale),
    "remdm-conf": partial(_remasking, ReMDMConf),
    "remdm-loop": partial(_remasking, ReMDMLoop),
}


CHOICES: dict[str, Mapping[str, object]] = {
    "allocation": {"auto": None, **ALLOCATIONS},
    "reuse": {"auto": None, **REUSES},
    "solver": SOLVERS,
    "solve": SOLVES,
    "transition": {"auto": None, **TRANSITIONS},
    "guidance": {"auto": None, **GUIDANCES},
    "schedule": SCHEDULES,
    "nucleus": NUCLEI,
    "precision": {"float64": None, "float32": None},
}


def with_saved_settings(generation: Mapping[str, Any], how: Sampling, grid: tuple[int, int] | None = None) -> Sampling:
    """The same with all that the settings leave open decided: by generation_config.json, or else by a rule.

    What the file says for the budget comes first, then its defaults. `grid` is that of the model's codec. A setting
    that is not left open (None or auto) is never changed. Settings that are decided stay as they are.
    """
    saved = {**generation.get("defaults", {}), **generation.get("budgets", {}).get(str(how.budget), {})}
    rules: dict[str, Any] = {
        "allocation": "decreasing",
        "transition": "halton" if grid else "ancestral",
        "temperature": 1.0,
        "guidance": "constant",
        **{"reuse_masked": MASKED, "reuse_changed": CHANGED},
    }
    if how.iterations is not None:  # steps and allocation of a file are for a budget that is spent otherwise
        saved = {name: value for name, value in saved.items() if name not in ("steps", "allocation")}
        rules["allocation"] = "fixed"
    if how.reuse not in ("auto", "three-state"):  # what was tuned for three-state reuse does not hold for another
        saved = {name: value for name, value in saved.items() if name not in TUNED}
    found = {name: saved.get(name, rules.get(name)) for name in OPEN if getattr(how, name) == OPEN[name]}
    if not found.get("cfg_weight", how.cfg_weight):
        found["guidance"] = how.guidance  # a rule of the file has nothing to guide
    known: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    how = replace(how, **known)
    return replace(how, grid=grid) if how.transition == "halton" and how.grid is None else how


TUNED = ("reuse_masked", "reuse_changed", "tolerance")
"""What `fpmgm tune-reuse` finds for a model."""
OPEN: dict[str, Any] = dict.fromkeys(("steps", "temperature", "cfg_weight", *TUNED))
OPEN |= dict.fromkeys(("allocation", "transition", "guidance"), "auto")
"""The settings that a model's generation_config.json may decide, and how each looks if it is left open."""


def _batches(starts: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices of starts of equal length, in order."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    by_length: dict[int, list[int]] = {}
    for index, start in enumerate(starts):
        by_length.setdefault(len(start), []).append(index)
    for indices in by_length.values():
        for first in range(0, len(indices), batch_size):
            yield indices[first : first + batch_size]


def _reuse(how: Sampling, cost: Cost) -> Reuse:
    name = ("three-state" if cost.fp else "none") if how.reuse == "auto" else how.reuse
    masked, changed = how.reuse_masked or MASKED, how.reuse_changed or CHANGED
    if (masked, changed) == (MASKED, CHANGED):
        return reuse_by_name(name)
    if name != "three-state":
        raise ValueError(f"reuse_masked and reuse_changed are for three-state reuse, and reuse is {name}")
    return ThreeStateReuse.of(masked, changed)


def _guidance(how: Sampling) -> Guidance:
    """The rule; a ValueError if a setting of guidance would do nothing."""
    if not how.cfg_weight and how.guidance not in ("auto", "constant"):
        raise ValueError(f"guidance is {how.guidance}, and without a cfg_weight above 0 nothing is guided; give one")
    if how.guidance != "late" and how.guidance_begin != Sampling.guidance_begin:
        raise ValueError(f"guidance_begin is {how.guidance_begin}, and only late guidance uses it; leave it out")
    rule: GuidanceName = "constant" if how.guidance == "auto" else how.guidance
    return Guidance(weight=how.cfg_weight or 0.0, rule=rule, begin=how.guidance_begin)


def check_guided(how: Sampling, num_classes: int) -> None:
    if how.cfg_weight and not num_classes:
        raise ValueError(f"cfg_weight is {how.cfg_weight}, and this model knows no classes to guide to; leave it out")


def _solver(how: Sampling) -> Solver:
    solver = solver_by_name(how.solver)
    if how.tolerance is None:
        return solver
    check_tolerance(how.tolerance)
    return partial(solver, tolerance=how.tolerance)

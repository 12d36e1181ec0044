"""All analyses of a model as one report: JSON and figures of each, and a page that holds them all."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fpmgm.analysis.cka import LayerSimilarity, layer_similarity, summary
from fpmgm.analysis.figures import lagged_figure, movement_figure, residual_figure, spent_figure, start_figure
from fpmgm.analysis.lagged import Lagged, Over, lagged
from fpmgm.analysis.observed import Observation, observations
from fpmgm.analysis.page import Section, page
from fpmgm.analysis.plots import consecutive_plot, similarity_heat_map
from fpmgm.analysis.solving import TOLERANCES, Movement, Residuals, Spent, Starts, solving, spent_under
from fpmgm.analysis.trace import Course
from fpmgm.checkpoint import Model, load, weights_of
from fpmgm.devices import OnDevice
from fpmgm.evaluation.chosen import kind_of
from fpmgm.evaluation.held_out import AUTO, OWN, check_split, measured_data, measured_on
from fpmgm.evaluation.threads import use_threads
from fpmgm.files import write_json, write_text
from fpmgm.generation import Sampling
from fpmgm.names import choose
from fpmgm.provenance import provenance
from fpmgm.randomness import generator
from fpmgm.schema import MAX_BUDGET, MAX_ITERATIONS, MAX_SAMPLES, field_value, read_json, read_object, require
from fpmgm.solvers import check_tolerance
from fpmgm.transitions import TransitionName


@dataclass(frozen=True, kw_only=True)
class Analysis(OnDevice):
    """The paper's analyses of a model's solver and of what it says from step to step, as one report."""

    model: str
    """A bundled model, a model folder, or a hub id owner/name."""
    against: str = ""
    """Another model of the same symbols, whose lagged logit KL is compared with that of `model` on inputs that both
    read. If it is empty, there is none."""
    budget: int = 96
    """Block evaluations of a sequence in the analyses of the solver."""
    steps: tuple[int, ...] = (4, 8, 16, 32)
    """Numbers of denoising steps in the analyses of what the model says."""
    num_iters: int = 4
    """Solver iterations of each of these steps."""
    kl_over: Over = "later"
    """Whose distribution the lagged KL is averaged over: later is KL(later step || step), earlier the reverse."""
    depth: int = 16
    """Solver iterations after which a solution is taken as the fixed point."""
    tolerances: tuple[float, ...] = TOLERANCES
    transition: Literal["auto", TransitionName] = "auto"
    """Which masked tokens a step reveals; auto: as `fpmgm sample` does."""
    num_samples: int = 8
    seed: int = 0
    data: str = OWN
    """The data that layers are compared on: a corpus by name, a file or a folder; auto: what the model was trained on,
    split as in training."""
    split: str = AUTO
    """Which part of `data`: all; held-out (as in training); train, valid or test; auto: held-out of a corpus and of
    what the model was trained on, all of another file."""
    num_sequences: int = 32
    """Sequences that layers are compared on."""
    out: str = "results/analysis"
    """The folder for the page, the figures and their numbers."""

    def __post_init__(self) -> None:
        self.check_device()
        check_split(self.split)
        require("num_samples", self.num_samples, 2, MAX_SAMPLES)
        require("num_sequences", self.num_sequences, 1, MAX_SAMPLES)
        require("num_iters", self.num_iters, 1, MAX_ITERATIONS)
        require("depth", self.depth, 2, MAX_ITERATIONS)
        if not self.steps or not self.tolerances:
            raise ValueError("steps and tolerances must have one number at least, as in --steps 8 16")
        for num in self.steps:
            require("steps", num, 2, MAX_BUDGET)
        for tolerance in self.tolerances:
            check_tolerance(tolerance)
            require("tolerances", tolerance, 0)
        if 0 in self.tolerances:
            raise ValueError("a tolerance is 0, which nothing meets; give numbers above 0")
        if not self.out or Path(self.out).is_file():
            raise ValueError(f"out is {self.out!r}, which is no folder; give one for the report")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found, and the files that hold it."""

    found: dict[str, Any]
    """The analyses by name."""
    seen: tuple[Observation, ...]
    left_out: tuple[str, ...]
    protocol: dict[str, Any]
    files: tuple[Path, ...] = field(default=())
    """The page, then JSON files and figures."""


ANALYSES: dict[str, type] = {
    "residuals": Residuals,
    "movement": Movement,
    "starts": Starts,
    "tolerance": Spent,
    "lagged": Lagged,
}
"""What each JSON file but that of CKA holds."""
TEXTS = {
    "residuals": (
        "Residuals by solver iteration and by denoising step",
        "The relative residual says how far a state is from being a fixed point. Left: its mean over sequences and "
        "over all steps but the first, which has nothing to reuse. Right: where the solver of each step starts, and "
        "where the sampler stops.",
    ),
    "movement": (
        "Movement of the solution by transition type",
        "The mean distance between the solutions of two consecutive steps at a position, without reuse, by what "
        "happened to its token.",
    ),
    "starts": (
        "Distance from start to solution",
        "Left: how far the solver of each step starts from the fixed point, and how far from it the sampler stops. "
        "Right: the mean distance of a position from start to fixed point, in all steps but the first.",
    ),
    "tolerance": (
        "Iterations spent under a tolerance",
        "Runs in which the solver of each sequence stops when its residual is at most the tolerance; no step may spend "
        "more than the budget gives it.",
    ),
    "lagged": (
        "Change of what the model says from step to step",
        "Over the positions that are masked at both steps. Left: the head-projected change, the standard deviation "
        "over symbols of the difference of logits. Right: KL divergence of what is said at a step from what is said "
        "some steps later, on a cleaner input.",
    ),
    "cka": (
        "How alike the layers are",
        "Linear CKA between the states after every block, on held-out data masked at five times. The lines mark where "
        "neighbours are least alike.",
    ),
}
"""Title and explanation of each section of the page."""


def analysed(asked: Analysis) -> Report:
    """Make all analyses that have a meaning for the model, and write the report."""
    courses, names = _courses(asked)
    course = courses[0]
    left_out: list[str] = []
    protocol = _protocol(asked, course)
    layers = _layers(asked, course.model, left_out, protocol)
    found: dict[str, Any] = {}
    if course.model.denoiser.cost.fp:
        found["residuals"], found["movement"], found["starts"] = solving(course, depth=asked.depth)
        found["tolerance"] = spent_under(course, tolerances=asked.tolerances)
    else:
        what = "Residuals, movement, distance from start to solution and iterations under a tolerance"
        left_out.insert(0, f"{what}: {asked.model} is a plain stack, which solves nothing.")
    found["lagged"] = lagged(courses, names, steps=asked.steps, num_iters=asked.num_iters, kl_over=asked.kl_over)
    similarity = layers() if layers else None
    report = Report(found=found, seen=observations(found), left_out=tuple(left_out), protocol=protocol)
    return write_report(report, similarity, Path(asked.out))


def _courses(asked: Analysis) -> tuple[list[Course], list[str]]:
    """The models and how they are sampled; a ValueError before anything is computed if that makes no sense."""
    names = [asked.model, *([asked.against] if asked.against else [])]
    kind_of(names)
    models = [load(name, device=asked.device, dtype=asked.dtype) for name in names]
    for name, model in zip(names, models, strict=True):
        if model.denoiser.is_causal:
            raise ValueError(f"{name} is causal, made to judge text; give a masked model")
        if model.config.vocabulary != models[0].config.vocabulary or model.speech.files != models[0].speech.files:
            raise ValueError(f"{names[0]} and {name} have other symbols or lengths; compare models that share them")
    use_threads(models[0].config, min(asked.num_samples, Sampling.batch_size))
    sampling = Sampling(budget=asked.budget, transition=asked.transition, seed=asked.seed, solver="picard")
    courses = [Course.of(model, sampling, asked.num_samples) for model in models]
    if models[0].denoiser.cost.fp:
        courses[0].check_depth(asked.depth)
    return courses, names


def _layers(
    asked: Analysis, model: Model, left_out: list[str], protocol: dict[str, Any]
) -> Callable[[], LayerSimilarity] | None:
    """What compares the layers, once its data is there; None if the model's own data is not."""
    try:
        data, words = measured_data(model, asked.data, asked.split)
        batch = data.measured(asked.num_sequences)
    except (ValueError, OSError) as error:
        if asked.data != OWN:
            raise
        left_out.append(f"CKA: {str(error).rstrip('.')}.")
        return None
    protocol["layers are compared on"] = measured_on(data, batch, words)
    return lambda: layer_similarity(model.denoiser, batch.to(model.device), rng=generator(asked.seed))


def _protocol(asked: Analysis, course: Course) -> dict[str, Any]:
    sampling, cost = course.sampling, course.model.denoiser.cost
    return {
        "model": asked.model,
        "weights": weights_of(asked.model),
        "blocks": str(cost),
        **({"against": asked.against, "weights of against": weights_of(asked.against)} if asked.against else {}),
        "samples": asked.num_samples,
        "seed": asked.seed,
        "length": course.model.config.vocabulary.length,
        "budget, block evaluations": asked.budget,
        "steps of the budget": len(course.iterations),
        "iterations of these": list(course.iterations),
        "iterations to the fixed point": asked.depth if cost.fp else 0,
        "tolerances": list(asked.tolerances) if cost.fp else [],
        "steps compared": list(asked.steps),
        "iterations of a compared step": asked.num_iters if cost.fp else 0,
        "lagged KL is averaged over the": f"{asked.kl_over} step",
        "transition": sampling.transition,
        "temperature": sampling.temperature,
        "guidance weight": sampling.cfg_weight or 0.0,
        "judge": "none; nothing here is judged",
        "device": str(course.model.device),
        "dtype": asked.dtype,
        "made with": dict(provenance()),
    }


def write_report(report: Report, similarity: LayerSimilarity | None, folder: Path) -> Report:
    """Write JSON and figures of each analysis and the page, whose name is report.html; the report with its files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    sections = []
    for name, found in report.found.items():
        write_json(folder / f"{name}.json", {"analysis": name, "found": asdict(found), "protocol": report.protocol})
        figures = FIGURES[name](found, folder / name)
        files += [folder / f"{name}.json", *figures]
        sections.append(_section(name, figures))
    if similarity is not None:
        figures = similarity_heat_map(similarity, folder / "cka-layers")
        figures += consecutive_plot(similarity, folder / "cka-consecutive")
        is_plain = report.protocol["iterations to the fixed point"] == 0
        write_json(folder / "cka.json", {**summary(similarity, is_plain=is_plain), "protocol": report.protocol})
        files += [folder / "cka.json", *figures]
        sections.append(_section("cka", figures))
    title = f"Analysis of {report.protocol['model']}"
    write_text(folder / "report.html", page(title, report.protocol, report.seen, sections, report.left_out))
    return replace(report, files=(folder / "report.html", *files))


FIGURES: dict[str, Callable[[Any, Path], list[Path]]] = {
    "residuals": residual_figure,
    "movement": movement_figure,
    "starts": start_figure,
    "tolerance": spent_figure,
    "lagged": lagged_figure,
}


def _section(name: str, figures: Sequence[Path]) -> Section:
    title, text = TEXTS[name]
    return Section(name=name, title=title, text=text, figures=tuple(f for f in figures if f.suffix == ".svg"))


def read_analysis(file: Path) -> Any:
    """What a JSON file of a report holds, but for that of CKA: `Residuals`, `Movement`, `Starts`, `Spent`, `Lagged`."""
    settings = read_json(file)
    kind = choose("analysis", field_value(settings.get("analysis"), str, f"{file}: analysis"), ANALYSES)
    return read_object(kind, field_value(settings.get("found"), dict, f"{file}: found"), str(file))

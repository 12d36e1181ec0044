"""Reproductions: the paper's tables and figures in miniature, stage by stage, resumable, into one report."""

from dataclasses import dataclass
from pathlib import Path

from fpmgm.cluster import OnWorkers, Workers
from fpmgm.devices import OnDevice
from fpmgm.evaluation.cells import PRESETS
from fpmgm.evaluation.evaluator import ConventionName
from fpmgm.evaluation.judges import judge_named
from fpmgm.evaluation.layout import COSTS, draw_rows, measured_columns, varied
from fpmgm.evaluation.sweep import Protocol, announce, run_sweep
from fpmgm.evaluation.tables import markdown, model_column
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.experiments import contest
from fpmgm.experiments.contest import Contest, Contestant
from fpmgm.experiments.image_mini import ImageMini
from fpmgm.experiments.variant_pages import VARIANTS, story_judge, write_variants
from fpmgm.files import write_text
from fpmgm.generation import Sampling
from fpmgm.names import choose
from fpmgm.provenance import provenance
from fpmgm.reuse import ReuseName

MODELS = ("text-mini", "text-mini-mdlm")
BUDGETS = (24, 48, 96, 192, 384)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One table of the report: a sweep over the bundled models."""

    preset: str
    title: str
    budgets: tuple[int, ...]


TEXT_MINI = (
    Stage(preset="budgets", title="Quality against budget, before any post-training", budgets=BUDGETS),
    Stage(preset="steps", title="Steps against iterations at equal budget", budgets=(96, 192)),
    Stage(preset="allocations", title="Allocation of iterations, and reuse", budgets=(48, 96)),
    Stage(preset="reuse", title="Coefficients of three-state reuse", budgets=(96,)),
    Stage(preset="nucleus", title="The nucleus, off and on", budgets=(96,)),
    Stage(preset="solver", title="Solvers and tolerances", budgets=(96,)),
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Tables of the bundled models, then a contest of models that are trained for it."""

    stages: tuple[Stage, ...] = ()
    contestants: tuple[Contestant, ...]
    budgets: tuple[int, ...]
    reuses: tuple[ReuseName, ...] = contest.REUSES


REPORTS = {
    "text-mini": Report(stages=TEXT_MINI, contestants=contest.TEXT_MINI, budgets=BUDGETS),
    "tuning": Report(contestants=contest.TUNING, budgets=(24, 96), reuses=("three-state",)),
}
IMAGES = "image-mini"


@dataclass(frozen=True, kw_only=True)
class Reproduction(OnDevice, OnWorkers):
    """Fill the tables of a report; started again, it goes on where it was stopped. With --workers 2, two processes of
    one thread each train and measure at once."""

    report: str = "text-mini"
    """text-mini has all tables of the miniature. image-mini has the tables of images. tuning has tries of L_CONS and of
    SDTT. injections asks whether a cheaper injection is as good as the paper's. warm-starts asks whether training
    should start its solver as the sampler does."""
    out: str = ""
    """The folder of the report. If it is empty, it is docs/results/ and the name of the report."""
    num_samples: int = 128
    """Samples for each row of the sweeps, and for each cell of the contest outside its headline."""
    judge: str = "auto"
    """Who judges samples: smollm2, a causal model of ours or one of the hub. With auto, the bundled judge does it. If
    it is empty, samples are not judged."""
    convention: ConventionName = "paper"
    """Which tokens of a text the judges score: as the paper has it, or as the public code of MDLM (published)."""
    seed: int = 0
    """Every random number follows from this number."""
    sweeps: bool = True
    """Fill the tables of the bundled models."""
    contest: bool = True
    """Train the stages and fill the table of all contestants. This takes some hours."""
    runs: str = "runs/reproduce"
    """The folder of the run folders of the contest."""
    contest_samples: int = 86
    """Samples for each cell and model of the contest's headline lines. Three seeds of training make 258 of them."""
    second_judge: str = "smollm2"
    """Who also judges all lines of the contest with three-state reuse, or none for a plain stack. If it is empty, there
    is no second judge."""
    inception_samples: int = 500
    """For image-mini: samples for each of the three cells of FID by Inception. With 0, there are none."""

    def __post_init__(self) -> None:
        self.check_device()
        self.check_workers()
        choose("report", self.report, dict.fromkeys([*REPORTS, *VARIANTS, IMAGES]))
        if self.report == IMAGES and self.convention != "paper":
            raise ValueError(f"convention is {self.convention}, and {IMAGES} has no texts; leave --convention out")


def reproduce(asked: Reproduction) -> Path:
    """Run every stage and the contest, and write the report of those that were asked for; returns its file."""
    with asked.open_workers(asked.device) as workers:
        if asked.report in VARIANTS:
            return write_variants(asked, _heading(asked, story_judge(asked.judge)), workers)
        return _images(asked, workers) if asked.report == IMAGES else _texts(asked, workers)


def _texts(asked: Reproduction, workers: Workers) -> Path:
    report = REPORTS[asked.report]
    folder = Path(asked.out or f"docs/results/{asked.report}")
    judge = judge_named(asked.judge)
    stages = report.stages if asked.sweeps else ()
    parts = [_heading(asked, judge), *(_sweep(stage, asked, folder, judge, workers) for stage in stages)]
    if stages:
        write_text(folder / "README.md", "\n".join(parts))
    if asked.contest:
        held = Contest(
            folder=folder,
            runs=Path(asked.runs),
            contestants=report.contestants,
            budgets=report.budgets,
            reuses=report.reuses,
            num_samples=asked.contest_samples,
            num_rest=asked.num_samples,
            judge=judge,
            second_judge=asked.second_judge,
            convention=asked.convention,
            seed=asked.seed,
            device=asked.device,
            dtype=asked.dtype,
            workers=workers,
        )
        parts.append(f"## The contest\n\n{_rules(asked)}\n\n{held.run()}\n")
        write_text(folder / "README.md", "\n".join(parts))
    return folder / "README.md"


def _images(asked: Reproduction, workers: Workers) -> Path:
    """The report on images; the settings that are at what suits text have what suits images."""
    sizes = {"num_rest": asked.num_samples, "num_samples": asked.contest_samples}
    usual = {"num_rest": Reproduction.num_samples, "num_samples": Reproduction.contest_samples}
    return ImageMini(
        folder=Path(asked.out or f"docs/results/{IMAGES}"),
        runs=Path(asked.runs),
        judge="fashion-classifier" if asked.judge == "auto" else asked.judge,
        inception_samples=asked.inception_samples,
        seed=asked.seed,
        device=asked.device,
        dtype=asked.dtype,
        workers=workers,
        **{name: size for name, size in sizes.items() if size != usual[name]},
    ).run()


def _sweep(stage: Stage, asked: Reproduction, folder: Path, judge: str, workers: Workers) -> str:
    """The part of the report that shows a sweep."""
    cells = list(PRESETS[stage.preset](MODELS, Sampling(seed=asked.seed), stage.budgets))
    evaluator = TextEvaluator(judge=judge, device=asked.device, convention=asked.convention)
    protocol = Protocol(num_samples=asked.num_samples, evaluator=evaluator, device=asked.device, dtype=asked.dtype)
    rows = run_sweep(cells, protocol, folder / f"{stage.preset}.jsonl", on_cell=announce, workers=workers)
    pictures = [file for file in draw_rows(stage.preset, rows, folder, evaluator.primary) if file.suffix == ".png"]
    table = markdown(rows, (model_column(rows), *varied(rows), *COSTS, *measured_columns(rows)))
    images = "\n".join(f"![{stage.title}]({file.name})" for file in pictures)
    return f"## {stage.title}\n\n{images}\n\n{table}"


def _rules(asked: Reproduction) -> str:
    return (
        f"{asked.contest_samples} samples a cell and seed of training in the headline lines with three-state (or, of "
        f"a plain stack, no) reuse; {asked.num_samples} in the others, of the first seed. A cell is the generative "
        "perplexity with its 95 % interval over samples, or, of several seeds of training, their mean and all that "
        "their intervals span; the entropy is in brackets."
    )


def _left_out(asked: Reproduction) -> str:
    """What is to be typed where something is not as usual."""
    flags = {" --no-sweeps": asked.sweeps, " --no-contest": asked.contest}
    flags[f" --convention {asked.convention}"] = asked.convention == "paper"
    return "".join(flag for flag, is_done in flags.items() if not is_done)


def _heading(asked: Reproduction, judge: str) -> str:
    made = provenance()
    return f"""# {asked.report}, in miniature

    fpmgm reproduce {asked.report}{_left_out(asked)} --num-samples {asked.num_samples} \\
        --contest-samples {asked.contest_samples} --second-judge "{asked.second_judge}" --seed {asked.seed}

Commit {made["commit"]}, {made["hardware"]}. Judge: {judge or "none"}, convention: {asked.convention}.
Intervals are 95 %, by bootstrap over samples. Seconds are those of all samples of a row.
"""

"""The reports that compare variants of a recipe: which there are, and how their pages are written."""

import json
from pathlib import Path
from typing import Any

from fpmgm.cluster import Workers
from fpmgm.evaluation.text import TextEvaluator
from fpmgm.experiments.injections import Injections
from fpmgm.experiments.resting import Resting
from fpmgm.experiments.warm_starts import WarmStarts
from fpmgm.files import write_text
from fpmgm.provenance import provenance

VARIANTS: dict[str, type[Injections] | type[WarmStarts] | type[Resting]] = {
    "injections": Injections,
    "warm-starts": WarmStarts,
    "resting": Resting,
}


def story_judge(name: str) -> str:
    """Who judges: the source of stories, unless another judge is named."""
    return "stories-source" if name == "auto" else name


def write_variants(asked: Any, heading: str, workers: Workers) -> Path:
    """Train, measure and write README.md and results.json; `asked` are the settings of `reproduce`.

    A judge that is not there is found before hours of training.
    """
    judge = story_judge(asked.judge)
    if not judge:
        raise ValueError(f"report {asked.report} compares generative perplexities; give --judge")
    TextEvaluator(judge=judge, device=asked.device, convention=asked.convention).judged_by()
    folder = Path(asked.out or f"docs/results/{asked.report}")
    text, found = VARIANTS[asked.report](folder=folder, runs=Path(asked.runs) / asked.report).run(
        num_samples=asked.contest_samples,
        judge=judge,
        convention=asked.convention,
        seed=asked.seed,
        device=asked.device,
        workers=workers,
        num_workers=asked.workers,
        ray=asked.ray,
    )
    write_text(folder / "results.json", json.dumps({**found, **provenance()}, indent=1) + "\n")
    write_text(folder / "README.md", f"{heading}\n{text}")
    return folder / "README.md"

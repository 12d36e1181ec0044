"""Who measures models: an evaluator chosen by what they write."""

from collections.abc import Sequence
from functools import lru_cache

from fpmgm.checkpoint import find_folder
from fpmgm.codecs import CODECS
from fpmgm.evaluation.evaluator import PAPER, Evaluator, evaluator_for
from fpmgm.evaluation.held_out import HELD_OUT
from fpmgm.evaluation.image_judges import judge_of
from fpmgm.evaluation.judges import judge_named

TEXT, IMAGE = "text", "image"


def chosen_evaluator(
    models: Sequence[str],
    *,
    judge: str,
    device: str,
    convention: str = PAPER,
    mauve: str = "",
    mauve_split: str = HELD_OUT,
    masking: str = "linear",
    inception: bool = False,
) -> Evaluator:
    """The evaluator of models that all write the same; a ValueError for a setting that is not for what they write.

    `auto` as a judge is the bundled one: of text the causal model, of images the classifier of the first one's data.
    """
    if kind_of(models) == IMAGE:
        if mauve:
            raise ValueError("MAUVE compares texts, and these models draw images; leave --mauve out")
        if convention != PAPER:
            raise ValueError(f"convention is {convention}, and these models draw images; leave --convention out")
        if masking != "linear":
            raise ValueError(f"masking is {masking}, and it is for bounds of text; leave --masking out")
        return evaluator_for(IMAGE, judge=judge_of(judge, models[0]), inception=inception, device=device)
    if inception:
        raise ValueError("Inception looks at images, and these models write text; leave --inception out")
    settings = {"judge": judge_named(judge), "convention": convention, "masking": masking, "device": device}
    return evaluator_for(TEXT, mauve=mauve, mauve_split=mauve_split, **settings)


def kind_of(models: Sequence[str]) -> str:
    """What models write: text or images; a ValueError if they differ, or if one of them writes nothing."""
    kinds = {model: _kind(model) for model in models}
    for model, kind in kinds.items():
        if kind not in (TEXT, IMAGE):
            raise ValueError(f"{model} reads images and draws none; give a model that uses it, such as fashion")
        if kind != kinds[models[0]]:
            raise ValueError(
                f"{models[0]} writes {kinds[models[0]]} and {model} {kind}; nothing measures both, so give models of "
                "one kind"
            )
    return kinds[models[0]] if models else TEXT


@lru_cache(maxsize=64)
def _kind(model: str) -> str:
    """By the files of the model folder. A folder without any is refused later, when it is loaded."""
    folder = find_folder(model)
    return next((codec.kind for codec in CODECS if codec.is_in(folder)), TEXT)

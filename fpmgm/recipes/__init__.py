"""Full runs by name: each a frozen dataclass, every field of which the command line can change."""

from fpmgm.recipes.lm1b import LM1B
from fpmgm.recipes.mini import (
    TEXT_MINI,
    TEXT_MINI_ADAPT,
    TEXT_MINI_COFRE,
    TEXT_MINI_FP_SDTT,
    TEXT_MINI_JUDGE,
    TEXT_MINI_MDLM,
    TEXT_MINI_MDLM_CONS,
    TEXT_MINI_SDTT,
)
from fpmgm.recipes.owt import OWT, OWT_128, OWT_ADAPT, OWT_COFRE, OWT_MDLM, OWT_MDLM_CONS, OWT_SDTT
from fpmgm.training.config import Training

RECIPES: dict[str, Training] = {
    "text-mini": TEXT_MINI,
    "text-mini-mdlm": TEXT_MINI_MDLM,
    "text-mini-judge": TEXT_MINI_JUDGE,
    "text-mini-cofre": TEXT_MINI_COFRE,
    "text-mini-mdlm-cons": TEXT_MINI_MDLM_CONS,
    "text-mini-sdtt": TEXT_MINI_SDTT,
    "text-mini-fp-sdtt": TEXT_MINI_FP_SDTT,
    "text-mini-adapt": TEXT_MINI_ADAPT,
    "owt": OWT,
    "owt-mdlm": OWT_MDLM,
    "owt-128": OWT_128,
    "owt-cofre": OWT_COFRE,
    "owt-mdlm-cons": OWT_MDLM_CONS,
    "owt-sdtt": OWT_SDTT,
    "owt-adapt": OWT_ADAPT,
    "lm1b": LM1B,
}

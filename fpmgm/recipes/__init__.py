"""Full runs by name: each a frozen dataclass, every field of which the command line can change."""

from fpmgm.recipes.lm1b import LM1B
from fpmgm.recipes.mini import TEXT_MINI, TEXT_MINI_JUDGE, TEXT_MINI_MDLM
from fpmgm.recipes.owt import OWT, OWT_128, OWT_MDLM
from fpmgm.training.config import Training

RECIPES: dict[str, Training] = {
    "text-mini": TEXT_MINI,
    "text-mini-mdlm": TEXT_MINI_MDLM,
    "text-mini-judge": TEXT_MINI_JUDGE,
    "owt": OWT,
    "owt-mdlm": OWT_MDLM,
    "owt-128": OWT_128,
    "lm1b": LM1B,
}

"""Full runs by name: each a frozen dataclass, every field of which the command line can change."""

from fpmgm.recipes.images import FASHION_CLASSIFIER, FASHION_TOKENIZER
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
from fpmgm.recipes.stories import STORIES_FP, STORIES_MDLM
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
    "stories-fp": STORIES_FP,
    "stories-mdlm": STORIES_MDLM,
    "fashion-tokenizer": FASHION_TOKENIZER,
    "fashion-classifier": FASHION_CLASSIFIER,
    "owt": OWT,
    "owt-mdlm": OWT_MDLM,
    "owt-128": OWT_128,
    "owt-cofre": OWT_COFRE,
    "owt-mdlm-cons": OWT_MDLM_CONS,
    "owt-sdtt": OWT_SDTT,
    "owt-adapt": OWT_ADAPT,
    "lm1b": LM1B,
}

ABOUT: dict[str, str] = {
    "mine": "your own text, within some minutes: --data.source FILE --minutes 10",
    "text-mini": "FP-MDLM of poetry, 1/1/1 blocks; some hours on two cores",
    "text-mini-mdlm": "MDLM of poetry, 12 blocks",
    "text-mini-judge": "a causal model of poetry, to judge samples with",
    "text-mini-cofre": "stage: consistency across steps, from the bundled text-mini",
    "text-mini-mdlm-cons": "stage: the same, from the bundled text-mini-mdlm",
    "text-mini-sdtt": "stage: self-distillation through time, from text-mini-mdlm",
    "text-mini-fp-sdtt": "stage: self-distillation through time, from text-mini",
    "text-mini-adapt": "stage: text-mini-mdlm made an FP-MDLM and adapted",
    "stories-fp": "FP-MDLM of stories, 1/1/1 blocks; prepare stories makes the corpus first",
    "stories-mdlm": "MDLM of stories, 12 blocks",
    "fashion-classifier": "a classifier of Fashion-MNIST, to judge images with; minutes of one core",
    "fashion-tokenizer": "an image tokenizer of Fashion-MNIST, 7 x 7 of 256 codes; minutes of one core",
    "owt": "FP-MDLM of OpenWebText, 1/1/1 blocks, as in the paper; needs GPUs",
    "owt-mdlm": "MDLM of OpenWebText, 12 blocks; needs GPUs",
    "owt-128": "FP-MDLM of OpenWebText with sequences of 128 tokens; needs GPUs",
    "owt-cofre": "stage: consistency across steps; needs GPUs",
    "owt-mdlm-cons": "stage: the same of MDLM; needs GPUs",
    "owt-sdtt": "stage: self-distillation through time; needs GPUs",
    "owt-adapt": "stage: the public MDLM made an FP-MDLM and adapted; needs GPUs",
    "lm1b": "FP-MDLM of LM1B, a sentence a sequence; needs GPUs",
}
"""What each recipe is; `mine` makes its own of the text, and is not in the table above."""

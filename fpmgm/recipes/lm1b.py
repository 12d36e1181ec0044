"""LM1B as the paper's ablation sets it: a sentence a sequence, padded to 128 tokens of BERT, 100,000 updates.

fpmgm train lm1b    FP-MDLM, 1/1/1 blocks, learning rate 2e-4, clip 1.0: the best stochastic row of that table

Run on GPUs with `accelerate launch -m fpmgm train lm1b --mixed-precision bf16`; the paper's took 8 h 50 min. Not run
here: it needs the hub. The paper's validation perplexity is 42.795. It may not compare: 1 % of the training set is held
out here, in regions spread over it, and no detokeniser is applied.
"""

from dataclasses import replace

from fpmgm.data.text import TextConfig
from fpmgm.recipes.owt import OWT

LM1B = replace(
    OWT,
    data=TextConfig(source="hub:billion-word-benchmark/lm1b", tokenizer="bert", length=128, packing="pad"),
    updates=100_000,
)

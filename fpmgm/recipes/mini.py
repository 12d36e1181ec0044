"""The miniature: poetry, 192 wide, sequences of 128 tokens, 5,000 updates of 32 sequences.

fpmgm train text-mini          FP-MDLM, 1/1/1 blocks
fpmgm train text-mini-mdlm     MDLM, 12 blocks
fpmgm train text-mini-judge    a causal model of 12 blocks, to judge samples with
"""

from dataclasses import replace

from fpmgm.backbones.dit import Network
from fpmgm.data.text import TextConfig
from fpmgm.training.config import Training
from fpmgm.training.optim import OptimConfig

TEXT_MINI = Training(
    model=Network(width=192, num_heads=6, num_pre=1, num_fp=1, num_post=1, dropout=0.0),
    data=TextConfig(source="poetry", tokenizer="bpe-2048", length=128),
    optim=OptimConfig(lr=1e-3, warmup=100, decay="cosine", ema=0.999, injection_lr=0.1),
    embedding_start="normal",
    injection_start="mean",  # with its small learning rate: off the plateau in 150 updates instead of 300
    updates=5000,
    batch_size=32,
)

TEXT_MINI_MDLM = replace(TEXT_MINI, model=replace(TEXT_MINI.model, num_pre=12, num_fp=0, num_post=0))

TEXT_MINI_JUDGE = replace(TEXT_MINI_MDLM, model=replace(TEXT_MINI_MDLM.model, is_causal=True))

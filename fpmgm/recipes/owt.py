"""OpenWebText as the paper sets it: GPT-2 tokens, MDLM-small's network, the last 100,000 documents held out.

fpmgm train owt         FP-MDLM, 1/1/1 blocks, length 1024, 1M updates (the paper: 8 H200 GPUs)
fpmgm train owt-mdlm    MDLM, 12 blocks, the same
fpmgm train owt-128     the proxy that hyperparameters were tuned on: length 128, 100,000 updates

Run on several GPUs with `accelerate launch -m fpmgm train owt --mixed-precision bf16 --micro-batch-size 32`. Not run
here: it needs the hub and GPUs. The paper's validation perplexities are 47.10 (MDLM) and 53.28 (FP-MDLM) for the proxy.
"""

from dataclasses import replace

from fpmgm.backbones.dit import Network
from fpmgm.data.text import TextConfig
from fpmgm.training.config import Training
from fpmgm.training.optim import OptimConfig

OWT = Training(
    model=Network(num_pre=1, num_fp=1, num_post=1),
    data=TextConfig(source="hub:Skylion007/openwebtext", tokenizer="gpt2", length=1024, validation_documents=100_000),
    optim=OptimConfig(lr=2e-4, warmup=2500, clip=1.0, ema=0.9999),
    updates=1_000_000,
    batch_size=512,
    checkpoint_every=5000,
    validate_every=10_000,
)

OWT_MDLM = replace(OWT, model=Network(num_pre=12), optim=replace(OWT.optim, lr=3e-4))

OWT_128 = replace(OWT, data=replace(OWT.data, length=128), updates=100_000)

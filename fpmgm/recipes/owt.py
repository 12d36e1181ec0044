"""OpenWebText as the paper sets it: GPT-2 tokens, MDLM-small's network, the last 100,000 documents held out.

fpmgm train owt         FP-MDLM, 1/1/1 blocks, length 1024, 1M updates (the paper: 8 H200 GPUs)
fpmgm train owt-mdlm    MDLM, 12 blocks, the same
fpmgm train owt-128     the proxy that hyperparameters were tuned on: length 128, 100,000 updates

Stages. The first two go on from the runs above, with their optimiser and learning rate; the third starts from a run's
model, or from the one that `--init` names:

fpmgm train owt-cofre       30,000 updates of consistency, weight 0.1 after 5,000; stops 15 % above the start
fpmgm train owt-mdlm-cons   the same for MDLM
fpmgm train owt-sdtt        SDTT as published: 7 rounds of 10,000 updates, steps from 1/1024, batches of 128
fpmgm train owt-adapt       the public MDLM (hub) made an FP-MDLM by layers 1/6/12: 40,000 updates of its KL

Run on several GPUs with `accelerate launch -m fpmgm train owt --mixed-precision bf16 --micro-batch-size 32`. Not run
here: it needs the hub and GPUs. The paper's validation perplexities are 47.10 (MDLM) and 53.28 (FP-MDLM) for the proxy.
"""

from dataclasses import replace

from fpmgm.backbones.dit import Network
from fpmgm.data.text import TextConfig
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.training.config import Training
from fpmgm.training.optim import OptimConfig

AS_PUBLISHED = MaskedCrossEntropy(schedule="log-linear", gradient="sjfb-cut")
"""Masks as in the code of MDLM, and the gradient as in that of FPDM, which the paper builds on."""
TEXT = TextConfig(source="hub:Skylion007/openwebtext", tokenizer="gpt2", length=1024, validation_documents=100_000)

OWT = Training(
    model=Network(num_pre=1, num_fp=1, num_post=1),
    data=TEXT,
    objective=AS_PUBLISHED,
    optim=OptimConfig(lr=2e-4, warmup=2500, clip=1.0, ema=0.9999),
    updates=1_000_000,
    batch_size=512,
    checkpoint_every=5000,
    validate_every=10_000,
)

OWT_MDLM = replace(OWT, model=Network(num_pre=12), optim=replace(OWT.optim, lr=3e-4))

OWT_128 = replace(OWT, data=replace(TEXT, length=128), updates=100_000)

OWT_COFRE = replace(
    OWT,
    continue_from="runs/owt",
    objective=Consistency(weight=0.1, distance="squared-norm", base=AS_PUBLISHED),
    stop_above=0.15,
    snapshot_every=5000,
    updates=30_000,
    validate_every=1000,
)

OWT_MDLM_CONS = replace(OWT_COFRE, continue_from="runs/owt-mdlm", model=OWT_MDLM.model, optim=OWT_MDLM.optim)

OWT_SDTT = replace(
    OWT_MDLM,
    init="runs/owt-mdlm/model",
    objective=SelfDistillation(rounds=7, first_steps=1024, times="published", base=AS_PUBLISHED),
    updates=70_000,
    batch_size=128,
    validate_every=10_000,
)

OWT_ADAPT = replace(
    OWT,
    init="runs/mdlm-owt",
    init_map="1/6/12",
    objective=Consistency(
        weight=0.1, warmup=1 / 8, teacher="runs/mdlm-owt", distance="kl", temperature=1.5, base=AS_PUBLISHED
    ),
    updates=40_000,
)
"""`runs/mdlm-owt` is the public model: fpmgm convert kuleshov-group/mdlm-owt runs/mdlm-owt --map none."""

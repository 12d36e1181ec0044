"""The hard miniature: poetry, 192 wide, sequences of 128 tokens. Base runs have 5,000 updates of 32 sequences.

fpmgm train poetry             FP-MDLM, 1/1/1 blocks
fpmgm train poetry-mdlm        MDLM, 12 blocks
fpmgm train poetry-judge       a causal model of 12 blocks, to judge samples with; 3,000 updates

Stages that start from the base runs in runs/, 13 to 25 minutes each on one busy core; scores are in docs/log.md:

fpmgm train poetry-cofre       FP-MDLM, consistency across steps (L_CONS)
fpmgm train poetry-mdlm-cons   MDLM, the same
fpmgm train poetry-sdtt        MDLM, self-distillation through time
fpmgm train poetry-fp-sdtt     FP-MDLM, the same
fpmgm train poetry-adapt       the MDLM made an FP-MDLM by layers 1/6/12, adapted to its teacher's KL
"""

from dataclasses import replace

from fpmgm.backbones.dit import Network
from fpmgm.data.text import TextConfig
from fpmgm.objectives import NextToken
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.training.config import Training
from fpmgm.training.optim import OptimConfig

MINI = Network(
    width=192,
    num_heads=6,
    num_pre=1,
    num_fp=1,
    num_post=1,
    dropout=0.0,
    embedding_start="normal",  # for plain stacks too: loss 6.00 instead of 6.28 after 300 updates
    injection_start="mean",  # with its small learning rate: off the plateau in 150 updates instead of 300
)
"""The fixed point of the miniature."""
MINI_DEEP = replace(MINI, num_pre=12, num_fp=0, num_post=0)
"""The plain stack beside it."""

FIXED_POINT, PLAIN = "runs/poetry", "runs/poetry-mdlm"
"""The runs that stages start from."""

POETRY = Training(
    model=MINI,
    data=TextConfig(source="poetry", tokenizer="bpe-2048", length=128),
    optim=OptimConfig(lr=1e-3, warmup=100, decay="cosine", ema=0.999, injection_lr=0.1),
    updates=5000,
    batch_size=32,
)

POETRY_MDLM = replace(POETRY, model=MINI_DEEP)

POETRY_JUDGE = replace(
    POETRY_MDLM,
    model=replace(MINI_DEEP, is_causal=True, embedding_start="auto"),
    objective=NextToken(),
    updates=3000,
)

STAGE = replace(
    POETRY,
    optim=replace(POETRY.optim, lr=3e-4, warmup=20, ema=0.95),
    updates=200,
    checkpoint_every=50,
    validate_every=50,
)

POETRY_COFRE = replace(
    STAGE,
    init=FIXED_POINT,
    objective=Consistency(
        weight=3.0, teacher="init", distance="kl-bwd", positions="both-masked", gap_min=0.3, gap_max=0.6
    ),
    optim=replace(STAGE.optim, lr=1e-4, ema=0.99),  # at 3e-4, seeds of one recipe differ by more than it gains
    updates=300,
    validate_every=100,
    snapshot_every=100,
)

POETRY_MDLM_CONS = replace(
    POETRY_COFRE,
    init=PLAIN,
    model=POETRY_MDLM.model,
    updates=200,  # as long as the other on one core
)

POETRY_FP_SDTT = replace(
    STAGE,
    init=FIXED_POINT,
    objective=SelfDistillation(rounds=1, first_steps=4),
    optim=replace(STAGE.optim, lr=5e-5, ema=0.98),
    validate_every=100,
    snapshot_every=50,
)

POETRY_SDTT = replace(POETRY_FP_SDTT, init=PLAIN, model=POETRY_MDLM.model)

POETRY_ADAPT = replace(
    STAGE,
    init=PLAIN,
    init_map="1/6/12",
    objective=Consistency(weight=0.1, teacher=PLAIN, distance="kl", temperature=1.5),
    optim=replace(POETRY.optim, warmup=50, ema=0.98),
    validate_every=100,
)

"""The miniature: the corpus `stories` in whole words, 192 wide, sequences of 256 tokens.

Every sequence begins with a story, and the longest story fits. `fpmgm prepare stories-fp` makes the corpus of the base
models, which takes half an hour or more, and `fpmgm prepare stories-match` that of the stages, a third of it; a run
that does not find its corpus makes it first.

fpmgm train stories-fp           FP-MDLM, 1/1/1 blocks, with the injection `diagonal`
fpmgm train stories-fp-warm      the same, and in half of the updates the solver starts as the sampler's does
fpmgm train stories-mdlm         MDLM, 12 blocks, as many updates
fpmgm train stories-judge        a small causal model, to judge samples with

They compute in bfloat16 where the device has instructions for it, else in float32; the judge always in float32, on a
corpus of 1,580,000 tokens of the source. The paper's injection is
--model.injection mlp --model.injection-start mean.
Stages start from the bundled base models:

fpmgm train stories-match        FP-MDLM, distribution matching
fpmgm train stories-mdlm-match   MDLM, the same
fpmgm train stories-cofre        FP-MDLM, consistency across steps (L_CONS): the paper's stage
fpmgm train stories-mdlm-cons    MDLM, the same loss
fpmgm train stories-sdtt         MDLM, self-distillation through time
fpmgm train stories-fp-sdtt      FP-MDLM, the same
fpmgm train stories-adapt        the MDLM made an FP-MDLM by layers 1/2/12, adapted to its teacher's KL
"""

from dataclasses import replace

from fpmgm.backbones.dit import Network
from fpmgm.data.stories_text import StoriesConfig
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.training.config import Training
from fpmgm.training.optim import OptimConfig
from fpmgm.training.watch import Watch

FIXED_POINT = Network(
    width=192,
    num_heads=6,
    num_pre=1,
    num_fp=1,
    num_post=1,
    cond_width=16,  # the network sees no time: a wide condition is only a larger file
    dropout=0.0,
    embedding_start="normal",
    injection="diagonal",  # after 2,000 updates 18 % below the paper's, and cheaper: docs/results/injections
    gate_start=1.0,
)
PAPERS = replace(FIXED_POINT, injection="mlp", injection_start="mean")
"""With the paper's injection."""
DEEP = replace(PAPERS, num_pre=12, num_fp=0, num_post=0)
AS_SAMPLED = MaskedCrossEntropy(
    iterations=IterationCounts(no_grad_min=0, no_grad_max=2, grad_min=2, grad_max=4)  # 4 on average, as at sampling
)

STORIES = StoriesConfig(size=4_000_000, tokenizer="words-4096", length=256)

STORIES_FP = Training(
    model=FIXED_POINT,
    data=STORIES,
    objective=AS_SAMPLED,
    optim=OptimConfig(
        kind="muon",
        muon_precision="auto",
        lr=3e-3,
        warmup=100,
        decay="cosine",
        ema=0.999,
        injection_lr=0.3,
    ),
    updates=8000,
    batch_size=8,
    validation_sequences=256,
    mixed_precision="auto",
)

STORIES_FP_WARM = replace(STORIES_FP, objective=replace(AS_SAMPLED, warm_start=0.5))

STORIES_MDLM = replace(STORIES_FP, model=DEEP)

STORIES_JUDGE = replace(
    STORIES_FP,
    data=replace(STORIES, size=1_580_000, tokenizer="source"),
    model=replace(DEEP, width=128, num_heads=4, num_pre=5, is_causal=True, embedding_start="auto"),
    objective=NextToken(),
    optim=replace(STORIES_FP.optim, muon_precision="float32"),  # as the bundled judge was trained
    updates=2000,
    mixed_precision="no",
)

STAGE = replace(
    STORIES_FP,
    init="stories-fp",
    data=replace(STORIES, size=1_500_000),  # more than its 300 updates read, and there in a third of the time
    optim=OptimConfig(lr=1e-4, warmup=20, ema=0.98, injection_lr=0.1),
    updates=300,
    batch_size=16,
    checkpoint_every=50,
    validate_every=100,
    snapshot_every=50,
)

STORIES_MATCH = replace(
    STAGE,
    # steps of 24, 48 and 96 blocks
    objective=Matching(base=AS_SAMPLED, steps=(4, 8, 16), remask="nested", first="base", fake_lr=2e-4),
    optim=replace(STAGE.optim, lr=4e-5, injection_lr=1.0),
    checkpoint_every=100,
    validate_every=200,
    snapshot_every=0,
    watch=Watch(
        every=100,
        judge="stories-source",
        temperatures=(0.85, 1.05),
        num_samples=48,
        patience=2,
    ),
)

STORIES_MDLM_MATCH = replace(
    STORIES_MATCH,
    init="stories-mdlm",
    model=DEEP,
    objective=Matching(steps=(2, 4, 8), remask="nested", first="base"),  # of 24, 48 and 96 blocks
    optim=replace(STORIES_MATCH.optim, lr=2e-5),
)

STORIES_COFRE = replace(STAGE, objective=Consistency(weight=0.1, base=AS_SAMPLED), stop_above=0.15)

STORIES_MDLM_CONS = replace(STORIES_COFRE, init="stories-mdlm", model=DEEP)

STORIES_FP_SDTT = replace(
    STAGE,
    objective=SelfDistillation(rounds=1, first_steps=4, base=AS_SAMPLED),
    optim=replace(STAGE.optim, lr=5e-5),
)

STORIES_SDTT = replace(STORIES_FP_SDTT, init="stories-mdlm", model=DEEP)

STORIES_ADAPT = replace(
    STAGE,
    init="stories-mdlm",
    init_map="1/2/12",  # the paper's rule: the first of the layers that are alike, which begin at the second here
    objective=Consistency(weight=0.1, teacher="stories-mdlm", distance="kl", temperature=1.5, base=AS_SAMPLED),
    optim=replace(STORIES_FP.optim, warmup=50, ema=0.99),
    updates=1000,
    batch_size=8,
    snapshot_every=0,
)

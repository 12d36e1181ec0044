"""Images in miniature: Fashion-MNIST, 28 x 28 pixels as 7 x 7 of 256 codes, networks 128 wide.

fpmgm train fashion-tokenizer     the image tokenizer; 10 minutes of one core
fpmgm train fashion-classifier    what judges generated images; some minutes
fpmgm train fashion-fp            FP-MaskGIT, 2/1/2 blocks; 15 minutes of one core
fpmgm train fashion-maskgit       MaskGIT, 12 blocks; 25 minutes
fpmgm train fashion-maskgit-6     MaskGIT, 6 blocks; 12 minutes
fpmgm train fashion-from-start    FP-MaskGIT, consistency across steps from the first update on
fpmgm train fashion-control       stage: as fashion, without the consistency loss
fpmgm train fashion               stage: CoFRe, consistency across steps, from runs/fashion-fp; 3 minutes

Networks take the tokenizer of the bundled model `fashion`; one of your own by --data.tokenizer runs/fashion-tokenizer.
The paper's network has 24 blocks and its fixed point 4/1/4; here both are halved. Scores are in
docs/results/image-mini.

fpmgm train cifar10-tokenizer, then cifar10: the same in colour, 32 x 32 pixels as 8 x 8 of 512 codes. They were
built and not run.
"""

from dataclasses import replace

from fpmgm.backbones.classifier import ClassifierNetwork
from fpmgm.backbones.maskgit import MaskGITNetwork
from fpmgm.backbones.vq import VQNetwork
from fpmgm.data.images import ImagesConfig
from fpmgm.data.pixels import PixelsConfig
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.post_training.consistency import Consistency
from fpmgm.training.classification import Classification
from fpmgm.training.config import Training
from fpmgm.training.optim import OptimConfig
from fpmgm.training.reconstruction import Reconstruction

FASHION_TOKENIZER = Training(
    model=VQNetwork(),
    data=PixelsConfig(source="fashion"),
    objective=Reconstruction(),
    optim=OptimConfig(lr=2e-3, warmup=50, decay="cosine", ema=0.0),  # codes move by themselves: no average of weights
    updates=4000,
    batch_size=64,
    validate_every=1000,
    validation_sequences=1000,
)

FASHION_CLASSIFIER = Training(
    model=ClassifierNetwork(),
    data=PixelsConfig(source="fashion"),
    objective=Classification(shift=1, flip=True),
    optim=OptimConfig(lr=2e-3, warmup=100, decay="cosine", weight_decay=0.02, ema=0.995),
    updates=1800,
    batch_size=128,
    validate_every=500,
    validation_sequences=10_000,
)

MINI = MaskGITNetwork(
    width=128,
    num_heads=4,
    num_pre=2,
    num_fp=1,
    num_post=2,
    mlp_multiple=32,
    dropout=0.0,
    embedding_start="normal",
    injection_start="mean",
)
"""The fixed point of the miniature."""
BASE = MaskedCrossEntropy(
    weighting="masked",
    schedule="arccos",
    label_dropout=0.1,
    iterations=IterationCounts(no_grad_min=0, no_grad_max=2, grad_min=1, grad_max=3),  # half of the paper's
)

FASHION_FP = Training(
    model=MINI,
    data=ImagesConfig(source="fashion", tokenizer="fashion", num_codes=256, grid=(7, 7), num_classes=10),
    objective=BASE,
    optim=OptimConfig(lr=2e-3, warmup=100, decay="cosine", weight_decay=0.03, ema=0.99, injection_lr=0.1),
    updates=1500,
    batch_size=64,
    checkpoint_every=250,
    validate_every=500,
)

FASHION_MASKGIT = replace(FASHION_FP, model=replace(MINI, num_pre=12, num_fp=0, num_post=0))
FASHION_MASKGIT_6 = replace(FASHION_FP, model=replace(MINI, num_pre=6, num_fp=0, num_post=0))

FASHION = replace(
    FASHION_FP,
    init="runs/fashion-fp/model",
    objective=Consistency(base=BASE, weight=30.0),  # about 4 % of the cross entropy at first
    optim=replace(FASHION_FP.optim, lr=5e-4, warmup=20, ema=0.97),
    updates=150,
    validate_every=50,
)
"""CoFRe: hidden-state MSE, the network its own teacher. Sampled with three-state reuse."""

FASHION_CONTROL = replace(FASHION, objective=BASE)
"""The same without the consistency loss: what so many more updates do by themselves."""
FASHION_FROM_START = replace(FASHION_FP, objective=Consistency(base=BASE, weight=30.0))
"""The consistency loss from the first update on, instead of a stage."""

CIFAR10_TOKENIZER = replace(
    FASHION_TOKENIZER,
    model=VQNetwork(channels=48, num_codes=512, code_width=16),
    data=PixelsConfig(source="cifar10"),
    updates=20_000,
)
CIFAR10 = replace(
    FASHION_FP,
    model=replace(MINI, width=192, num_heads=6),
    data=ImagesConfig(
        source="cifar10", tokenizer="runs/cifar10-tokenizer/model", num_codes=512, grid=(8, 8), num_classes=10
    ),
    updates=20_000,
)

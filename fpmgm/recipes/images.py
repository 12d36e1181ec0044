"""Images in miniature: Fashion-MNIST, 28 x 28 pixels as 7 x 7 of 256 codes, networks 128 wide.

fpmgm train fashion-tokenizer     the image tokenizer: some minutes of one core
fpmgm train fashion-classifier    the judge of images: some minutes of one core
fpmgm train fashion-fp            FP-MaskGIT, 2/1/2 blocks
fpmgm train fashion-maskgit       MaskGIT, 12 blocks
fpmgm train fashion-maskgit-6     MaskGIT, 6 blocks
fpmgm train fashion               stage: CoFRe, consistency across steps, from fashion-fp
"""

from fpmgm.backbones.classifier import ClassifierNetwork
from fpmgm.backbones.vq import VQNetwork
from fpmgm.data.pixels import PixelsConfig
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
    objective=Classification(flip=True),
    optim=OptimConfig(lr=2e-3, warmup=100, decay="cosine", weight_decay=0.05, ema=0.99),
    updates=2000,
    batch_size=128,
    validate_every=500,
    validation_sequences=10_000,
)

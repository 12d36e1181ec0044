"""The paper's image runs: ImageNette at 256 x 256 pixels as 16 x 16 of 4096 codes. They need a GPU of 80 GB.

fpmgm train imagenette-tokenizer       an image tokenizer of our own, 4096 codes on 16 x 16
fpmgm train imagenette                 FP-MaskGIT, 4/1/4 blocks (186.2M parameters); the paper: 9 h 08 on one A100
fpmgm train imagenette-maskgit-large   MaskGIT-Large, 24 blocks (466.0M); the paper: 17 h 46
fpmgm train imagenette-maskgit-12      MaskGIT, 12 blocks (236.3M); the paper: 7 h 40
fpmgm train imagenette-cofre           stage: consistency across steps, 10,000 updates from imagenette

None of them was run by us. By `fpmgm plan` they fit an A100 of 80 GB, MaskGIT-Large with 64 images in a pass; with
--micro-batch-size 32 they fit one of 40 GB. The paper writes images in the codes of XQGAN-4096, a tokenizer that this
package does not read. These recipes take our own tokenizer, or any `VQModel` of diffusers with 4096 codes on 16 x 16
(--data.tokenizer FOLDER). Results then differ from the paper's, since FID depends on the tokenizer first of all.
The data is ImageNette of the hub; a folder with train/ and val/ does as well: --data.source imagenette2-320.
"""

from dataclasses import replace

from fpmgm.backbones.maskgit import SIZES
from fpmgm.backbones.vq import VQNetwork
from fpmgm.data.images import ImagesConfig
from fpmgm.data.pixels import PixelsConfig
from fpmgm.gradients import IterationCounts
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.post_training.consistency import Consistency
from fpmgm.training.config import Training
from fpmgm.training.optim import OptimConfig
from fpmgm.training.reconstruction import Reconstruction

SOURCE = "hub:frgfm/imagenette"
LARGE = SIZES["large"]
BASE = MaskedCrossEntropy(
    weighting="masked",
    schedule="arccos",
    label_dropout=0.1,
    gradient="sjfb-cut",
    iterations=IterationCounts(no_grad_min=0, no_grad_max=4, grad_min=3, grad_max=6),
)

IMAGENETTE_TOKENIZER = Training(
    model=VQNetwork(channels=64, num_stages=4, num_blocks=2, num_codes=4096, code_width=32),
    data=PixelsConfig(source=SOURCE, size=256, colours="rgb"),
    objective=Reconstruction(),
    optim=OptimConfig(lr=3e-4, warmup=1000, decay="cosine", ema=0.0),
    updates=100_000,
    batch_size=32,
    checkpoint_every=5000,
    validate_every=5000,
)
"""Results with it differ from the paper's, which has XQGAN-4096."""

IMAGENETTE = Training(
    model=replace(LARGE, num_pre=4, num_fp=1, num_post=4),
    data=ImagesConfig(
        source=SOURCE,
        size=256,
        colours="rgb",
        tokenizer="runs/imagenette-tokenizer/model",
        num_codes=4096,
        grid=(16, 16),
        num_classes=10,
    ),
    objective=BASE,
    optim=OptimConfig(lr=5e-4, warmup=1500, decay="cosine", weight_decay=0.03),
    updates=50_000,
    batch_size=128,
    checkpoint_every=2500,
    validate_every=2500,
)
"""As the paper sets it, but for its tokenizer, XQGAN-4096, so that results differ from the paper's. The iteration
counts are not in the paper for images; these are its counts for text."""

IMAGENETTE_MASKGIT_LARGE = replace(IMAGENETTE, model=LARGE, micro_batch_size=64)
"""MaskGIT-Large, 24 blocks; with another tokenizer than the paper's, so that results differ from the paper's."""
IMAGENETTE_MASKGIT_12 = replace(IMAGENETTE, model=replace(LARGE, num_pre=12))
"""MaskGIT of 12 blocks; with another tokenizer than the paper's, so that results differ from the paper's."""

IMAGENETTE_COFRE = replace(
    IMAGENETTE,
    init="runs/imagenette/model",
    objective=Consistency(base=BASE, weight=0.1),
    updates=10_000,
)
"""Hidden-state MSE, the network its own teacher; with another tokenizer than the paper's, as above."""

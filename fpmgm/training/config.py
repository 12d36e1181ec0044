"""What a training run is: a frozen dataclass, every field of which can be set on the command line."""

from dataclasses import dataclass, field
from typing import Literal

from fpmgm.backbones import AnyNetwork, NetworkConfig
from fpmgm.backbones.dit import Network
from fpmgm.data.images import ImagesConfig
from fpmgm.data.pixels import PixelsConfig
from fpmgm.data.stories_text import StoriesConfig
from fpmgm.data.text import TextConfig
from fpmgm.interop.layer_map import LayerMap
from fpmgm.names import choose
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.post_training.consistency import Consistency
from fpmgm.post_training.matching import Matching
from fpmgm.post_training.sdtt import SelfDistillation
from fpmgm.schema import MAX_ITERATIONS, require
from fpmgm.training.classification import Classification
from fpmgm.training.optim import OptimConfig
from fpmgm.training.reconstruction import Reconstruction
from fpmgm.training.trackers import check_trackers
from fpmgm.training.watch import Watch

AnyData = TextConfig | StoriesConfig | ImagesConfig | PixelsConfig
"""The data that a recipe may have."""
AnyObjective = (
    MaskedCrossEntropy | NextToken | Consistency | SelfDistillation | Matching | Reconstruction | Classification
)
MAX_UPDATES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run: which network learns which data, how, and for how long."""

    out: str = ""
    """The run folder; the same command continues a run that is there. Empty: runs/ and the recipe's name."""
    model: AnyNetwork = field(default_factory=Network)
    data: AnyData = field(default_factory=TextConfig)
    """What is learned. Which kind of data it is a recipe decides; its settings can be changed."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    objective: AnyObjective = field(default_factory=MaskedCrossEntropy)
    """What is minimised. Which one it is a recipe decides; its settings can be changed."""
    init: str = ""
    """The model whose weights the run starts from: a bundled one, a folder or a hub id. Empty: fresh weights."""
    continue_from: str = ""
    """The folder of a run that this one goes on from, instead of `init`: with its weights, its optimiser and its moving
    average, at its learning rate and without a new warm-up. Empty: from none."""
    init_map: str = ""
    """Makes `init`, a plain stack, a fixed point first: pre/fixed-point/post layers, as in 1/6/12. Empty: as it is."""
    updates: int = 5000
    extend: bool = False
    """Let a run that was planned for fewer updates go on to `updates`. Learning rate and warm-ups then follow those of
    the longer run; config.json and the model card say so."""
    batch_size: int = 32
    """Sequences per update, over all processes."""
    micro_batch_size: int = 0
    """Sequences per pass and process; smaller ones accumulate gradients. 0: all at once."""
    seed: int = 0
    checkpoint_every: int = 500
    """Updates between checkpoints."""
    validate_every: int = 1000
    """Updates between measurements of the validation perplexity; the last update always has one."""
    stop_above: float = 0.0
    """Stop at the first validation whose perplexity exceeds that of the start by this share (the paper: 0.15), and
    keep that checkpoint. 0: never."""
    watch: Watch = field(default_factory=Watch)
    """Measures the frontier on the way, keeps the best model and ends the run when it has not got better."""
    snapshot_every: int = 0
    """Updates between model folders kept in snapshots/, the start among them, for `analyse RUN dynamics`. 0: none."""
    validation_sequences: int = 512
    validation_iters: int = 6
    """Solver iterations in validation. Unused by a plain stack."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, both or nothing."""
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    """no, or bf16; on CPU only `no` is fast. fp16 is refused: a resumed run would not know the scale of its loss."""
    device: Literal["auto", "cpu"] = "auto"
    """auto: what accelerate finds, CUDA before MPS before the CPU; cpu: the CPU. One of several GPUs is chosen with the
    variable CUDA_VISIBLE_DEVICES, all of them with accelerate launch."""
    compile: bool = False
    """Whether to compile the blocks with torch.compile; needs a C++ compiler on CPU."""

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "checkpoint_every", "validate_every", "validation_sequences"):
            require(name, getattr(self, name), 1, MAX_UPDATES)
        require("micro_batch_size", self.micro_batch_size, 0)
        require("seed", self.seed, 0)
        require("validation_iters", self.validation_iters, 1, MAX_ITERATIONS)
        if self.mixed_precision == "fp16":
            raise ValueError(
                "mixed_precision is fp16, whose loss must be scaled by a number that a resumed run would not know; "
                "give bf16, which needs no scaling"
            )
        choose("mixed_precision", self.mixed_precision, dict.fromkeys(("no", "bf16")))
        check_trackers(self.trackers)
        for name in ("stop_above", "snapshot_every"):
            if not getattr(self, name) >= 0:  # nan neither
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 (never) or above")
        if self.continue_from:
            self._check_continued()
        if self.init_map:
            LayerMap.parse(self.init_map)
            if not self.init:
                raise ValueError(f"init_map is {self.init_map}, but there is no init to map")
        self.objective.check(updates=self.updates, has_init=bool(self.source), is_causal=self.model.is_causal)

    def _check_continued(self) -> None:
        if self.init or self.init_map:
            raise ValueError(
                f"continue_from is {self.continue_from}, which brings its own weights, and there is an init; give one"
            )
        if self.optim.decay != "constant":
            raise ValueError(
                f"continue_from is {self.continue_from}, and the learning rate decays by {self.optim.decay}; only a "
                "constant one goes on: give --optim.decay constant"
            )

    @property
    def source(self) -> str:
        """The model that the run starts from, or nothing."""
        return f"{self.continue_from}/model" if self.continue_from else self.init

    @property
    def network(self) -> NetworkConfig:
        """The network with its vocabulary and length."""
        return self.model.fit(self.data.vocabulary)

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
from fpmgm.objectives import MaskedCrossEntropy, NextToken, check_has_solver
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
FSDP = "fsdp"
"""Weights, moving average and optimiser in shards."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run: which network learns which data, how, and for how long."""

    out: str = ""
    """The run folder. If a run is there, the same command continues it. If it is empty, the folder is runs/ and the
    recipe's name."""
    model: AnyNetwork = field(default_factory=Network)
    """The shape of the network."""
    data: AnyData = field(default_factory=TextConfig)
    """What is learned. The recipe decides which kind of data it is; its settings can be changed."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    objective: AnyObjective = field(default_factory=MaskedCrossEntropy)
    """What is minimised. The recipe decides which objective it is; its settings can be changed."""
    init: str = ""
    """The model whose weights the run starts from: a bundled one, a folder or a hub id. If it is empty, weights are
    fresh."""
    continue_from: str = ""
    """The folder of a run that this one goes on from, instead of `init`: with its weights, its optimiser and its moving
    average, at its learning rate and without a new warm-up. If it is empty, there is none."""
    init_map: str = ""
    """Makes `init`, a plain stack, a fixed-point model first: its layers for the blocks before, inside and after the
    fixed point, such as 1/6/12. If it is empty, `init` is taken as it is."""
    updates: int = 5000
    """The number of updates of the run."""
    extend: bool = False
    """Lets a run that was planned for fewer updates go on to `updates`. Learning rate and warm-ups then follow the
    longer run. config.json and the model card say so."""
    batch_size: int = 32
    """Sequences in an update, over all processes."""
    micro_batch_size: int = 0
    """Sequences in a pass of a process. Smaller ones accumulate gradients. With 0, all are in one pass."""
    seed: int = 0
    """Every random number follows from this number and from the number of the update."""
    checkpoint_every: int = 500
    """Updates between checkpoints."""
    validate_every: int = 1000
    """Updates between validations. The last update always has one."""
    stop_above: float = 0.0
    """The run stops at the first validation whose perplexity exceeds that of the start by this share, and keeps that
    checkpoint. The paper has 0.15. With 0, this never stops a run."""
    watch: Watch = field(default_factory=Watch)
    """Measures the frontier on the way, keeps the best model and ends the run when it has not got better."""
    snapshot_every: int = 0
    """Updates between model folders that are kept in snapshots/ for `analyse RUN dynamics`. The start is one of them.
    With 0, none are kept."""
    validation_sequences: int = 512
    """Sequences that are read in a validation."""
    validation_iters: int = 6
    """Solver iterations in a validation. A plain stack has none."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, both or neither."""
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = "no"
    """no or bf16. With auto, it is bf16 where the device has instructions for it, else no. fp16 is refused, because a
    resumed run would not know the scale of its loss."""
    device: Literal["auto", "cpu"] = "auto"
    """With auto, accelerate chooses: CUDA, else MPS, else the CPU. cpu takes the CPU. To choose one of several GPUs,
    set the variable CUDA_VISIBLE_DEVICES. To use all of them, use accelerate launch."""
    sharding: Literal["none", "fsdp"] = "none"
    """What processes share. With none, each process has all weights. With fsdp, each has a part of the weights, of
    their moving average and of the optimiser (FSDP2), for models that are too large for one GPU. It needs several
    processes: torchrun or accelerate launch. A run may go on with another number of them."""
    compile: bool = False
    """Compile the blocks with torch.compile. On the CPU this needs a C++ compiler."""

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
        choose("mixed_precision", self.mixed_precision, dict.fromkeys(("auto", "no", "bf16")))
        choose("sharding", self.sharding, dict.fromkeys(("none", FSDP)))
        check_trackers(self.trackers)
        for name in ("stop_above", "snapshot_every"):
            if not getattr(self, name) >= 0:  # nan neither
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 (never) or above")
        if self.continue_from and (self.init or self.init_map):
            raise ValueError(
                f"continue_from is {self.continue_from}, which brings its own weights, and there is an init; give one"
            )
        if self.init_map:
            LayerMap.parse(self.init_map)
            if not self.init:
                raise ValueError(f"init_map is {self.init_map}, but there is no init to map")
        self.objective.check(updates=self.updates, has_init=bool(self.source), is_causal=self.model.is_causal)
        check_has_solver(self.objective, num_fp=getattr(self.model, "num_fp", 0))

    @property
    def source(self) -> str:
        """The model that the run starts from, or nothing."""
        return f"{self.continue_from}/model" if self.continue_from else self.init

    @property
    def network(self) -> NetworkConfig:
        """The network with its vocabulary and length."""
        return self.model.fit(self.data.vocabulary)

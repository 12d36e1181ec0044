"""What a training run is: a frozen dataclass, every field of which can be set on the command line."""

from dataclasses import dataclass, field

from fpmgm.backbones.dit import MDLMConfig, Network
from fpmgm.data.text import TextConfig, mask_and_size
from fpmgm.gradients import IterationCounts
from fpmgm.names import choose
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.training.optim import OptimConfig
from fpmgm.training.trackers import check_trackers


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run: which network learns which text, how, and for how long."""

    out: str = ""
    """The run folder; the same command continues a run that is there. Empty: runs/ and the recipe's name."""
    model: Network = field(default_factory=Network)
    data: TextConfig = field(default_factory=TextConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    iterations: IterationCounts = field(default_factory=IterationCounts)
    """Solver iterations of an update, without and with gradients. Unused by a plain stack."""
    injection_start: str = "random"
    """How a fresh injection starts: random (torch's default) or mean, exactly (h + u)/2. Unused by a plain stack."""
    weighting: str = "bound"
    """How the loss weighs masked tokens: bound (w(t), MDLM) or masked (evenly, MaskGIT). Unused by a causal model."""
    updates: int = 5000
    batch_size: int = 32
    """Sequences per update, over all processes."""
    micro_batch_size: int = 0
    """Sequences per pass and process; smaller ones accumulate gradients. 0: all at once."""
    seed: int = 0
    checkpoint_every: int = 500
    """Updates between checkpoints."""
    validate_every: int = 1000
    """Updates between measurements of the validation perplexity; the last update always has one."""
    validation_sequences: int = 512
    validation_iters: int = 6
    """Solver iterations in validation. Unused by a plain stack."""
    trackers: tuple[str, ...] = ("tensorboard",)
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, both or nothing."""
    mixed_precision: str = "no"
    """no, bf16 or fp16; on CPU only `no` is fast."""
    compile: bool = False
    """Whether to compile the blocks with torch.compile; needs a C++ compiler on CPU."""

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "checkpoint_every", "validate_every", "validation_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        choose("injection_start", self.injection_start, {"random": None, "mean": None})
        check_trackers(self.trackers)
        _ = self.objective  # its settings are checked before any work is done

    @property
    def network(self) -> MDLMConfig:
        """The network with its vocabulary and length."""
        mask_id, size = mask_and_size(self.data.tokenizer)
        return MDLMConfig(**vars(self.model), vocab_size=size, mask_id=mask_id, length=self.data.length)

    @property
    def objective(self) -> MaskedCrossEntropy | NextToken:
        if self.model.is_causal:
            return NextToken()
        return MaskedCrossEntropy(weighting=self.weighting, counts=self.iterations)

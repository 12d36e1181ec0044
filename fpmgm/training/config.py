"""What a training run is: a frozen dataclass, every field of which can be set on the command line."""

from dataclasses import dataclass, field

from fpmgm.backbones.dit import EMBEDDINGS, MDLMConfig, Network
from fpmgm.consistency import Consistency
from fpmgm.data.text import TextConfig, mask_and_size
from fpmgm.gradients import IterationCounts
from fpmgm.layer_map import LayerMap
from fpmgm.names import choose
from fpmgm.objectives import MaskedCrossEntropy, NextToken
from fpmgm.sdtt import SelfDistillation
from fpmgm.training.optim import OptimConfig
from fpmgm.training.trackers import check_trackers

Objective = MaskedCrossEntropy | NextToken | Consistency | SelfDistillation
SELF, EMA, INIT = "self", "ema", "init"


@dataclass(frozen=True, kw_only=True)
class ConsistencyConfig:
    """A second term of the loss: agreement with a teacher that reads a cleaner input."""

    weight: float = 0.0
    """0: no second term."""
    warmup: float = 1 / 6
    """The share of the run over which the weight rises from 0."""
    teacher: str = SELF
    """self (L_CONS), ema (the moving average), or a frozen model: init (that of --init, as it is), a bundled one, a
    folder or a hub id."""
    distance: str = "mse"
    """Of what the head reads: mse, cosine. Of logits: projected-cosine, kl (teacher || student), kl-bwd."""
    positions: str = "student-masked"
    """student-masked (the paper), or both-masked."""
    targets: str = "subs"
    """What kl aims at where the teacher sees the token: subs (that token) or raw (the teacher's logits)."""
    temperature: float = 1.0
    """Of kl; the term is then multiplied by its square."""
    gap_min: float = 0.05
    gap_max: float = 0.30
    """The cleaner input is that of a time earlier by a gap drawn from this range."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"consistency.warmup is {self.warmup}; it must be a share of the run, 0 to 1")
        if self.weight < 0:
            raise ValueError(f"consistency.weight is {self.weight}; it must be 0 (none) or above")
        self.objective(MaskedCrossEntropy(), 0)  # a wrong setting is refused whether or not it is used

    def objective(self, base: MaskedCrossEntropy, updates: int) -> Consistency:
        return Consistency(
            base=base,
            weight=self.weight or 1.0,
            warmup=round(self.warmup * updates),
            distance=self.distance,
            positions=self.positions,
            targets=self.targets,
            temperature=self.temperature,
            gap_min=self.gap_min,
            gap_max=self.gap_max,
        )


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Self-distillation through time (SDTT), in place of the loss."""

    rounds: int = 0
    """0: none. The run is cut into so many rounds of equal length."""
    first_steps: int = 1024
    """The teacher of the first round takes steps of 1 / first_steps; they grow num_teacher_steps-fold every round."""
    num_teacher_steps: int = 2
    divergence: str = "kl-bwd"
    """kl-bwd (student || teacher), kl-fwd, mse or tvd of log-probabilities."""
    times: str = "corrected"
    """Where the teacher's steps are: corrected, or published as SDTT's code has them."""
    next_teacher: str = "weights"
    """What becomes the next round's teacher: the student's weights, or their moving average (ema)."""

    def __post_init__(self) -> None:
        choose("sdtt.next_teacher", self.next_teacher, {"weights": None, EMA: None})
        if self.rounds < 0:
            raise ValueError(f"sdtt.rounds is {self.rounds}; it must be 0 (none) or more")
        self.objective(MaskedCrossEntropy(), 0)  # a wrong setting is refused whether or not it is used
        if self.num_teacher_steps**self.rounds > self.first_steps:
            raise ValueError(
                f"sdtt.rounds is {self.rounds} and the first step 1/{self.first_steps}: the last teacher's steps would "
                f"go past the end of the text; give at least {self.num_teacher_steps**self.rounds} first_steps"
            )

    def objective(self, base: MaskedCrossEntropy, updates: int) -> SelfDistillation:
        return SelfDistillation(
            round_updates=max(1, -(-updates // max(1, self.rounds))),
            first_steps=self.first_steps,
            num_teacher_steps=self.num_teacher_steps,
            divergence=self.divergence,
            times=self.times,
            base=base,
        )


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
    init: str = ""
    """The model whose weights the run starts from: a bundled one, a folder or a hub id. Empty: fresh weights."""
    init_map: str = ""
    """Makes `init`, a plain stack, a fixed point first: pre/fixed-point/post layers, as in 1/6/12. Empty: as it is."""
    consistency: ConsistencyConfig = field(default_factory=ConsistencyConfig)
    sdtt: DistillationConfig = field(default_factory=DistillationConfig)
    embedding_start: str = "auto"
    """How fresh embeddings are drawn: uniform (MDLM's), normal (N(0, 1)), or auto: normal with a fixed point."""
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
    stop_above: float = 0.0
    """Stop at the first validation whose perplexity exceeds that of the start by this share (the paper: 0.15), and
    keep that checkpoint. 0: never."""
    snapshot_every: int = 0
    """Updates between model folders kept in snapshots/, the start among them, for `analyse RUN dynamics`. 0: none."""
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
        choose("embedding_start", self.embedding_start, dict.fromkeys(EMBEDDINGS))
        choose("injection_start", self.injection_start, {"random": None, "mean": None})
        check_trackers(self.trackers)
        for name in ("stop_above", "snapshot_every"):
            if not getattr(self, name) >= 0:  # nan neither
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 (never) or above")
        if self.init_map:
            LayerMap.parse(self.init_map)
            if not self.init:
                raise ValueError(f"init_map is {self.init_map}, but there is no init to map")
        if self.consistency.weight and self.sdtt.rounds:
            raise ValueError("consistency.weight and sdtt.rounds are both set; a run has one of them")
        if self.model.is_causal and (self.consistency.weight or self.sdtt.rounds):
            raise ValueError("consistency and SDTT are for masked models, and model.is_causal is set")
        if self.sdtt.rounds and not self.init:
            raise ValueError("SDTT distils a trained model into itself, and there is no init; give --init")
        rounds = self.sdtt.rounds
        if rounds and -(-self.updates // -(-self.updates // rounds)) != rounds:
            raise ValueError(f"{self.updates} updates cannot be cut into {rounds} rounds; give a multiple of {rounds}")
        if self.consistency.weight and self.consistency.teacher == INIT and not self.init:
            raise ValueError("consistency.teacher is init, and there is no init; give --init, or another teacher")
        self.objective()  # its settings are checked before any work is done

    @property
    def network(self) -> MDLMConfig:
        """The network with its vocabulary and length."""
        mask_id, size = mask_and_size(self.data.tokenizer)
        return MDLMConfig(**vars(self.model), vocab_size=size, mask_id=mask_id, length=self.data.length)

    def objective(self, pad_id: int | None = None) -> Objective:
        """What the run minimises; padding has no part in it."""
        if self.model.is_causal:
            return NextToken(pad_id=pad_id)
        base = MaskedCrossEntropy(weighting=self.weighting, counts=self.iterations, pad_id=pad_id)
        if self.sdtt.rounds:
            return self.sdtt.objective(base, self.updates)
        return self.consistency.objective(base, self.updates) if self.consistency.weight else base

"""`train mine`: sizes of a model of a user's own text, by the text, the minutes and the speed of the machine.

A text that the bundled tokenizer reads well is learned by the bundled model, which has read 25 million tokens of
stories. The model of poetry that was bundled before found 2.75 bits a byte in Shakespeare before any training, and a
fresh model 3.69 after 75 seconds (docs/log.md); that of stories was not measured so.
Other texts get a tokenizer and a small model of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from fpmgm.backbones.dit import MDLMConfig, Network
from fpmgm.checkpoint import read_config
from fpmgm.data.text import PAIRS, TextConfig
from fpmgm.gradients import IterationCounts
from fpmgm.injection import InjectionName
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.places import find_folder
from fpmgm.recipes.poetry import MINI, POETRY
from fpmgm.training.config import Training

BASE = "stories-fp"
"""The bundled model that a run may start from. Its network, length and tokenizer are read from its folder."""
RECIPE = "poetry"
"""The recipe that a run is a variant of."""
INJECTION: InjectionName = "diagonal"
"""Of a fresh model: the better one on stories, at equal updates and at equal time (docs/results/injections)."""
FEWEST_BYTES_A_TOKEN = 2.0
"""A text of fewer bytes a token is not what the bundled tokenizer was made for: another language or code."""
FEWEST_SEQUENCES = 4
HELD_OUT = 64
"""Sequences to hold out, but at least 1 % and at most 10 % of the text; of very little text, 2 sequences."""
BATCHES = (32, 16, 8, 4)
PROBED_BATCH = 8
FEWEST_UPDATES = 150
"""The batch is the largest that leaves time for so many updates, or else the smallest."""
MOST_EPOCHS = 30
"""More passes than these over a text are learning by heart."""
MOST_PAIR_EPOCHS = 1000
"""The same of pairs, which may well be learned by heart: 20 of them take some 300 updates."""
FITTING = 0.95
"""The share of documents or pairs that must fit whole into a fresh model, if that makes it half as long or less."""
LONGEST = 256
"""The longest sequences of a fresh model."""
CARD_SAMPLES = 4
CAREFUL = 0.85
"""The share of the time that updates are planned for, by the speed of the probe."""


@dataclass(frozen=True, kw_only=True)
class OwnPlan:
    """What `train mine` was asked for and what it will do, as plan.json keeps it."""

    source: str
    text_field: str
    minutes: float
    seed: int
    start: str
    """auto, bundled, fresh or a model, as asked."""
    packing: str = "auto"
    """auto, or a packing of `TextConfig`, as asked."""
    prompt_field: str = TextConfig.prompt_field
    answer_field: str = TextConfig.answer_field
    between: str = TextConfig.between

    read: str
    """The text that is read: the source, or an excerpt of it."""
    init: str
    """The model that the run starts from; empty: fresh weights."""
    tokenizer: str
    length: int
    width: int
    num_heads: int
    injection: InjectionName = "mlp"
    """Of a fresh model. Plans that were made before there was a choice do not say it."""
    packed: str = TextConfig.packing
    """The packing that was decided on."""
    validation_share: float = 0.01
    batch_size: int = PROBED_BATCH
    updates: int = 1000
    seconds_a_sequence: float = 0.0
    """What a sequence of an update takes on this machine."""
    threads: int = 1

    @property
    def seconds_an_update(self) -> float:
        return self.seconds_a_sequence * self.batch_size

    @property
    def most_epochs(self) -> int:
        return MOST_PAIR_EPOCHS if self.packed == PAIRS else MOST_EPOCHS

    def seconds_at_the_end(self, pace: float) -> float:
        """What comes after the updates at so many seconds a sequence: validation, a card with its plot, samples.

        A card of 4 samples, 64 sequences of validation and a sample cost what some 70 sequences of updates cost.
        """
        return 10 * max(1.0, pace / self.seconds_a_sequence) + 90 * pace


def sized_by_text(plan: OwnPlan, num_bytes: int) -> OwnPlan:
    """Tokenizer and network of a fresh model, by the amount of text and the minutes; a trained one is as it is."""
    if plan.init:
        model = trained_network(plan.init)
        file = str(find_folder(plan.init) / "tokenizer.json")
        return replace(plan, tokenizer=file, length=model.length, width=model.width, num_heads=model.num_heads)
    symbols = next((num for size, num in ((3e4, 320), (3e5, 512), (3e6, 1024)) if num_bytes < size), 2048)
    width = 64 if num_bytes < 3e4 else 128 if num_bytes < 3e6 or plan.minutes < 20 else 192
    length = 32 if num_bytes < 3e4 or plan.minutes < 5 else 64 if plan.minutes < 30 else 128
    return replace(
        plan, tokenizer=f"bpe-{symbols}", length=length, width=width, num_heads=width // 32, injection=INJECTION
    )


def trained_network(name: str) -> MDLMConfig:
    """The network of a model that a run can start from; a ValueError if it is not one that writes text from masks."""
    folder = find_folder(name)
    config = read_config(folder)
    if not isinstance(config, MDLMConfig) or config.is_causal or not (folder / "tokenizer.json").is_file():
        raise ValueError(f"start is {name}, which is no masked model of text with a tokenizer; give one, or fresh")
    return config


def sized_by_rows(plan: OwnPlan, sizes: Sequence[int]) -> OwnPlan:
    """The length of a fresh model whose sequences are documents or pairs of so many tokens.

    All fit whole, or nearly all if the few others would make it twice as long or more.
    """
    if plan.init or not sizes:
        return plan
    most, longest = sorted(sizes)[int(FITTING * (len(sizes) - 1))], max(sizes)
    length = most if 2 * most <= min(longest, LONGEST) else longest
    return replace(plan, length=min(LONGEST, max(16, -(-length // 8) * 8)))


def sized_by_sequences(plan: OwnPlan, num_sequences: int) -> OwnPlan:
    """The share that is held out, and the largest batch there can be for the probe."""
    if num_sequences < FEWEST_SEQUENCES and plan.packed != TextConfig.packing:
        what = PAIRS if plan.packed == PAIRS else "documents"
        raise ValueError(f"{plan.source} gives {num_sequences} {what}; give at least {FEWEST_SEQUENCES}")
    if num_sequences < FEWEST_SEQUENCES:
        least = FEWEST_SEQUENCES * (plan.length - 2)
        raise ValueError(
            f"{plan.source} fills {num_sequences} sequences of {plan.length} tokens; "
            f"give at least {FEWEST_SEQUENCES}, which is about {3 * least:,} letters of text"
        )
    share = max(min(0.1, max(0.01, HELD_OUT / num_sequences)), min(0.4, 2 / num_sequences))
    return replace(plan, validation_share=share, batch_size=min(PROBED_BATCH, num_sequences // 2))


def sized_by_time(plan: OwnPlan, seconds: float, num_training: int) -> OwnPlan:
    """Batch and updates that take `seconds` at most, by the speed that was measured."""
    for batch in [size for size in BATCHES if size <= num_training] or [num_training]:
        updates = int(CAREFUL * seconds / (plan.seconds_a_sequence * batch))
        if updates >= FEWEST_UPDATES:
            break
    updates = min(updates, plan.most_epochs * num_training // batch)
    return replace(plan, batch_size=batch, updates=max(10, updates))


def data_of(plan: OwnPlan) -> TextConfig:
    """The sequences that a plan stands for."""
    return TextConfig(
        source=plan.read,
        text_field=plan.text_field,
        tokenizer=plan.tokenizer,
        length=plan.length,
        packing=plan.packed,  # type: ignore[arg-type]  # TextConfig checks it
        prompt_field=plan.prompt_field,
        answer_field=plan.answer_field,
        between=plan.between,
        validation_share=plan.validation_share,
    )


def training_of(plan: OwnPlan, out: str) -> Training:
    """The run that a plan stands for."""
    network = replace(MINI, width=plan.width, num_heads=plan.num_heads)
    if plan.injection != MINI.injection:
        network = replace(network, injection=plan.injection, injection_start="random")  # as `stories-fp` has it
    if plan.init:
        trained = trained_network(plan.init)
        network = Network(**{field.name: getattr(trained, field.name) for field in fields(Network)})
    every = max(1, round(30 / plan.seconds_an_update)) if plan.seconds_a_sequence else 100
    lr = 5e-4 if plan.init else 2e-3
    return replace(
        POETRY,
        out=out,
        model=network,
        data=data_of(plan),
        optim=replace(POETRY.optim, lr=lr, warmup=max(5, plan.updates // 15), ema=0.98),
        objective=MaskedCrossEntropy(
            weighting="masked",  # steadier gradients for short runs; not compared by itself
            iterations=IterationCounts(no_grad_min=0, no_grad_max=2, grad_min=1, grad_max=3),  # half of the paper's
        ),
        init=plan.init,
        updates=plan.updates,
        batch_size=plan.batch_size,
        seed=plan.seed,
        checkpoint_every=every,
        validate_every=max(1, plan.updates // 3),
        validation_sequences=HELD_OUT,
        trackers=(),
    )

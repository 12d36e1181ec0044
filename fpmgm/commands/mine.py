"""The command `train mine`: a model of a user's own text within some minutes, planned, trained and tried."""

import json
import math
import os
import shlex
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from tokenizers import Tokenizer

from fpmgm.checkpoint import BUNDLED, load
from fpmgm.commands import open_console
from fpmgm.data import Dataset
from fpmgm.data.pairs import Fields, holds_pairs, read_pairs
from fpmgm.data.sources import PIECE_BYTES, num_bytes, pieces
from fpmgm.data.text import PAIRS, TextConfig, row_sizes
from fpmgm.evaluation.shown import held_out_prompts
from fpmgm.files import write_json, write_text
from fpmgm.generation import generate
from fpmgm.names import choose
from fpmgm.recipes.mine import (
    BASE,
    CARD_SAMPLES,
    FEWEST_BYTES_A_TOKEN,
    RECIPE,
    OwnPlan,
    data_of,
    sized_by_rows,
    sized_by_sequences,
    sized_by_text,
    sized_by_time,
    trained_network,
    training_of,
)
from fpmgm.recipes.poetry import POETRY
from fpmgm.schema import read_json
from fpmgm.training.config import Training
from fpmgm.training.loop import Run, accelerator_for, train
from fpmgm.training.metrics import read_metrics

PLAN = "plan.json"
EXCERPT, EXCERPT_ROWS = "excerpt.txt", "excerpt.jsonl"
BYTES_A_MINUTE = 4 << 20
"""More text than this cannot be read within the time: an excerpt is taken evenly from all of it."""
START_SECONDS = 8.0
"""What Python may take before the clock of a command starts, on a busy machine."""
PROBE_SHARE = 0.03
"""The share of the time that each probe of the speed may take."""
SAMPLE: dict[str, Any] = {"budget": 192, "top_p": 0.9, "seed": 0}
"""How the sample at the end is drawn: with care, because a model of some minutes has many improbable tokens."""
STARTS = ("auto", "bundled", "fresh")


@dataclass(frozen=True, kw_only=True)
class OwnText:
    """Your text."""

    source: str = ""
    """A .txt, .jsonl or .parquet file, a folder of them, or a corpus by name."""
    text_field: str = "text"
    """The field or column that holds the text of .jsonl and .parquet."""
    packing: Literal["auto", "wrap", "pad", "begin", "end", "pairs"] = "auto"
    """How the text becomes sequences. end: each document (each line of a .txt file) is a sequence, and the model learns
    where to stop. pairs: each sequence is a prompt with its answer. auto: pairs if the rows of a .jsonl have a prompt
    and an answer, and otherwise wrap, which joins documents and cuts them to length. `fpmgm train poetry --help`
    describes the others."""
    prompt_field: str = TextConfig.prompt_field
    """For pairs: the field of .jsonl that holds the prompt."""
    answer_field: str = TextConfig.answer_field
    """For pairs: the field of .jsonl that holds the answer."""
    between: str = TextConfig.between
    """For pairs: what stands between prompt and answer. The model writes it."""

    @property
    def packed(self) -> str:
        """What `auto` means for this source."""
        if self.packing != "auto":
            return self.packing
        fields = Fields(prompt=self.prompt_field, answer=self.answer_field, between=self.between)
        is_named = fields != Fields()  # so that a field that is not there is told
        return PAIRS if is_named or holds_pairs(self.source, fields) else TextConfig.packing


@dataclass(frozen=True, kw_only=True)
class MineCommand:
    """Learn your own text within some minutes. Sizes follow from the text and from the speed of this machine.

    The command says what it will do, trains, and prints a validation perplexity and a sample. The same command goes on
    with a run that was stopped. Every size can be chosen with another recipe: fpmgm train poetry --help.
    """

    data: OwnText = field(default_factory=OwnText)
    minutes: float = 10.0
    """The command ends within so many minutes. Give at least 1."""
    start: str = "auto"
    """What the run starts from. bundled: the bundled model, which has read English. fresh: random weights, with a
    tokenizer of your text. auto: bundled if its tokenizer reads your text well, and otherwise fresh. Or give a model by
    its name, its folder or its run."""
    out: str = "runs/mine"
    """The run folder. The model is in its folder `model`."""
    seed: int = 0
    """Every random number follows from this number."""

    def __post_init__(self) -> None:
        if not self.data.source or self.data.source.startswith("hub:"):
            raise ValueError(f"data.source is {self.data.source!r}; give your text: --data.source FILE (or a folder)")
        if not 1 <= self.minutes < math.inf:
            raise ValueError(f"minutes is {self.minutes}; give at least 1")
        if self.start not in STARTS and not Path(self.start).is_dir() and not (BUNDLED / self.start).is_dir():
            choose("start", self.start, dict.fromkeys(STARTS))


def run_mine(command: MineCommand, begin: float) -> None:
    """Plan or go on with the plan, train until the time is over, try the model. `begin` is when the command began."""
    begin -= START_SECONDS
    folder = Path(command.out)
    plan = read_plan(folder, command) or make_plan(folder, command, begin)
    torch.set_num_threads(plan.threads)
    config = training_of(plan, command.out)
    clock = Clock(plan, begin + 60 * plan.minutes)
    print_about(f"Training now; {PLAN} and all else is in {folder}. If it is stopped, the same command goes on.")
    model = train(config, RECIPE, POETRY, is_over=clock, card_samples=CARD_SAMPLES)
    try_model(folder, model, config)


class Clock:
    """Says after an update whether it must be the last, so that the rest ends in time at the present speed."""

    def __init__(self, plan: OwnPlan, end: float) -> None:
        self.plan, self.end = plan, end
        self.recent = deque([plan.seconds_a_sequence] * 4, maxlen=8)

    def __call__(self, seconds: float) -> bool:
        self.recent.append(seconds / self.plan.batch_size)
        pace = max(self.plan.seconds_a_sequence, median(self.recent))  # one slow update says nothing
        return time.monotonic() + self.plan.seconds_at_the_end(pace) >= self.end


def read_plan(folder: Path, command: MineCommand) -> OwnPlan | None:
    """The plan of a run that is there, or None; a ValueError if it is of another command."""
    file = folder / PLAN
    if not file.is_file():
        if (folder / "config.json").exists():
            raise ValueError(f"{folder} holds another run; give another --out")
        return None
    found = read_json(file)
    try:
        plan = OwnPlan(**found)
    except TypeError as error:
        raise ValueError(f"{file} is no plan of train mine: {error}; give another --out") from error
    asked = {**vars(command.data), "minutes": command.minutes, "seed": command.seed, "start": command.start}
    for name, value in asked.items():
        if value != getattr(plan, name):
            raise ValueError(
                f"{folder} was planned with {name} {getattr(plan, name)!r}, not {value!r}; "
                "give the same to go on, or another --out"
            )
    print_about(f"Going on with the plan of {file}: {plan.updates:,} updates of {plan.batch_size} sequences.")
    return plan


def make_plan(folder: Path, command: MineCommand, begin: float) -> OwnPlan:
    """Read the text, try some updates, and decide; what was decided is printed and kept in the folder."""
    source = command.data.source
    size = num_bytes(source)
    packed = command.data.packed
    read = _excerpt(folder, command, size) if size > command.minutes * BYTES_A_MINUTE else source
    bytes_a_token = _bytes_a_token(replace(command.data, source=read))
    plan = OwnPlan(
        **vars(command.data),
        minutes=command.minutes,
        seed=command.seed,
        start=command.start,
        read=read,
        init=_init(command.start, bytes_a_token),
        tokenizer="",
        length=0,
        width=0,
        num_heads=0,
        packed=packed,
    )
    plan = sized_by_text(plan, num_bytes(read))
    if packed in ("pad", "end", PAIRS):
        plan = sized_by_rows(plan, row_sizes(data_of(plan)))
    text = training_of(plan, "").data.load()
    plan = sized_by_sequences(plan, len(text.rows))
    text = training_of(plan, "").data.load()  # with what is held out now
    plan = probe(plan, text)
    left = begin + 60 * plan.minutes - plan.seconds_at_the_end(plan.seconds_a_sequence) - time.monotonic()
    plan = sized_by_time(plan, left, len(text.train))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, asdict(plan))
    print_about(*describe(plan, text, size, bytes_a_token))
    return plan


def _init(start: str, bytes_a_token: float) -> str:
    """The model that a run starts from; empty if from fresh weights."""
    if start not in STARTS:
        trained_network(start)
        return start
    is_bundled = start == "bundled" or (start == "auto" and bytes_a_token >= FEWEST_BYTES_A_TOKEN)
    return BASE if is_bundled else ""


def _excerpt(folder: Path, command: MineCommand, size: int) -> str:
    """A file with every k-th piece, document or pair, as much as can be read within the time."""
    every, data = math.ceil(size / (command.minutes * BYTES_A_MINUTE)), command.data
    folder.mkdir(parents=True, exist_ok=True)
    if data.packed == TextConfig.packing:
        parts = [text for text, _ in islice(_texts(data), 0, None, every)]
        write_text(folder / EXCERPT, "\n".join(parts))
        return str(folder / EXCERPT)
    rows = (json.dumps(row) + "\n" for _, row in islice(_texts(data), 0, None, every))
    write_text(folder / EXCERPT_ROWS, "".join(rows))
    return str(folder / EXCERPT_ROWS)


def _texts(data: OwnText) -> Iterator[tuple[str, dict[str, str]]]:
    """The pieces, documents or pairs of a source, as texts and as rows of .jsonl."""
    if data.packed == PAIRS:
        for prompt, answer, _ in read_pairs(data.source, Fields(data.prompt_field, data.answer_field, between="")):
            yield f"{prompt}{data.between}{answer}", {data.prompt_field: prompt, data.answer_field: answer}
        return
    for piece in pieces(data.source, data.text_field, by_line=data.packed != TextConfig.packing):
        yield piece.text, {data.text_field: piece.text}


def _bytes_a_token(data: OwnText) -> float:
    """How much of the text a token of the bundled tokenizer holds, by some places of it."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / BASE / "tokenizer.json"))
    found = _texts(data)
    if data.packed == TextConfig.packing:
        every = max(1, num_bytes(data.source) // PIECE_BYTES // 8)
        texts = [text[:20_000] for text, _ in islice(found, 0, 8 * every, every)]
    else:
        texts = [text for text, _ in islice(found, 2000)]
    num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts))
    return sum(len(text.encode()) for text in texts) / max(1, num_tokens)


def probe(plan: OwnPlan, text: Dataset) -> OwnPlan:
    """The plan with the seconds of a real update on this machine, at the faster number of threads."""
    config = training_of(plan, "")
    is_chosen = "OMP_NUM_THREADS" in os.environ
    numbers = {torch.get_num_threads()} if is_chosen else {1, torch.get_num_threads()}
    with TemporaryDirectory() as scratch:
        run = Run(config, Path(scratch), accelerator_for(config), text)
        run.update(0)  # the first one also allocates
        seconds = {num: _seconds_an_update(run, num, 60 * plan.minutes * PROBE_SHARE) for num in sorted(numbers)}
    threads = min(seconds, key=seconds.__getitem__)
    return replace(plan, threads=threads, seconds_a_sequence=seconds[threads] / plan.batch_size)


def _seconds_an_update(run: Run, threads: int, most: float) -> float:
    torch.set_num_threads(threads)
    begin = time.monotonic()
    for num in range(1, 11):
        run.update(num)
        seconds = time.monotonic() - begin
        if num >= 3 and seconds > most:
            break
    return seconds / num


def describe(plan: OwnPlan, text: Dataset, size: int, bytes_a_token: float) -> list[str]:
    """What the run will do, in words."""
    part = "" if plan.read == plan.source else f", of which {num_bytes(plan.read):,} bytes are read, taken evenly"
    symbols = text.vocabulary.size
    start = f"the {'bundled ' if plan.init == BASE else ''}model {plan.init}; its tokenizer of {symbols:,} symbols"
    if not plan.init:
        why = f"the bundled tokenizer would hold {bytes_a_token:.1f} bytes a token, so one"
        why = "a tokenizer" if plan.start == "fresh" else why
        start = f"fresh weights; {why} of {symbols:,} symbols was made of the text and"
    epochs = plan.updates * plan.batch_size / len(text.train)
    times = f"{epochs:,.0f}" if epochs >= 10 else f"{epochs:.2g}"
    end = " (more would be learning by heart)" if epochs > plan.most_epochs - 1 else ""
    seconds, rest = plan.updates * plan.seconds_an_update, plan.seconds_at_the_end(plan.seconds_a_sequence)
    threads = f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"
    return [
        f"Text: {plan.source}, {size:,} bytes{part}: {_rows(plan, len(text.rows))}.",
        f"Held out: {len(text.held_out):,} sequences that are never trained on, to measure with.",
        f"Start: {start} reads it. The model is {plan.width} wide.",
        f"Training: {plan.updates:,} updates of {plan.batch_size} sequences, {times} times the text{end}.",
        f"Time: {plan.seconds_an_update:.2f} s an update here with {threads}, so about {_clock(seconds)} of training, "
        f"then up to {_clock(rest)} to validate and sample. If the machine gets slower, there are fewer updates: it "
        f"ends within {plan.minutes:g} minute{'s' if plan.minutes > 1 else ''}.",
    ]


def _rows(plan: OwnPlan, number: int) -> str:
    """What the text becomes, in words."""
    if plan.packed == PAIRS:
        return (
            f"{number:,} pairs of at most {plan.length} tokens; prompts are given, answers and their ends are learned"
        )
    if plan.packed in (TextConfig.packing, "begin"):
        how = ", each of which begins with a document" if plan.packed == "begin" else ""
        return f"{number:,} sequences of {plan.length} tokens{how}"
    return f"{number:,} documents of at most {plan.length} tokens"


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} minutes"


def try_model(folder: Path, model: Path, config: Training) -> None:
    """Print what the model has reached, and a sample of it."""
    rows = read_metrics(folder)
    done = rows[-1]["update"]
    if done < config.updates:
        print_about(
            f"The machine was slower than the probe: stopped after {done:,} of {config.updates:,} updates, because the "
            "time was over. The model is whole; the same command goes on with the other updates."
        )
    made = load(model)
    prompts = [made.speech.show(prompt) for prompt in held_out_prompts(config.data.load(), 1)]
    asked: dict[str, Any] = {"prompts": prompts} if prompts else {}
    options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SAMPLE.items())
    options = " ".join([*(f"--prompt {shlex.quote(prompt)}" for prompt in prompts), options])
    what = "An answer to a held-out prompt" if prompts else "A sample"
    last = [row for row in rows if "validation" in row][-1]
    print_about(
        f"Validation perplexity {last['validation']:.1f} ± {last['validation_error']:.1f} a token after "
        f"{last['update']:,} updates. {what}:",
        "",
        generate(made, **asked, **SAMPLE).texts[0].strip(),
        "",
        f"The model is {model}. This sample, and others with another seed: fpmgm sample {folder} {options}",
    )


def print_about(*lines: str) -> None:
    """Lines for the reader, at once."""
    console = open_console()
    for line in lines:
        console.print(line, markup=False)

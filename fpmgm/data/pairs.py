"""Pairs of a prompt and an answer: rows in which the prompt is given and the answer, with its end, is learned.

A row is the first symbol, the prompt, then what stands between the two and the answer, then end-of-text tokens up to
the length. The prompt is cut into tokens by itself, exactly as `sample --prompt` does it.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from fpmgm.codecs.text import before
from fpmgm.data.packing import Packed, RowFile
from fpmgm.data.sources import files_of, json_rows
from fpmgm.schema import field_value, shortened
from fpmgm.symbols import continuing, encode_texts

PAIRS_AT_ONCE = 1024


class Fields(NamedTuple):
    """How the fields of a pair are called, and what stands between them."""

    prompt: str = "prompt"
    answer: str = "answer"
    between: str = "\n"


class Pair(NamedTuple):
    """A prompt and its answer, which begins with what stands between the two; and where they were read."""

    prompt: str
    answer: str
    where: str

    @property
    def text(self) -> str:
        return self.prompt + self.answer


def read_pairs(source: str, fields: Fields) -> Iterator[Pair]:
    """The pairs of a .jsonl file or of a folder of them, in order; a ValueError that names the line if one is none."""
    for file in files_of(source):
        if file.suffix != ".jsonl":
            raise ValueError(f"pairs are read from .jsonl files, and {file} is none")
        for row, where in json_rows(file):
            yield _pair(row, fields, where)


def _pair(row: dict[str, Any], fields: Fields, where: str) -> Pair:
    for name in (fields.prompt, fields.answer):
        if name not in row:
            raise ValueError(
                f"{where} has no field {name!r}; it has {', '.join(map(shortened, row)) or 'none'}: name the two with "
                "--data.prompt-field and --data.answer-field"
            )
    prompt, answer = (field_value(row[name], str, f"{where}: {name}") for name in (fields.prompt, fields.answer))
    if not answer.strip():
        raise ValueError(f"{where} has an empty {fields.answer!r}; every pair needs an answer")
    return Pair(before(prompt), fields.between + answer, where)


def holds_pairs(source: str, fields: Fields) -> bool:
    """Whether a source is .jsonl and its first row has both fields."""
    if source.startswith("hub:"):
        return False
    files = files_of(source)
    if any(file.suffix != ".jsonl" for file in files):
        return False
    row = next((row for file in files for row, _ in json_rows(file)), {})
    return fields.prompt in row and fields.answer in row


def pair_tokens(pairs: Iterator[Pair], tokenizer: Tokenizer) -> Iterator[tuple[Pair, list[int], list[int]]]:
    """Each pair with the tokens of its prompt and of its answer, both without ends."""
    going_on = continuing(tokenizer.to_str())
    while batch := list(islice(pairs, PAIRS_AT_ONCE)):
        prompts = encode_texts(tokenizer, [pair.prompt for pair in batch])
        answers = encode_texts(going_on, [pair.answer for pair in batch])
        yield from zip(batch, prompts, answers, strict=True)


def pack_pairs(out: RowFile, pairs: Iterator[Pair], tokenizer: Tokenizer, num_last: int) -> Packed:
    """Write a row for each pair that fits whole, with its end; says how many do not and are left out."""
    given: list[int] = []
    sizes: list[int] = []  # of pairs that do not fit
    where = ""
    for pair, prompt, answer in pair_tokens(pairs, tokenizer):
        row = [out.symbols.first, *prompt, *answer, out.symbols.last]
        if len(row) > out.length:
            where = where or pair.where
            sizes.append(len(row))
            continue
        given.append(1 + len(prompt))
        out.add(row, out.symbols.last)
    num = len(given) + len(sizes)
    if not num:
        raise ValueError(f"{out.source} holds no pairs")
    if not given:
        raise ValueError(
            f"none of the {num:,} pairs of {out.source} fits into {out.length} tokens; the longest needs {max(sizes)}: "
            f"give --data.length {max(sizes)}, or shorter pairs"
        )
    note = ""
    if sizes:
        note = (
            f"{len(sizes):,} of {num:,} pairs have more than {out.length} tokens and are left out, the first in "
            f"{where}; --data.length {max(sizes)} would keep all"
        )
    per_row = {"given": np.asarray(given, np.int64)}
    return Packed(held_out_from=max(0, len(given) - num_last), note=note, per_row=per_row)

"""A tokenizer, checked where it is read, and its special symbols: the mask, padding, the ends of a text."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fpmgm.schema import read_text

END_OF_TEXT = "<|endoftext|>"
LONG_WORD = 1000
"""Letters, digits, signs or spaces in a row. BPE takes a run for one word, and needs its length squared."""
_RUN = "[^\\W\\d_]{{{0}}}|\\d{{{0}}}|[^\\w\\s]{{{0}}}|_{{{0}}}|\\s{{{0}}}"
_LONG, _HALF = re.compile(_RUN.format(f"{LONG_WORD},")), re.compile(_RUN.format(LONG_WORD // 2))
_PROBE = "".join(map(chr, range(32, 256))) + "\n the Sea\t—“é”中文 \U0001f4a5"


class Symbols(NamedTuple):
    size: int  # of the vocabulary, with the mask
    mask_id: int
    first: int
    last: int
    pad_id: int


def symbols_of(tokenizer: Any) -> Symbols:
    """GPT-2's tokenizer and ours begin and end with end-of-text and have no mask, so it becomes one symbol more.

    BERT's has all four. A tokenizer without [PAD] pads with the mask, as MDLM does.
    """
    size = tokenizer.get_vocab_size()
    end, mask, pad = (tokenizer.token_to_id(name) for name in (END_OF_TEXT, "[MASK]", "[PAD]"))
    first = tokenizer.token_to_id("[CLS]") if end is None else end
    last = tokenizer.token_to_id("[SEP]") if end is None else end
    if first is None or last is None:
        raise ValueError(f"the tokenizer has neither {END_OF_TEXT} nor [CLS] and [SEP] to begin and end a text with")
    if mask is None:
        mask, size = size, size + 1
    return Symbols(size, mask, first, last, mask if pad is None else pad)


def read_tokenizer(file: Path) -> Any:
    """The tokenizer of a tokenizer.json; a ValueError if it is broken."""
    return load_tokenizer(read_text(file), str(file))


@lru_cache(maxsize=8)
def load_tokenizer(content: str, where: str = "the tokenizer") -> Any:
    """The tokenizer that this content of a tokenizer.json describes; a ValueError if it cannot read and write text.

    A tokenizer here neither pads nor cuts what it reads, whatever its file says.
    """
    from tokenizers import Tokenizer

    try:
        with _quiet():  # the Rust library prints what it panics about
            tokenizer = Tokenizer.from_str(content)
            tokenizer.no_padding()
            tokenizer.no_truncation()
            symbols_of(tokenizer)
            ids = tokenizer.encode(_PROBE, add_special_tokens=False).ids
            tokenizer.decode(ids)
            highest = max((*ids, *tokenizer.get_vocab().values()))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # plain Exception for most errors, and for a panic nothing narrower
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{where} cannot be read: {reason}") from error
    if highest >= tokenizer.get_vocab_size():
        raise ValueError(
            f"{where} has {tokenizer.get_vocab_size()} tokens, one of them with id {highest}; ids must have no gaps"
        )
    return tokenizer


@lru_cache(maxsize=8)
def continuing(content: str) -> Any:
    """The tokenizer of this content for text that follows other text.

    Tokenizers like Llama's put a space before whatever they read and take it away from whatever they write, which is
    right only where a text begins. This one does neither; other tokenizers are the same.
    """
    settings = json.loads(content)
    changed = {part: _as_it_is(settings.get(part)) for part in ("normalizer", "pre_tokenizer", "decoder")}
    if (settings.get("decoder") or {}).get("type") == "ByteLevel":  # its setting does nothing
        changed["decoder"] = settings["decoder"]
    if all(changed[part] == settings.get(part) for part in changed):
        return load_tokenizer(content)
    return load_tokenizer(json.dumps({**settings, **changed}))


def _as_it_is(part: dict[str, Any] | None) -> dict[str, Any] | None:
    """A part of a tokenizer that puts no space before a text and takes none away; None if nothing is left of it."""
    if part is None or part["type"] == "Prepend" or (part["type"] == "Strip" and part.get("start")):
        return None
    if part["type"] == "Sequence":
        inside = {name: value for name, value in part.items() if isinstance(value, list)}
        return {**part, **{name: [each for each in map(_as_it_is, value) if each] for name, value in inside.items()}}
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    if part["type"] == "ByteLevel":
        return {**part, "add_prefix_space": False}
    return part


def check_size(symbols: Symbols, size: int, mask_id: int, where: str) -> None:
    """A ValueError unless a tokenizer has the symbols of a network, of which this one is the mask."""
    if symbols.size > size or symbols.mask_id != mask_id:
        raise ValueError(
            f"{where} has {symbols.size} symbols, of which {symbols.mask_id} is the mask, "
            f"and the network has {size}, of which {mask_id} is the mask"
        )


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of each text; words of more than LONG_WORD letters are cut."""
    cut = [cut_words(text) for text in texts]
    firsts = tokenizer.encode_batch_fast([own[0] for own in cut], add_special_tokens=False)
    return [[*first.ids, *_encode_on(tokenizer, own[1:])] for first, own in zip(firsts, cut, strict=True)]


def _encode_on(tokenizer: Any, parts: Sequence[str]) -> list[int]:
    """The token ids of parts that follow others."""
    if not parts:
        return []
    found = continuing(tokenizer.to_str()).encode_batch_fast(parts, add_special_tokens=False)
    return [token for encoding in found for token in encoding.ids]


def cut_words(text: str) -> list[str]:
    """The text in parts, so that no word is longer than LONG_WORD; nearly always the text as it is.

    >>> [len(part) for part in cut_words("a " + 2500 * "b" + " c")]
    [1002, 1000, 502]
    """
    windows = range(0, len(text), LONG_WORD // 2)
    if not any(_HALF.match(text, place) for place in windows):  # a long word fills at least one
        return [text]
    cuts = [
        place for found in _LONG.finditer(text) for place in range(found.start() + LONG_WORD, found.end(), LONG_WORD)
    ]
    return [text[first:last] for first, last in pairwise((0, *cuts, len(text)))]


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing that is written to standard error in here is seen, even if it is not Python that writes it."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)

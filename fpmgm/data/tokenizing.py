"""Which tokenizer a setting asks for: one that is fetched, that of a file or model, or one trained on the text."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fpmgm.data.assets import cache_folder, fetch, making
from fpmgm.data.words import train_words
from fpmgm.files import remove_leftovers, whole_file
from fpmgm.places import BUNDLED
from fpmgm.symbols import END_OF_TEXT, cut_words, read_tokenizer, symbols_of

ANY_KEY = "[0-9a-f]{32}"
"""What the names of caches that are keyed by content look like."""
MAX_TRAINED = 1 << 20

KNOWN = {"gpt2": (50257, 50258), "bert": (103, 30522)}
"""Mask and size of tokenizers that are assets, so that a recipe's parameters can be counted without them."""


def mask_and_size(tokenizer: str) -> tuple[int, int]:
    """The mask's id and the number of symbols, the mask included, that a tokenizer setting asks for."""
    if tokenizer in KNOWN:
        return KNOWN[tokenizer]
    if size := trained_size(tokenizer):
        return size - 1, size
    symbols = symbols_of(read_tokenizer(_tokenizer_file(tokenizer)))
    return symbols.mask_id, symbols.size


def trained_size(tokenizer: str) -> int:
    """The number of symbols that bpe-N or words-N asks for; 0 for any other tokenizer."""
    found = re.fullmatch(r"(bpe|words)-(\d{1,40})", tokenizer, re.ASCII)
    size = int(found[2]) if found else 0
    if found and not 258 <= size <= MAX_TRAINED:
        kind = {"bpe": "byte-level BPE", "words": "a vocabulary of words and bytes"}[found[1]]
        raise ValueError(f"tokenizer is {tokenizer}; {kind} has 258 to {MAX_TRAINED} symbols, as in {found[1]}-2048")
    return size


def named_tokenizer(tokenizer: str) -> Tokenizer:
    """GPT-2's, BERT's, or that of a tokenizer.json."""
    return read_tokenizer(fetch(tokenizer) if tokenizer in KNOWN else _tokenizer_file(tokenizer))


def trained_tokenizer(key: str, name: str, texts: Callable[[], Iterator[str]]) -> Tokenizer:
    """The bpe-N or words-N of these texts, from the cache or trained now."""
    file = cache_folder() / "tokenizers" / f"{key}.json"
    with making(file) as is_missing:
        if is_missing:
            remove_leftovers(file.parent, rf"{ANY_KEY}\.json")
            train = train_words if name.startswith("words") else train_bpe
            tokenizer = train(texts(), trained_size(name) - 1)
            with whole_file(file) as scratch:
                tokenizer.save(str(scratch))
    return read_tokenizer(file)


def train_bpe(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE with the end-of-text token as id 0; the mask is not a symbol of the tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((part for text in texts for part in cut_words(text)), trainer)
    return tokenizer


def _tokenizer_file(tokenizer: str) -> Path:
    """A tokenizer.json: of that path, in that folder, or of the model of that run or of that bundled name."""
    path = BUNDLED / tokenizer if is_bundled(tokenizer) else Path(tokenizer)
    files = (path, path / "tokenizer.json", path / "model" / "tokenizer.json")
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise ValueError(
            f"tokenizer is {tokenizer!r}; give gpt2, bert, bpe-N, words-N, a tokenizer.json or a model that exists"
        )
    return found


def is_bundled(name: str) -> bool:
    return Path(name).name == name and (BUNDLED / name / "tokenizer.json").is_file()

"""A vocabulary of whole words: text of few different words then has hardly a word that is put together of pieces.

A model that draws many positions at once draws the pieces of a word apart from each other, and pieces that do not fit
are a broken word. So the most frequent words are symbols of their own. A word here is what byte-level BPE would cut
further: letters, digits or signs with the space before them. All bytes are symbols too, so any text can be written, and
a twentieth of the vocabulary are pieces, learned by BPE on the words that found no place.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import repeat

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fpmgm.symbols import END_OF_TEXT, cut_words

PIECES_SHARE = 0.05
LONGEST = 100_000
"""Bytes of a word. Longer runs are cut before they are read; see `cut_words`."""


def train_words(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of whole words with the end-of-text token as id 0; the mask is not a symbol of it.

    A word that is no symbol is cut from the left into the longest symbols that fit. A text with few words has fewer
    than `vocab_size` symbols.
    """
    counts = _word_counts(texts)
    words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if len(word) > 1]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = vocab_size - 1 - len(alphabet)
    num_words = room - int(room * PIECES_SHARE)
    pieces = _pieces({word: counts[word] for word in words[num_words:]}, room - num_words)
    symbols = [*dict.fromkeys([END_OF_TEXT, *alphabet, *pieces, *words])][:vocab_size]
    tokenizer = Tokenizer(
        models.WordPiece(
            {symbol: index for index, symbol in enumerate(symbols)},
            unk_token=END_OF_TEXT,  # never met: every byte is a symbol
            max_input_chars_per_word=LONGEST,
            continuing_subword_prefix="",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def _word_counts(texts: Iterator[str]) -> Counter[str]:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts: Counter[str] = Counter()
    for text in texts:
        for part in cut_words(text):
            counts.update(word for word, _ in cut.pre_tokenize_str(part))
    return counts


def _pieces(rare: dict[str, int], num_pieces: int) -> list[str]:
    """The first merges of a BPE on these words."""
    if not (rare and num_pieces):
        return []
    bpe = Tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = len(alphabet) + num_pieces
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator((word for word, count in rare.items() for word in repeat(word, count)), trainer)
    return sorted(symbol for symbol in bpe.get_vocab() if len(symbol) > 1)

"""The special symbols of a tokenizer: what a sequence begins and ends with, what hides a token, what fills a row up."""

from typing import Any, NamedTuple

END_OF_TEXT = "<|endoftext|>"


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

"""A text in the middle of denoising as HTML: every token in the look of what the last step did to it."""

from collections.abc import Sequence
from html import escape

from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.demo.frames import Frame, Written
from fpmgm.replay import LOOKS, ChangeName, change_of

BROKEN = "\ufffd"
"""What a decoder writes for a part of a character."""
LONGEST = 4
"""Tokens that one character is made of, at most."""
END = "∎"
"""How the end of a text is shown."""


def legend() -> str:
    """The four looks and their names."""
    items = "".join(
        f'<li><span class="fp-token fp-{name}">{"·" if name in ("masked", "remasked") else "word"}</span> '
        f"{escape(look.words)}</li>"
        for name, look in LOOKS.items()
    )
    return f'<div class="fp-stage"><ul class="fp-legend" aria-label="What the colours mean">{items}</ul></div>'


def text_of(model: Model, frame: Frame) -> str:
    """The first sequence of a frame."""
    codec = model.speech
    assert isinstance(codec, TextCodec)
    mask = model.denoiser.mask_id
    before, tokens, written = frame.before[0], frame.tokens[0], frame.written[0]
    changes = [change_of(old, new, mask) for old, new in zip(before, tokens, strict=True)]
    spans = map(_span, pieces(codec, tokens), changes, written)
    return f'<p class="fp-text" lang="en">{"".join(spans)}</p>'


def _span(piece: str, change: ChangeName, written: Written | None) -> str:
    if not piece:
        return ""
    tip = LOOKS[change].words
    if written is not None:
        tip = f"{tip}; written in step {written.step} with probability {percent(written.probability)}"
    elif change == "unchanged":
        tip = "given"
    return f'<span class="fp-token fp-{change}" title="{escape(tip)}">{escape(piece)}</span>'


def percent(share: float) -> str:
    """A probability for people.

    >>> [percent(each) for each in (0.5, 0.00123, 0.00000123)]
    ['50 %', '0.12 %', '0.00012 %']
    """
    return f"{float(f'{100 * share:.2g}'):.8f}".rstrip("0").rstrip(".") + " %"


def pieces(codec: TextCodec, tokens: Sequence[int]) -> list[str]:
    """What to show for each token. A character of several tokens stands at the first of them."""
    ends = {codec.symbols.first, codec.symbols.last} - {codec.symbols.mask_id}
    found: list[str] = []
    while len(found) < len(tokens):
        place = len(found)
        if tokens[place] in ends:
            found.append("" if place == 0 else END)
            continue
        piece, length = _piece(codec, tokens[place : place + LONGEST], goes_on=any(found))
        found += [piece] + [""] * (length - 1)
    return found


def _piece(codec: TextCodec, tokens: Sequence[int], *, goes_on: bool) -> tuple[str, int]:
    """The text of the first token, or of the fewest tokens that make whole characters; and their number."""
    for length in range(1, len(tokens) + 1):
        shown = codec.show(tokens[:length], goes_on=goes_on)
        if BROKEN not in shown or codec.symbols.mask_id in tokens[:length]:
            break
    return (shown, length) if BROKEN not in shown else (codec.show(tokens[:1], goes_on=goes_on), 1)

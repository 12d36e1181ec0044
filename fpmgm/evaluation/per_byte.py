"""What held-out text costs in bits a byte: a unit that models of different tokens, n-grams and a source share."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fpmgm.codecs import TextCodec
from fpmgm.evaluation.intervals import Interval

HEADING = "## In bits a byte, beside the source"
"""Of the part of a model card."""
SOURCE_NATS = Interval(value=0.2916, low=0.2877, high=0.2954)
"""Nats a byte that the source of `stories` finds in its 2,000 held-out stories (docs/log.md, 2026-11-17)."""


def bits_a_byte(nats_per_token: float, *, num_tokens: int, num_bytes: int) -> float:
    """The same per byte of the text that the tokens spell.

    >>> bits_a_byte(math.log(16), num_tokens=3, num_bytes=6)
    2.0
    """
    return nats_per_token / math.log(2) * num_tokens / num_bytes


def bytes_of(rows: Sequence[Sequence[int]], codec: TextCodec) -> int:
    """The bytes of the texts of rows, each document alone; an end has none."""
    total = 0
    for row in rows:
        document: list[int] = []
        for token in [*row, codec.last]:
            if token == codec.last:
                total += len(codec.show(document).encode()) if document else 0
                document = []
            else:
                document.append(token)
    return total


def per_byte(
    validation: Mapping[str, Any], floors: Mapping[str, float], num_tokens: int, num_bytes: int
) -> dict[str, Any]:
    """What a report keeps: bits a byte of a model, of the 5-gram model of the same tokens, and of the source."""
    share = bits_a_byte(1.0, num_tokens=num_tokens, num_bytes=num_bytes)
    return {
        "bits": validation["nats_per_token"] * share,
        "error": validation["error"] / validation["value"] * share,
        "kneser_ney": math.log(floors["kneser_ney"]) * share,
        "source": SOURCE_NATS.value / math.log(2),
        "num_tokens": num_tokens,
        "num_bytes": num_bytes,
    }


def card_part(kept: Mapping[str, Any], *, is_bound: bool) -> str:
    """The same as a part of a card."""
    kind = "a bound" if is_bound else "exact"
    return f"""{HEADING}

| who | bits a byte |
| --- | --- |
| this model ({kind}) | {kept["bits"]:.3f} ± {kept["error"]:.3f} |
| 5-gram of all training tokens, interpolated Kneser-Ney | {kept["kneser_ney"]:.3f} |
| the source that wrote the stories: its own entropy rate | {kept["source"]:.3f} |

Perplexities of different tokens do not compare, bits a byte do. The held-out text has {kept["num_bytes"]:,} bytes in
{kept["num_tokens"]:,} tokens, ends of stories among them. No model can be below the source, except by chance.
"""


def with_part(card: str, part: str) -> str:
    """A card with this part before its samples; the part of before is replaced."""
    parts = [each for each in re.split(r"(?m)^(?=## )", card) if not each.startswith(HEADING)]
    place = next((place for place, each in enumerate(parts) if each.startswith("## 20 samples")), len(parts))
    return "".join([*parts[:place], f"{part}\n", *parts[place:]])

"""Text: prompts and texts with blanks become tokens, and tokens text, by a tokenizer."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs.codec import Codec, Starts
from fpmgm.schema import read_text
from fpmgm.symbols import END_OF_TEXT, Symbols, check_size, continuing, encode_texts, load_tokenizer, symbols_of

FILE = "tokenizer.json"


def before(text: str) -> str:
    """A text that something follows, without the space at its end: that belongs to what follows."""
    return text.removesuffix(" ")


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What is asked of a text model: texts from nothing, continuations, or texts with blanks filled in."""

    prompts: tuple[str, ...] = ()
    infill: tuple[str, ...] = ()
    """Texts with blanks of underscores, one for each token."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "TextRequest":
        """The request of these settings; one string is one prompt."""
        return cls(**{name: (given,) if isinstance(given, str) else tuple(given) for name, given in settings.items()})

    def __post_init__(self) -> None:
        if self.prompts and self.infill:
            raise ValueError("prompts and infill are both given; give one of them")


@dataclass(frozen=True)
class TextCodec:
    """A tokenizer, with what a sequence begins and ends with."""

    content: str
    """Of tokenizer.json."""

    kind: ClassVar[str] = "text"
    request_names: ClassVar[tuple[str, ...]] = ("prompts", "infill")

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (folder / FILE).is_file()

    @classmethod
    def load(cls, folder: Path) -> "TextCodec":
        """The codec of a model folder; a ValueError that names the file if it is broken."""
        content = read_text(folder / FILE)
        load_tokenizer(content, str(folder / FILE))
        return cls(content)

    @property
    def files(self) -> Mapping[str, str | bytes]:
        return {FILE: self.content}

    @property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.content)

    @cached_property
    def symbols(self) -> Symbols:
        return symbols_of(self.tokenizer)

    @property
    def first(self) -> int:
        return self.symbols.first

    @property
    def last(self) -> int:
        return self.symbols.last

    def check(self, vocabulary: Vocabulary, where: str) -> None:
        check_size(self.symbols, vocabulary.size, vocabulary.mask_id, where)

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        """The token ids of a text, which may go on from another."""
        [ids] = encode_texts(continuing(self.content) if goes_on else self.tokenizer, [text])
        return ids

    def show(self, tokens: Sequence[int], *, goes_on: bool = False) -> str:
        """The text of tokens, which may go on from others, without end-of-text; masks as dots."""
        parts: list[str] = []
        run: list[int] = []
        reader = continuing(self.content) if goes_on else self.tokenizer
        for token in tokens:
            if token == self.symbols.mask_id:
                parts += [reader.decode(run), "·"]
                run, reader = [], continuing(self.content)
            else:
                run.append(token)
        return "".join([*parts, reader.decode(run)])

    def documents(self, tokens: Sequence[int], *, has_ends: bool = False) -> str:
        """The text of tokens, for a judge: documents with <|endoftext|> between them, and none at either end.

        With `has_ends`, those at both ends are kept, as the tokens have them.
        """
        parts: list[list[int]] = [[]]
        for token in tokens:
            if token in (self.symbols.first, self.symbols.last):
                parts.append([])
            else:
                parts[-1].append(token)
        while not has_ends and len(parts) > 1 and not parts[0]:
            parts.pop(0)
        while not has_ends and len(parts) > 1 and not parts[-1]:
            parts.pop()
        return END_OF_TEXT.join(self.show(part) for part in parts)

    @property
    def grid(self) -> None:
        """A text is a line of tokens."""
        return None

    def starts(self, request: Mapping[str, Any], vocabulary: Vocabulary, num_samples: int) -> Starts:
        """What is given of each sequence, masks elsewhere: `num_samples` for each prompt or text with blanks."""
        rows = self._rows(TextRequest.of(request), vocabulary.length)
        return Starts(tokens=[row for row in rows for _ in range(num_samples)])

    def _rows(self, asked: TextRequest, length: int) -> list[list[int]]:
        if asked.infill:
            return [self._with_blanks(text, length) for text in asked.infill]
        rows = [self._with_prompt(prompt, length) for prompt in asked.prompts] or [[]]
        return [[*row, *[self.symbols.mask_id] * (length - len(row))] for row in rows]

    def _before(self, text: str, *, goes_on: bool = False) -> list[int]:
        """The tokens of a text that something follows: the space between the two belongs to what follows."""
        return self.encode(before(text), goes_on=goes_on)

    def _with_prompt(self, prompt: str, length: int) -> list[int]:
        tokens = [self.symbols.first, *self._before(prompt)]
        if len(tokens) >= length:
            raise ValueError(
                f"the prompt {prompt[:40]!r} has {len(tokens) - 1} tokens; the model writes {length}, "
                f"so a prompt may have {length - 2} at most"
            )
        return tokens

    def _with_blanks(self, text: str, length: int) -> list[int]:
        mask = self.symbols.mask_id
        tokens = [self.symbols.first]
        for part in re.split(r"(_+)", text):
            goes_on = len(tokens) > 1
            tokens += [mask] * len(part) if part.startswith("_") else self._before(part, goes_on=goes_on)
        tokens.append(self.symbols.last)
        if mask not in tokens:
            raise ValueError(
                f"{text[:40]!r} has no blank to fill in; write one as underscores, one for each token: ___"
            )
        if len(tokens) > length:
            raise ValueError(f"{text[:40]!r} has {len(tokens) - 2} tokens; the model takes {length - 2}")
        return tokens

    @property
    def pipeline(self) -> str:
        return "text-generation"

    def in_card(self, shown: Sequence[str]) -> tuple[str, dict[str, bytes]]:
        fence = "`" * 4
        return "\n".join(f"{fence}text\n{each.strip()}\n{fence}" for each in shown), {}

    def is_alike(self, other: Codec) -> bool:
        """Whether two tokenizers cut any text into the same symbols, by all that they are made of."""
        if not isinstance(other, TextCodec):
            return False
        ours, theirs = (json.loads(each.tokenizer.to_str()) for each in (self, other))
        return all(ours[part] == theirs[part] for part in ("normalizer", "pre_tokenizer", "model", "added_tokens"))

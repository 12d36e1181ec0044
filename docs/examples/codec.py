"""A codec of your own: sequences of the letters A, C, G and T."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fpmgm
from fpmgm import codecs
from fpmgm.backbones.network import Vocabulary
from fpmgm.codecs import Codec, Starts

FILE = "letters.json"


@dataclass(frozen=True)
class LetterCodec:
    """One token for each letter. The last token is the mask, which is shown as a dot."""

    letters: str

    kind: ClassVar[str] = "text"
    request_names: ClassVar[tuple[str, ...]] = ("prompts",)
    grid = first = last = None
    pipeline = "fill-mask"

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        return (folder / FILE).is_file()

    @classmethod
    def load(cls, folder: Path) -> "LetterCodec":
        return cls(json.loads((folder / FILE).read_text()))

    @property
    def files(self) -> Mapping[str, str | bytes]:
        return {FILE: json.dumps(self.letters)}

    def check(self, vocabulary: Vocabulary, where: str) -> None:
        if vocabulary.size != len(self.letters) + 1:
            raise ValueError(f"{where} has {len(self.letters)} letters, and the network has {vocabulary.size} symbols")

    def starts(self, request: Mapping[str, Any], vocabulary: Vocabulary, num_samples: int) -> Starts:
        rows = []
        for prompt in request.get("prompts", [""]):
            tokens = [self.letters.index(letter) for letter in prompt]
            rows += [[*tokens, *[vocabulary.mask_id] * (vocabulary.length - len(tokens))]] * num_samples
        return Starts(tokens=rows)

    def show(self, tokens: Sequence[int]) -> str:
        return "".join((self.letters + "·")[token] for token in tokens)

    def in_card(self, shown: Sequence[Any]) -> tuple[str, dict[str, bytes]]:
        return "\n".join(f"    {text}" for text in shown), {}

    def is_alike(self, other: Codec) -> bool:
        return self == other


codecs.CODECS = (*codecs.CODECS, LetterCodec)  # now `load` knows it by its file

shape = fpmgm.MDLMConfig(vocab_size=5, mask_id=4, length=12, width=32, num_heads=2, num_pre=1, num_fp=1, num_post=1)
model = fpmgm.Model(denoiser=fpmgm.mdlm(shape), config=shape, codec=LetterCodec("ACGT"))
with tempfile.TemporaryDirectory() as place:
    model.save(Path(place) / "model")
    loaded = fpmgm.load(Path(place) / "model")
assert loaded.codec == model.codec

out = fpmgm.generate(loaded, prompts=["GAT", ""], num_samples=2, budget=24)
assert len(out.texts) == 4
assert out.texts[0].startswith("GAT")
assert set("".join(out.texts)) <= set("ACGT")

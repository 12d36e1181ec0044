"""Layer map: which layers of a plain stack become the pre, fixed-point and post blocks of a fixed-point model."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerMap:
    """Layers of the source by their place in it, counted from 1 as the paper counts; one may be used twice.

    >>> LayerMap.parse("1/6/12")
    LayerMap(pre=(1,), fp=(6,), post=(12,))
    >>> str(LayerMap(pre=(1, 2), fp=(6, 7), post=(11, 12)))
    '1,2/6,7/11,12'
    """

    pre: tuple[int, ...]
    fp: tuple[int, ...]
    post: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.fp:
            raise ValueError(f"the layer map {self} has no fixed-point layer; write it as in 1/6/12")
        if min(self.layers) < 1:
            raise ValueError(f"the layer map {self} names layer {min(self.layers)}; layers count from 1")

    @property
    def layers(self) -> tuple[int, ...]:
        """The source's layers in the order in which the fixed-point model has them."""
        return (*self.pre, *self.fp, *self.post)

    def __str__(self) -> str:
        return "/".join(",".join(map(str, part)) for part in (self.pre, self.fp, self.post))

    @classmethod
    def parse(cls, text: str) -> "LayerMap":
        """The map of pre/fixed-point/post layers, commas between several; pre and post may be empty."""
        if not re.fullmatch(r"(\d+(,\d+)*)?/\d+(,\d+)*/(\d+(,\d+)*)?", text, flags=re.ASCII):
            raise ValueError(
                f"the layer map is {text!r}; write pre/fixed-point/post layers as in 1/6/12 or 1,2/6,7/11,12"
            )
        pre, fp, post = (tuple(int(layer) for layer in part.split(",") if layer) for part in text.split("/"))
        return cls(pre, fp, post)

    @classmethod
    def of_depth(cls, num_layers: int) -> "LayerMap":
        """First, middle and last layer: the paper's 1/6/12 of 12.

        >>> str(LayerMap.of_depth(12)), str(LayerMap.of_depth(24)), str(LayerMap.of_depth(1))
        ('1/6/12', '1/12/24', '1/1/1')
        """
        return cls((1,), (max(1, num_layers // 2),), (num_layers,))

    def check_depth(self, num_layers: int) -> None:
        """Raise a ValueError if the map names a layer that a source of so many does not have."""
        outside = sorted({layer for layer in self.layers if layer > num_layers})
        if outside:
            names = ", ".join(map(str, outside))
            raise ValueError(f"the layer map {self} names layer {names}, but the source has layers 1 to {num_layers}")

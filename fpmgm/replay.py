"""Replay: denoising as it happens, or kept for later; and drawings of images for a terminal.

A text is replayed token by token on a terminal, and step by step in a pipe. Images are replayed step by step. What a
step did to a token is shown by the same four colours on a terminal and on the page of `fpmgm demo`.
"""

import time
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.generation import count_given, until_end
from fpmgm.pictures import Picture, fitted, half_blocks, in_letters
from fpmgm.sampling import Step
from fpmgm.types import Tokens

FRAMES_A_SECOND = 60
MOST_IMAGES = 8
"""So many images of a batch are replayed."""
SECONDS_A_STEP = 0.08
"""For each step of images on a terminal."""

ChangeName = Literal["unchanged", "masked", "revealed", "remasked"]
"""What a denoising step does to a token."""


class Look(NamedTuple):
    """How a token looks after a step. The words, the weight and the line under it say the same as the colour."""

    words: str
    colour: str
    style: str  # of a terminal, beside the colour


LOOKS: dict[ChangeName, Look] = {
    "unchanged": Look("unchanged", "", ""),
    "masked": Look("still masked", "#808080", ""),
    "revealed": Look("newly revealed", "#009e73", "bold"),
    "remasked": Look("masked again", "#d55e00", "bold underline"),
}
"""Colours that people with colour blindness tell apart, on black and on white."""


def change_of(before: int, after: int, mask_id: int) -> ChangeName:
    """What happened to a token. A token that was replaced by another one counts as newly revealed.

    >>> [change_of(7, 7, 9), change_of(9, 9, 9), change_of(9, 7, 9), change_of(7, 9, 9)]
    ['unchanged', 'masked', 'revealed', 'remasked']
    """
    if after == mask_id:
        return "masked" if before == mask_id else "remasked"
    return "unchanged" if before == after else "revealed"


def drawing(
    images: Sequence[Picture],
    console: Console,
    *,
    lines: int = 40,
    columns: int | None = None,
    in_colours: bool | None = None,
) -> Text:
    """Images for a terminal: half blocks where it has colours enough, else letters that are fuller where it is bright.

    A terminal with 256 colours shows the nearest of them. `in_colours` is for a console that is only recorded.
    """
    if in_colours is None:
        in_colours = console.color_system in ("truecolor", "256") and console.encoding.startswith("utf")
    picture = fitted(images, width=console.width, lines=lines, columns=columns)
    text = Text.from_ansi(half_blocks(picture)) if in_colours else Text(in_letters(picture))
    text.no_wrap, text.overflow = True, "crop"
    return text


class Recorder:
    """An `on_step` that keeps the tokens of all sequences, before the first step and after every step."""

    def __init__(self) -> None:
        self._frames: list[list[Tokens]] = []

    def __call__(self, step: Step) -> None:
        if not self._frames:
            self._frames = [[]]
        if step.index == 0:
            self._frames[0].append(step.z.cpu())
        if len(self._frames) == step.index + 1:
            self._frames.append([])
        self._frames[step.index + 1].append(step.z_next.cpu())

    @property
    def frames(self) -> list[Tokens]:
        """The tokens of all batches together: all masked at first, all there in the end."""
        return [torch.cat(batches) for batches in self._frames]


class Replay:
    """An `on_step` that shows the first sequence of the first batch, or its first images; use it as a context."""

    def __init__(
        self,
        model: Model,
        console: Console,
        *,
        steps: Collection[int] | None = None,
        seconds: float = 0.03,
        stays: bool = True,
    ) -> None:
        self.model, self.console = model, console
        self.steps = steps  # which steps a pipe gets to see; None: all
        self.seconds = seconds  # for each token on a terminal
        self.stays = stays  # whether the finished sample is left there; if not, who calls prints it
        self.done = -1
        self.num_given = 0  # tokens up to the last one that was given
        self.live = Live(console=console, auto_refresh=False, vertical_overflow="visible", transient=not stays)

    def __enter__(self) -> "Replay":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live.is_started:
            self.live.stop()

    def __call__(self, step: Step) -> None:
        if step.index <= self.done:  # the next batch begins
            return
        self.done = step.index
        if self.model.speech.grid:
            self._draw(step)
            return
        before, after = step.z[0].tolist(), step.z_next[0].tolist()
        if step.index == 0:
            self.num_given = count_given(before, self.model.denoiser.mask_id)
        if self.console.is_terminal:
            self._animate(step, before, after)
        elif self._is_told(step):
            self._head(step)
            self.console.print(self._text(before, after))

    def _draw(self, step: Step) -> None:
        """The images as they are after a step; in a pipe the first one only."""
        num = MOST_IMAGES if self.console.is_terminal else 1
        images = [self.model.speech.show(row) for row in step.z_next[:num].tolist()]
        lines = max(8, self.console.height - 2) if self.console.is_terminal else 40  # a taller one would flicker
        text = drawing(images, self.console, lines=lines)
        if self.console.is_terminal:
            self.live.update(text, refresh=True)
            time.sleep(SECONDS_A_STEP)
        elif self._is_told(step):
            self._head(step)
            self.console.print(text)

    def _is_told(self, step: Step) -> bool:
        """Whether a pipe gets to see a step."""
        return (self.steps is None or step.index in self.steps) and (self.stays or step.t_next > 0)

    def _head(self, step: Step) -> None:
        self.console.rule(f"step {step.index + 1}, t = {step.t_next:.2f}", style="dim", align="left")

    def _animate(self, step: Step, before: list[int], after: list[int]) -> None:
        """Change the tokens one after the other; below them stands what the colours mean and how far it is."""
        every = max(1, round(1 / (FRAMES_A_SECOND * self.seconds)))
        changed = [place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        shown = list(before)
        for count, position in enumerate(changed, 1):
            shown[position] = after[position]
            if count % every == 0 or count == len(changed):
                self._update(step, before, shown)
                time.sleep(self.seconds * every)
        if not changed:
            self._update(step, before, after)

    def _update(self, step: Step, before: list[int], shown: list[int]) -> None:
        text = self._text(before, shown)
        if not self.stays:
            text = Text.assemble(text, "\n", self._legend(step))
        self.live.update(text, refresh=True)

    def _legend(self, step: Step) -> Text:
        """The step, what its solver did, and the four looks of tokens."""
        done = f"\nstep {step.index + 1}, t = {step.t_next:.2f}"
        if self.model.denoiser.cost.fp:
            iters, residual = int(step.solution.num_iters[0]), float(step.solution.residual[0])
            done += f", {iters} {'iteration' if iters == 1 else 'iterations'}, residual {residual:.2g}"
        looks = [part for look in LOOKS.values() for part in ("   ", (look.words, _style(look)))]
        return Text.assemble((done, "dim"), *looks)

    def _text(self, before: list[int], tokens: list[int]) -> Text:
        """The tokens as text, in the colours of what happened to them; masks are dots. A finished one has an end."""
        text, codec = Text(), self.model.speech
        assert isinstance(codec, TextCodec)
        mask = self.model.denoiser.mask_id
        if self.model.has_ends and mask not in tokens:
            tokens = until_end(tokens, self.model.speech, self.num_given)
        for old, token in zip(before, tokens, strict=False):  # what comes after an end is not shown
            piece = codec.show([token], goes_on=bool(text))
            text.append(piece, style=_style(LOOKS[change_of(old, token, mask)]))
        return text


def _style(look: Look) -> str:
    return f"{look.style} {look.colour}".strip()

"""Replay: denoising as it happens, or kept for later; and drawings of images for a terminal.

A text is replayed token by token on a terminal, and step by step in a pipe. Images are replayed step by step.
"""

import time
from collections.abc import Collection, Sequence
from types import TracebackType

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fpmgm.checkpoint import Model
from fpmgm.pictures import Picture, fitted, half_blocks, in_letters
from fpmgm.sampling import Step
from fpmgm.types import Tokens

FRAMES_A_SECOND = 60
MOST_IMAGES = 8
"""So many images of a batch are replayed."""
SECONDS_A_STEP = 0.08
"""For each step of images on a terminal."""


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
        changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        if self.console.is_terminal:
            self._animate(step, before, after, changed)
        elif self._is_told(step):
            self._head(step)
            self.console.print(self._text(after, changed))

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

    def _animate(self, step: Step, before: list[int], after: list[int], changed: list[int]) -> None:
        every = max(1, round(1 / (FRAMES_A_SECOND * self.seconds)))
        shown = list(before)
        for count, position in enumerate(changed, 1):
            shown[position] = after[position]
            if count % every == 0 or count == len(changed):
                self.live.update(self._text(shown, changed), refresh=True)
                time.sleep(self.seconds * every)
        if not changed:
            self.live.update(self._text(after, changed), refresh=True)

    def _text(self, tokens: list[int], changed: Collection[int]) -> Text:
        """The tokens as text: new ones bold, masks as dim dots."""
        text = Text()
        mask = self.model.denoiser.mask_id
        for position, token in enumerate(tokens):
            style = "dim" if token == mask else "bold green" if position in changed else ""
            text.append(self.model.speech.show([token]), style=style)
        return text

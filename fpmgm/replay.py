"""Replay: the denoising of a sequence as it happens, token by token on a terminal, step by step in a pipe."""

import time
from collections.abc import Collection
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fpmgm.checkpoint import Model
from fpmgm.sampling import Step

FRAMES_A_SECOND = 60


class Replay:
    """An `on_step` that shows the first sequence of the first batch; use it as a context."""

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
        self.stays = stays  # whether the finished text is left there; if not, who calls prints it
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
        before, after = step.z[0].tolist(), step.z_next[0].tolist()
        changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        if self.console.is_terminal:
            self._animate(step, before, after, changed)
        elif (self.steps is None or step.index in self.steps) and (self.stays or step.t_next > 0):
            self.console.rule(f"step {step.index + 1}, t = {step.t_next:.2f}", style="dim", align="left")
            self.console.print(self._text(after, changed))

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

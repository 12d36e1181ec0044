"""Answers: finished rows as a completion, or as the parts of a stream."""

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

from fpmgm.serving.asked import Asked
from fpmgm.serving.jobs import Progress, Whole
from fpmgm.serving.wire import Choice, Completion, Provisional, Spent, Usage

DONE = "data: [DONE]\n\n"


class Answer:
    """What is told of one request: all its parts have the same id."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._same: dict[str, Any] = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": asked.served.name,
            "system_fingerprint": asked.served.fingerprint,
        }

    def whole(self, found: Whole) -> tuple[Completion, Usage]:
        """The completion, and its usage."""
        choices, usage = self._choices(found)
        return Completion(**self._same, choices=choices, usage=usage, fpmgm=self._spent(found)), usage

    def provisional(self, progress: Progress) -> Completion:
        """A part of a stream: a row after a step. Its choice has no text; the text is in `fpmgm`."""
        shown = self.asked.provisional(progress.number, progress.tokens)
        state = Provisional(step=progress.step, steps=progress.steps, provisional=shown)
        choice = Choice(index=progress.number, text="", finish_reason=None)
        return Completion(**self._same, choices=[choice], fpmgm=state)

    def last_parts(self, found: Whole) -> tuple[list[Completion], Usage]:
        """The last parts of a stream: each text in a part of its own, then the usage if it is asked for."""
        choices, usage = self._choices(found)
        parts = [Completion(**self._same, choices=[choice]) for choice in choices]
        parts[-1].fpmgm = self._spent(found)
        options = self.asked.request.stream_options
        if options is not None and options.include_usage:
            parts.append(Completion(**self._same, choices=[], usage=usage))
        return parts, usage

    def _choices(self, found: Whole) -> tuple[list[Choice], Usage]:
        written = [self.asked.written(index, row.tokens) for index, row in enumerate(found.rows)]
        choices = [Choice(index=i, text=each.text, finish_reason=each.reason) for i, each in enumerate(written)]
        n = self.asked.request.n or 1
        given = sum(start.num_given for start in self.asked.starts[::n])  # a prompt counts once, as OpenAI counts
        num = sum(each.num_tokens for each in written)
        return choices, Usage(prompt_tokens=given, completion_tokens=num, total_tokens=given + num)

    def _spent(self, found: Whole) -> Spent:
        return Spent(
            block_evals=max(row.block_evals for row in found.rows),
            steps=self.asked.spending.num_steps,
            seconds=found.seconds,
            settings=self.asked.settings,
        )


def as_json(completion: Completion) -> dict[str, Any]:
    """A completion as it is sent: without what it does not have."""
    found = completion.model_dump()
    return {name: value for name, value in found.items() if value is not None}


def as_events(completions: list[Completion]) -> Iterator[str]:
    """Parts of a stream as server-sent events."""
    for completion in completions:
        yield f"data: {json.dumps(as_json(completion), ensure_ascii=False)}\n\n"

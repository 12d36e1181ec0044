"""One view of a page: how far the runs are, what they have made, what it cost, and charts of what the solver did."""

from collections.abc import Callable, Sequence
from html import escape

from fpmgm.demo.charts import Line, chart
from fpmgm.demo.frames import Frame, Recording

KEYS = "AB"
EMPTY = '<div class="fp-stage"><p class="fp-note">{}</p></div>'
Draw = Callable[[Recording, Frame], str]
"""What a run has made, as HTML."""


def refusal(words: str) -> str:
    """Why a request is refused."""
    return f'<div class="fp-stage"><p class="fp-refusal" role="alert">{escape(words)}</p></div>'


def stage(recordings: Sequence[Recording], draw: Draw, *, share: float, is_running: bool = False) -> str:
    """The runs side by side, each as it was after that share of its steps."""
    frames = [recording.at(share) for recording in recordings]
    sides = [
        _side(index if len(recordings) > 1 else None, recording, frame, draw)
        for index, (recording, frame) in enumerate(zip(recordings, frames, strict=True))
    ]
    return (
        f'<div class="fp-stage">{_progress(recordings, frames, is_running)}'
        f'<div class="fp-sides">{"".join(sides)}</div>{_charts(recordings, frames)}</div>'
    )


def _progress(recordings: Sequence[Recording], frames: Sequence[Frame], is_running: bool) -> str:
    """A bar while the runs go on; else a sentence on how they ended, and which step is shown."""
    done, total = sum(each.done for each in recordings), sum(each.num_steps for each in recordings)
    if is_running:
        words = f"Step {done} of {total}"
        return (
            f'<div class="fp-progress"><progress value="{done}" max="{total}" aria-label="{words}"></progress>'
            f"<span>{words}</span></div>"
        )
    ended = "Finished" if done == total else f"Stopped after {done} of {total} steps"
    shown = " and ".join(f"step {frame.step} of {each.done}" for each, frame in zip(recordings, frames, strict=True))
    return f'<div class="fp-progress" role="status"><span>{ended}. You see {shown}.</span></div>'


def _side(index: int | None, recording: Recording, frame: Frame, draw: Draw) -> str:
    key = "" if index is None else f'<span class="fp-key fp-key-{index}">{KEYS[index]}</span>'
    return (
        f'<section class="fp-side"><h3>{key}{escape(recording.name)}</h3>{draw(recording, frame)}'
        f"{_facts(recording, frame)}</section>"
    )


def _facts(recording: Recording, frame: Frame) -> str:
    facts = {
        "step": f"{frame.step} of {recording.num_steps}",
        "block evaluations": f"{frame.block_evals} of {recording.budget}",
        "multiply-adds": billions(frame.multiply_adds),
        "computing time": f"{frame.seconds:.2f} s",
    }
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="fp-facts">{items}</dl>'


def billions(number: int | float) -> str:
    """A number of multiply-adds for people.

    >>> [billions(each) for each in (0, 12_300_000, 4_560_000_000)]
    ['0', '12.3 million', '4.56 billion']
    """
    if number >= 1e9:
        return f"{number / 1e9:.3g} billion"
    return f"{number / 1e6:.3g} million" if number else "0"


def _charts(recordings: Sequence[Recording], frames: Sequence[Frame]) -> str:
    """Residual and iterations of each step; a sentence for models that have no solver."""
    solved = [(each, frame) for each, frame in zip(recordings, frames, strict=True) if each.has_solver]
    note = ""
    if len(solved) < len(recordings):
        plain = " and ".join(escape(each.name) for each in recordings if not each.has_solver)
        note = f'<p class="fp-note">{plain}: a plain stack has no solver, so there is no residual to show.</p>'
    if not any(each.done for each, _ in solved):
        return note
    marked = [frame.step for _, frame in solved if frame.step]
    steps = (1, max(each.num_steps for each, _ in solved))
    residuals = chart(
        [_line(each, recordings, lambda frame: frame.residual) for each, _ in solved if each.done],
        title="Relative residual of the solver",
        x_title="step",
        is_log=True,
        marked=marked,
        x_range=steps,
    )
    iterations = chart(
        [_line(each, recordings, lambda frame: frame.iterations) for each, _ in solved if each.done],
        title="Solver iterations",
        x_title="step",
        from_zero=True,
        marked=marked,
        x_range=steps,
    )
    return f'{note}<div class="fp-charts">{residuals}{iterations}</div>'


def _line(recording: Recording, recordings: Sequence[Recording], value: Callable[[Frame], float]) -> Line:
    key = f"{KEYS[list(recordings).index(recording)]}: " if len(recordings) > 1 else ""
    points = tuple((float(frame.step), value(frame)) for frame in recording.frames[1:])
    return Line(name=f"{key}{recording.name}", points=points)

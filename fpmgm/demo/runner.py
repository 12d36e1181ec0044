"""Between buttons and runs: one run at a time for all visitors, each with a button that stops it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from fpmgm.demo.limits import sentence
from fpmgm.demo.shows import Asked, num_positions, run
from fpmgm.demo.stage import Draw, refusal
from fpmgm.demo.stops import Stops

MODEL = "fpmgm-model"
"""The queue that all runs share: one of them computes, the others wait."""
SHOW = "() => {{ if (window.innerWidth < 700) document.getElementById('{}')?.scrollIntoView(); }}"
"""On a phone, the view is far below the button."""


def step_slider() -> gr.Slider:
    """What goes back and forth through the steps of a run; it works when the run is done."""
    about = "Go back and forth through the steps when they are done."
    return gr.Slider(0, 1, value=0, step=1, label="Step", info=about, interactive=False, buttons=[])


class Runner:
    """Connects the tabs of a page with runs."""

    def __init__(self) -> None:
        self.stops = Stops()

    def connect(
        self,
        tab: str,
        triggers: Sequence[Any],
        stop: gr.Button,
        work: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        *,
        has_files: bool = False,
    ) -> None:
        """Run `work` at the triggers. It is also an endpoint that is called like the tab.

        Unless there are files among them, inputs come as they were sent: `limits` checks them and explains itself.
        """

        def begin(request: gr.Request) -> None:
            self.stops.begin(visitor_of(request), tab)

        def end(request: gr.Request) -> None:
            self.stops.stop(visitor_of(request), tab)

        quiet: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        begun = gr.on(list(triggers), begin, js=SHOW.format(outputs[0].elem_id), **quiet)
        begun.then(
            work,
            list(inputs),
            list(outputs),
            api_name=tab,
            concurrency_id=MODEL,
            concurrency_limit=1,
            show_progress="full",
            show_progress_on=outputs[0],
            preprocess=has_files,
        )
        stop.click(end, **quiet)

    def views(self, ask: Callable[[], Asked], drawing: Draw, request: gr.Request, tab: str) -> Iterator[Any]:
        """What view, slider and memory show, step by step. What is wrong with a request is told in the view too."""
        try:
            for view, recordings in run(ask(), drawing, self.stops, visitor_of(request), tab):
                if recordings is None:
                    yield view, gr.skip(), gr.skip()
                else:
                    most = num_positions(recordings)
                    yield view, gr.update(maximum=max(1, most), value=most, interactive=most > 0), recordings
        except (ValueError, FloatingPointError) as error:
            yield refusal(sentence(error)), gr.update(interactive=False), []
            raise gr.Error(sentence(error), print_exception=False) from None

    def leave(self, request: gr.Request) -> None:
        """A visitor has closed the page."""
        self.stops.leave(visitor_of(request))


def visitor_of(request: gr.Request) -> str:
    """What tells a visitor from others."""
    return str(request.session_hash or "")

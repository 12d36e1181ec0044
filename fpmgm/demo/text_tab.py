"""The tab for text: a prompt or blanks, settings, a second side to compare, and the steps as they come."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from fpmgm.budget import ALLOCATIONS
from fpmgm.demo.frames import Recording
from fpmgm.demo.limits import LARGEST_SEED, MODES, TEXT_ORDERS, Limits, TextRequest, Way
from fpmgm.demo.offers import Offers
from fpmgm.demo.runner import Runner, step_slider
from fpmgm.demo.shows import num_positions, text_drawing, view_at, write
from fpmgm.demo.stage import EMPTY
from fpmgm.demo.tokens import legend
from fpmgm.reuse import REUSES

WELCOME = "Press <b>Write</b>. The text appears here, step by step."
FIRST = "Once upon a time"
HINTS = {
    MODES[0]: "The text begins with these words. If there are none, the model begins by itself.",
    MODES[1]: "Write each blank as underscores, one for each token: The ___ sat on the ___.",
}


def text_tab(offers: Offers, limits: Limits, runner: Runner) -> None:
    """Build the tab; at least one model must be there."""
    names = list(offers)
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            model = gr.Dropdown(names, value=names[0], label="Model")
            mode = gr.Radio(list(MODES), value=MODES[0], label="What to do")
            text = gr.Textbox(FIRST, label="Text", info=HINTS[MODES[0]], lines=3, elem_id="fp-prompt")
            with gr.Row():
                start = gr.Button("Write", variant="primary", elem_id="fp-write", min_width=120)
                stop = gr.Button("Stop", variant="stop", elem_id="fp-stop-text", min_width=120)
            budget = gr.Slider(
                8, limits.budget, value=min(96, limits.budget), step=1, label="Budget", info="Block evaluations"
            )
            seed = gr.Number(0, precision=0, minimum=0, maximum=LARGEST_SEED, label="Seed")
            with gr.Accordion("How the budget is spent", open=False):
                ways = _ways(limits, "")
            compare = gr.Checkbox(False, label="Compare with another model or other settings, at the same budget")
            with gr.Group(visible=False) as other:
                other_model = gr.Dropdown(names, value=names[-1], label="Model of B")
                other_ways = _ways(limits, " of B")
        with gr.Column(scale=3, min_width=300):
            gr.HTML(legend(), apply_default_css=False)
            slider = step_slider()
            view = gr.HTML(EMPTY.format(WELCOME), elem_id="fp-text-view", apply_default_css=False)
            kept = gr.State([])
    mode.change(_hint, mode, text, queue=False, show_progress="hidden", api_visibility="private")
    compare.change(_shown, compare, other, queue=False, show_progress="hidden", api_visibility="private")
    inputs = [model, mode, text, budget, seed, *ways, compare, other_model, *other_ways]
    runner.connect(
        "write", [start.click, text.submit], stop, _writing(offers, limits, runner), inputs, [view, slider, kept]
    )
    slider.input(
        _seen(offers), [slider, kept], view, queue=False, show_progress="hidden", api_visibility="private",
        trigger_mode="always_last",
    )  # fmt: skip


def _ways(limits: Limits, side: str) -> list[Any]:
    """The controls of all that two sides may differ in, in the order of the fields of `Way`."""
    return [
        gr.Slider(0, limits.steps, value=0, step=1, label=f"Steps{side}", info="0 lets the model choose."),
        gr.Dropdown(["auto", *ALLOCATIONS], value="auto", label=f"Allocation of iterations{side}"),
        gr.Dropdown(["auto", *REUSES], value="auto", label=f"Reuse of the last solution{side}"),
        gr.Number(0, minimum=0, maximum=1, label=f"Tolerance{side}", info="Stop the solver early; 0 never stops it."),
        gr.Slider(0, limits.temperature, value=1, step=0.05, label=f"Temperature{side}"),
        gr.Slider(0.05, 1, value=1, step=0.05, label=f"Top-p{side}"),
        gr.Dropdown(list(TEXT_ORDERS), value="model's own", label=f"Which tokens come first{side}"),
    ]


def _writing(offers: Offers, limits: Limits, runner: Runner) -> Any:
    drawing = text_drawing(offers)
    num_ways = len(Way.__dataclass_fields__)

    def fpmgm_write(
        request: gr.Request, model: Any, mode: Any, text: Any, budget: Any, seed: Any, *rest: Any
    ) -> Iterator[Any]:
        first, (compare, other, *second) = rest[:num_ways], rest[num_ways:]
        sides = [(model, _way(first))] + ([(other, _way(tuple(second)))] if compare is True else [])
        form = TextRequest(mode=mode, text=text, budget=budget, seed=seed)
        yield from runner.views(lambda: write(offers, limits, form, sides), drawing, request, "write")

    return fpmgm_write


def _way(values: tuple[Any, ...]) -> Way:
    return Way(**dict(zip(Way.__dataclass_fields__, values, strict=True)))


def _seen(offers: Offers) -> Any:
    drawing = text_drawing(offers)

    def seen(position: Any, kept: list[Recording]) -> str:
        return view_at(kept, drawing, position) if num_positions(kept) else EMPTY.format(WELCOME)

    return seen


def _hint(mode: str) -> Any:
    return gr.update(info=HINTS.get(mode, HINTS[MODES[0]]))


def _shown(is_shown: bool) -> Any:
    return gr.update(visible=bool(is_shown))

"""The tab for images: a class, guidance and order; cells as they are filled in; and in-painting with a brush."""

from collections.abc import Iterator
from typing import Any

import gradio as gr

from fpmgm.codecs import ImageCodec
from fpmgm.demo.cells import pictures_of
from fpmgm.demo.frames import Recording
from fpmgm.demo.limits import ANY_CLASS, IMAGE_ORDERS, LARGEST_SEED, ImageRequest, Limits
from fpmgm.demo.offers import Offers
from fpmgm.demo.painted import EDITOR, PAINTED, REGIONS, for_editor
from fpmgm.demo.runner import Runner, step_slider
from fpmgm.demo.shows import draw_images, fill_in, image_drawing, num_positions, view_at
from fpmgm.demo.stage import EMPTY

WELCOME = "Press <b>Draw</b>. The images appear here, cell by cell."
KEY = (
    '<div class="fp-stage"><ul class="fp-legend" aria-label="What the colours mean"><li><span class="fp-token '
    'fp-masked">·</span> still masked</li><li><span class="fp-token fp-revealed">□</span> newly revealed</li></ul>'
    "</div>"
)


def images_tab(offers: Offers, limits: Limits, runner: Runner) -> None:
    """Build the tab; at least one model must be there."""
    names = list(offers)
    with gr.Row(equal_height=False):
        with gr.Column(scale=2, min_width=300):
            model = gr.Dropdown(names, value=names[0], label="Model")
            wanted = gr.Dropdown(_classes(offers, names[0]), value=ANY_CLASS, label="Class")
            with gr.Row():
                start = gr.Button("Draw", variant="primary", elem_id="fp-draw", min_width=120)
                stop = gr.Button("Stop", variant="stop", elem_id="fp-stop-draw", min_width=120)
            controls = _controls(offers, limits, names[0])
            editor, region, take, fill = _editor()
        with gr.Column(scale=3, min_width=300):
            gr.HTML(KEY, apply_default_css=False)
            slider = step_slider()
            view = gr.HTML(EMPTY.format(WELCOME), elem_id="fp-images-view", apply_default_css=False)
            kept = gr.State([])
    model.change(
        lambda name: gr.update(choices=_classes(offers, name), value=ANY_CLASS), model, wanted, queue=False,
        show_progress="hidden", api_visibility="private",
    )  # fmt: skip
    inputs, outputs = [model, wanted, *controls], [view, slider, kept]
    runner.connect("draw", [start.click], stop, _drawing(offers, limits, runner), inputs, outputs)
    painted, filling = [*inputs, editor, region], _filling(offers, limits, runner)
    runner.connect("fill_in", [fill.click], stop, filling, painted, outputs, has_files=True)
    take.click(_taken(offers), kept, editor, queue=False, show_progress="hidden", api_visibility="private")
    slider.input(
        _seen(offers), [slider, kept], view, queue=False, show_progress="hidden", api_visibility="private",
        trigger_mode="always_last",
    )  # fmt: skip


def _controls(offers: Offers, limits: Limits, name: str) -> list[Any]:
    """All but the class, in the order of the fields of `ImageRequest`."""
    saved = offers[name].model.generation.get("defaults", {}).get("cfg_weight", 0.0)
    count = gr.Slider(1, limits.images, value=min(8, limits.images), step=1, label="Number of images")
    guidance = gr.Slider(0, limits.guidance, value=saved, step=0.1, label="Guidance", info="0 guides nothing.")
    order = gr.Radio(list(IMAGE_ORDERS), value=next(iter(IMAGE_ORDERS)), label="Which cells come first")
    budget = gr.Slider(8, limits.budget, value=min(96, limits.budget), step=1, label="Budget", info="Block evaluations")
    with gr.Accordion("More settings", open=False):
        steps = gr.Slider(0, limits.steps, value=0, step=1, label="Steps", info="0 lets the model choose.")
        temperature = gr.Slider(0, limits.temperature, value=1, step=0.05, label="Temperature")
        seed = gr.Number(0, precision=0, minimum=0, maximum=LARGEST_SEED, label="Seed")
    return [count, guidance, order, budget, steps, temperature, seed]


def _editor() -> tuple[Any, Any, Any, Any]:
    """The editor, what to draw anew, and the two buttons."""
    with gr.Accordion("Draw a part of an image anew", open=False):
        gr.Markdown(
            "Put an image into the editor, paint over the part that the model shall draw anew, and press **Fill in**. "
            "Without a brush, choose the part by its name."
        )
        take = gr.Button("Take the first image of the last run", elem_id="fp-take")
        editor = gr.ImageEditor(
            label="Image",
            type="numpy",
            image_mode="RGBA",
            sources=("upload", "clipboard"),
            transforms=(),
            layers=False,
            brush=gr.Brush(default_size=28, colors=["#d55e00"], default_color="#d55e00", color_mode="fixed"),
            eraser=gr.Eraser(default_size=28),
            canvas_size=(EDITOR, EDITOR),
            fixed_canvas=True,
            elem_id="fp-editor",
        )
        region = gr.Dropdown(list(REGIONS), value=PAINTED, label="What to draw anew")
        fill = gr.Button("Fill in", variant="primary", elem_id="fp-fill")
    return editor, region, take, fill


def _classes(offers: Offers, name: Any) -> list[str]:
    codec = offers[name].model.speech
    return [ANY_CLASS, *codec.class_names] if isinstance(codec, ImageCodec) else [ANY_CLASS]


def _drawing(offers: Offers, limits: Limits, runner: Runner) -> Any:
    drawing = image_drawing(offers)

    def fpmgm_draw(request: gr.Request, model: Any, *values: Any) -> Iterator[Any]:
        form = _request(values)
        yield from runner.views(lambda: draw_images(offers, limits, model, form), drawing, request, "draw")

    return fpmgm_draw


def _filling(offers: Offers, limits: Limits, runner: Runner) -> Any:
    drawing = image_drawing(offers)

    def fpmgm_fill_in(request: gr.Request, model: Any, *values: Any) -> Iterator[Any]:
        *settings, edited, region = values
        form = _request(tuple(settings))
        yield from runner.views(
            lambda: fill_in(offers, limits, model, form, edited, region), drawing, request, "fill_in"
        )

    return fpmgm_fill_in


def _request(values: tuple[Any, ...]) -> ImageRequest:
    names = ("wanted", "count", "guidance", "order", "budget", "steps", "temperature", "seed")
    return ImageRequest(**dict(zip(names, values, strict=True)))


def _taken(offers: Offers) -> Any:
    def taken(kept: list[Recording]) -> Any:
        if not num_positions(kept):
            raise gr.Error("There is no image yet; press Draw first.", print_exception=False)
        codec = offers[kept[0].name].model.speech
        assert isinstance(codec, ImageCodec)
        picture = for_editor(pictures_of(codec, kept[0].frames[-1])[0])
        return {"background": picture, "layers": [], "composite": None}

    return taken


def _seen(offers: Offers) -> Any:
    drawing = image_drawing(offers)

    def seen(position: Any, kept: list[Recording]) -> str:
        return view_at(kept, drawing, position) if num_positions(kept) else EMPTY.format(WELCOME)

    return seen

"""The page: its tabs, and how it is served, alone or beside other routes of a FastAPI application."""

from typing import Any

import gradio as gr

from fpmgm.demo.images_tab import images_tab
from fpmgm.demo.limits import Limits
from fpmgm.demo.look import look
from fpmgm.demo.measured import card_of, measured_of
from fpmgm.demo.offers import Offers, chosen, of_kind
from fpmgm.demo.runner import Runner
from fpmgm.demo.text_tab import text_tab

TITLE = "fpmgm: watch fixed-point masked models"
HEAD = (
    '<div class="fp-head"><h1>Watch a masked model write and draw</h1><p>The model starts with masks and reveals some '
    "tokens in each step. A solver looks for a fixed point in every step; the budget says how many blocks of the "
    "network may be evaluated in all.</p></div>"
)
LARGEST_UPLOAD = "4mb"
HOUR = 3600


def build(offers: Offers, limits: Limits | None = None) -> gr.Blocks:
    """The page for these models, which are loaded already. `mount` gives it its look."""
    limits, runner = limits or Limits(), Runner()
    texts, images = of_kind(offers, "text"), of_kind(offers, "image")
    if not texts and not images:
        raise ValueError("there is no model to show; give one that writes text or draws images")
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(HOUR, HOUR)) as page:
        gr.HTML(HEAD, apply_default_css=False)
        with gr.Tabs():
            if texts:
                with gr.Tab("Text", id="text"):
                    text_tab(texts, limits, runner)
            if images:
                with gr.Tab("Images", id="images"):
                    images_tab(images, limits, runner)
            with gr.Tab("Measured quality", id="measured"):
                _measured_tab(offers)
        page.unload(runner.leave)
    page.queue(max_size=limits.waiting, default_concurrency_limit=1)
    return page


def mount(app: Any, offers: Offers, limits: Limits | None = None, *, path: str = "/") -> Any:
    """Serve the page from a FastAPI application, at a path; routes that the application has already come first."""
    return gr.mount_gradio_app(
        app,
        build(offers, limits),
        path=path,
        ssr_mode=False,
        show_error=True,
        max_file_size=LARGEST_UPLOAD,
        enable_monitoring=False,
        **look(),
    )


def _measured_tab(offers: Offers) -> None:
    """Frontier, quality against budget and the card of a model."""
    names = list(offers)
    model = gr.Dropdown(names, value=names[0], label="Model")
    view = gr.HTML(measured_of(offers[names[0]]), elem_id="fp-measured", apply_default_css=False)
    with gr.Accordion("Model card", open=False):
        card = gr.Markdown(card_of(offers[names[0]]))

    def seen(name: Any) -> tuple[str, str]:
        offer = chosen(offers, name)
        return measured_of(offer), card_of(offer)

    model.change(seen, model, [view, card], queue=False, show_progress="hidden", api_visibility="private")

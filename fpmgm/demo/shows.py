"""What the page does when a button is pressed: runs, shown step by step as they go on."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from fpmgm.codecs import ImageCodec
from fpmgm.demo.cells import images_of
from fpmgm.demo.frames import Frame, Recording, begun, record, together
from fpmgm.demo.limits import ImageRequest, Limits, TextRequest, Way
from fpmgm.demo.offers import Offer, Offers, chosen
from fpmgm.demo.painted import request_of
from fpmgm.demo.stage import EMPTY, Draw, stage
from fpmgm.demo.stops import Stops
from fpmgm.demo.tokens import text_of

PACE = 0.06
"""At least so many seconds lie between two views, so that people see the steps."""
Asked = Sequence[tuple[Offer, dict[str, Any]]]
View = tuple[str, list[Recording] | None]
"""What to show and, when the runs are over, what is kept of them."""
STOPPED = "Stopped before the first step."


def write(offers: Offers, limits: Limits, request: TextRequest, sides: Sequence[tuple[Any, Way]]) -> Asked:
    """What is asked of each side: the same text and budget, each with its model and its way of sampling."""
    return [(chosen(offers, name), request.settings(way, limits)) for name, way in sides]


def draw_images(offers: Offers, limits: Limits, name: Any, request: ImageRequest) -> Asked:
    """Images of a class, from nothing."""
    settings = request.settings(limits)
    return [(chosen(offers, name), {**settings, "batch_size": settings["num_samples"]})]


def fill_in(offers: Offers, limits: Limits, name: Any, request: ImageRequest, edited: Any, region: Any) -> Asked:
    """A part of an image, drawn anew."""
    [(offer, settings)] = draw_images(offers, limits, name, request)
    codec = offer.model.speech
    assert isinstance(codec, ImageCodec)
    return [(offer, {**settings, **request_of(codec, edited, region)})]


def run(asked: Asked, drawing: Draw, stops: Stops, visitor: str, tab: str, *, pace: float = PACE) -> Iterator[View]:
    """Views of the runs as they go on, the last one when they are over or stopped. Everything is checked first."""
    is_stopped = stops.of(visitor, tab)
    runs = [begun(offer, settings) for offer, settings in asked]
    recordings = [recording for recording, _ in runs]
    shown = 0.0
    try:
        records = [(recording, record(recording, steps)) for recording, steps in runs]
        for _ in together(records, is_stopped.is_set):
            if not all(recording.frames for recording in recordings):
                continue
            time.sleep(max(0.0, shown + pace - time.monotonic()))
            shown = time.monotonic()
            yield stage(recordings, drawing, share=1.0, is_running=True), None
    finally:
        stops.end(visitor, tab)
        for _, steps in runs:
            steps.close()
    kept = [recording for recording in recordings if recording.frames]
    yield stage(kept, drawing, share=1.0) if kept else EMPTY.format(STOPPED), kept


def text_drawing(offers: Offers) -> Draw:
    """Draws what runs have written."""

    def draw(recording: Recording, frame: Frame) -> str:
        return text_of(offers[recording.name].model, frame)

    return draw


def image_drawing(offers: Offers) -> Draw:
    """Draws the images of runs."""

    def draw(recording: Recording, frame: Frame) -> str:
        return images_of(offers[recording.name].model, frame, recording.labels)

    return draw


def num_positions(recordings: Sequence[Recording]) -> int:
    """Where a slider over the steps ends: the steps of the run that has most."""
    return max((recording.done for recording in recordings), default=0)


def view_at(recordings: Sequence[Recording], drawing: Draw, position: Any) -> str:
    """The runs as they were at a position of the slider."""
    most = num_positions(recordings)
    share = min(max(float(position), 0.0), float(most)) / most if most else 1.0
    return stage(recordings, drawing, share=share)

"""The page of `fpmgm demo` without a browser: what it computes, draws, refuses and stops."""

import json
import logging
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import active_count
from typing import Any

import numpy as np
import pytest
import torch

from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.codecs import ImageCodec, TextCodec
from fpmgm.commands.demo import address, check_free, is_no_leaver
from fpmgm.demo.cells import images_of
from fpmgm.demo.charts import Axis, Line, axis_of, chart
from fpmgm.demo.frames import Recording, begun, drawn_probabilities, record, together
from fpmgm.demo.limits import ANY_CLASS, MODES, ImageRequest, Limits, TextRequest, Way, sentence
from fpmgm.demo.measured import card_of, measured_of
from fpmgm.demo.offers import Offer, bundled, offer_of, offered
from fpmgm.demo.painted import EDITOR, PAINTED, for_editor, request_of
from fpmgm.demo.shows import draw_images, fill_in, image_drawing, num_positions, run, text_drawing, view_at, write
from fpmgm.demo.stage import stage
from fpmgm.demo.steps import Steps
from fpmgm.demo.stops import Stops
from fpmgm.demo.tokens import END, legend, pieces, text_of
from fpmgm.generation import generate
from fpmgm.replay import LOOKS
from fpmgm.sampling import Step
from tests.images import small_image_model


@pytest.fixture
def offer(text_model: Model) -> Offer:
    return Offer(name="nonsense", model=text_model)


@pytest.fixture(scope="module")
def image_offer() -> Offer:
    return Offer(name="shapes", model=small_image_model())


def asked(**changes: Any) -> TextRequest:
    return TextRequest(**{"mode": MODES[0], "text": "the sea", "budget": 24, "seed": 0, **changes})


def images_asked(**changes: Any) -> ImageRequest:
    form = {"wanted": "star", "count": 2, "guidance": 0.5, "order": "Halton", "budget": 24}
    return ImageRequest(**{**form, "steps": 0, "temperature": 1, "seed": 0, **changes})


def recorded(offer: Offer, **settings: Any) -> Recording:
    recording, steps = begun(offer, {"budget": 24, "seed": 0, **settings})
    for _ in record(recording, steps):
        pass
    return recording


def texts_of(view: str) -> str:
    """What a person reads of HTML, titles left out."""
    return re.sub(r"<[^>]*>", "", view)


def test_steps_are_those_of_generate_and_wait_until_they_are_asked_for(text_model: Model) -> None:
    seen: list[Step] = []
    out = generate(text_model, budget=24, seed=3, on_step=seen.append)
    steps = Steps(text_model, budget=24, seed=3)
    assert steps.result is None
    found = list(steps)
    assert [step.z_next.tolist() for step in found] == [step.z_next.tolist() for step in seen]
    assert steps.result is not None
    assert steps.result.tokens == out.tokens
    assert steps.seconds > 0


def test_steps_can_be_closed_after_any_of_them_and_leave_no_thread(text_model: Model) -> None:
    before = active_count()
    for number in range(3):
        steps = Steps(text_model, budget=24)
        for _ in range(number):
            next(steps)
        steps.close()
        assert list(steps) == []
        assert steps.result is None
    assert active_count() == before


def test_an_error_in_a_run_reaches_whoever_asks_for_its_steps(text_model: Model) -> None:
    with pytest.raises(ValueError, match="budget of 1 block evaluations is too small"):
        next(Steps(text_model, budget=1))


def test_the_probability_of_a_written_token_is_the_models_own(text_model: Model) -> None:
    """Not that of the draw: the temperature makes it another one."""
    for step in Steps(text_model, budget=24, temperature=0.3, transition="confidence"):
        found = drawn_probabilities(step)
        chances = step.logits.softmax(dim=-1)
        for place, row in zip(step.places.flat.tolist(), chances.tolist(), strict=True):
            token = int(step.z_next.flatten()[place])
            expected = -1.0 if token == text_model.denoiser.mask_id else row[token]
            assert float(found.flatten()[place]) == pytest.approx(expected)
        assert ((found >= 0) == (step.z != step.z_next)).all()


def test_a_guided_step_has_the_probabilities_of_its_mixed_logits(image_offer: Offer) -> None:
    for step in Steps(image_offer.model, budget=24, num_samples=2, cfg_weight=1.5):
        assert len(step.places.counts) == 2 * len(step.z)
        found = drawn_probabilities(step)
        assert found.shape == step.z.shape
        assert ((found >= 0) == (step.z != step.z_next)).all()


def test_frames_keep_when_each_token_was_written_until_it_is_masked_again(offer: Offer) -> None:
    mask = offer.model.denoiser.mask_id
    recording = recorded(offer, budget=40, steps=10, transition="remdm-rescale", prompts=("the sea",))
    assert len(recording.frames) == 11
    num_remasked = 0
    for last, frame in zip(recording.frames, recording.frames[1:], strict=False):
        assert frame.before == last.tokens
        for place, (old, new) in enumerate(zip(last.tokens[0], frame.tokens[0], strict=True)):
            written = frame.written[0][place]
            num_remasked += old != mask and new == mask
            if new == mask:
                assert written is None
            elif old != new:
                assert written is not None
                assert written.step == frame.step
                assert 0 < written.probability <= 1
            else:
                assert written == last.written[0][place]
    assert num_remasked > 0
    assert recording.frames[-1].written[0][0] is None  # given


def test_frames_count_what_a_run_costs(offer: Offer) -> None:
    out = generate(offer.model, budget=24, seed=0)
    frames = recorded(offer).frames
    assert frames[-1].block_evals == out.block_evals
    assert tuple(frame.iterations for frame in frames[1:]) == out.iterations
    config = offer.model.config
    assert (
        0
        < frames[-1].multiply_adds
        <= sum(config.multiply_adds(num_iters=num, num_positions=config.vocabulary.length) for num in out.iterations)
    )
    assert all(frame.residual > 0 for frame in frames[1:])


def test_two_sides_go_on_by_turns_so_that_both_end_together(offer: Offer) -> None:
    runs = [begun(offer, {"budget": 48, "steps": steps}) for steps in (4, 8)]
    records = [(recording, record(recording, steps)) for recording, steps in runs]
    order = [recording.num_steps for recording in together(records, lambda: False)]
    assert sorted(order) == [4] * 4 + [8] * 8
    assert {4, 8} <= set(order[-3:])
    assert all(abs(order[: 3 * n].count(8) - 2 * order[: 3 * n].count(4)) <= 2 for n in range(1, 5))


def test_a_run_that_is_told_to_stop_ends_between_two_steps_and_can_still_be_looked_at(offer: Offer) -> None:
    stops = Stops()
    drawing = text_drawing({offer.name: offer})
    stops.begin("visitor", "write")
    views = run([(offer, {"budget": 48, "steps": 8})], drawing, stops, "visitor", "write", pace=0.0)
    next(views)
    next(views)
    stops.stop("someone else", "write")
    stops.stop("visitor", "draw")
    next(views)
    stops.stop("visitor", "write")
    [(view, kept)] = list(views)
    assert kept is not None
    assert num_positions(kept) == 3
    assert "Stopped after 3 of 8 steps" in view
    assert "step 2 of 3" in view_at(kept, drawing, 2)


def test_a_run_that_is_stopped_while_it_waits_does_not_begin(offer: Offer) -> None:
    stops = Stops()
    stops.begin("visitor", "write")
    stops.stop("visitor", "write")
    [(view, kept)] = run([(offer, {"budget": 24})], text_drawing({}), stops, "visitor", "write")
    assert "Stopped before the first step" in view
    assert kept == []
    assert not stops.of("visitor", "write").is_set()  # the next run is not stopped


def test_a_visitor_who_leaves_stops_their_runs(offer: Offer) -> None:
    stops = Stops()
    events = [stops.of("visitor", "write"), stops.of("visitor", "draw"), stops.of("other", "write")]
    stops.leave("visitor")
    assert [event.is_set() for event in events] == [True, True, False]


def test_views_show_every_step_and_the_last_one_the_text_itself(offer: Offer) -> None:
    drawing = text_drawing({offer.name: offer})
    sides = write({offer.name: offer}, Limits(), asked(), [("nonsense", Way(steps=4)), ("nonsense", Way(steps=2))])
    *running, (view, kept) = run(sides, drawing, Stops(), "", "write", pace=0.0)
    assert kept is not None
    assert all("<progress" in each and nothing is None for each, nothing in running)
    assert "Finished. You see step 4 of 4 and step 2 of 2." in view
    assert view.count('class="fp-side"') == 2
    for steps in (4, 2):
        out = generate(offer.model, budget=24, seed=0, temperature=1.0, prompts=("the sea",), steps=steps)
        codec = offer.model.speech
        assert isinstance(codec, TextCodec)
        assert "".join(pieces(codec, out.tokens[0])) in _unescaped(texts_of(view))
    assert "·" in texts_of(view_at(kept, drawing, 1))


def _unescaped(text: str) -> str:
    from html import unescape

    return unescape(text)


def test_a_position_of_the_slider_beyond_its_ends_shows_an_end(offer: Offer) -> None:
    recording = recorded(offer, budget=24)
    drawing = text_drawing({offer.name: offer})
    first, last = (stage([recording], drawing, share=share) for share in (0.0, 1.0))
    assert view_at([recording], drawing, -5) == first
    assert view_at([recording], drawing, 999) == last


def test_tokens_have_the_look_of_their_change_and_their_probability_as_a_title(offer: Offer) -> None:
    recording = recorded(offer, budget=40, steps=10, transition="remdm-rescale", prompts=("the sea",))
    seen = set()
    for frame in recording.frames[1:]:
        html = text_of(offer.model, frame)
        seen |= set(re.findall(r'class="fp-token fp-(\w+)"', html))
        for change, title in re.findall(r'fp-(\w+)" title="([^"]*)"', html):
            assert title.startswith(LOOKS[change].words) or (change == "unchanged" and title == "given")
            assert (change == "revealed") <= bool(re.search(r"step \d+ with probability [\d.]+ %", title))
    assert seen == set(LOOKS)
    assert all(look.words in legend() for look in LOOKS.values())


def test_what_a_visitor_or_a_model_writes_cannot_become_html(text_model: Model) -> None:
    codec = text_model.speech
    assert isinstance(codec, TextCodec)
    offer = Offer(name="<b>model</b>", model=text_model)
    recording = recorded(offer, budget=24, prompts=("<i>",))
    view = stage([recording], text_drawing({offer.name: offer}), share=1.0)
    assert "<i>" not in view
    assert "<b>" not in view
    assert "&lt;i&gt;" in re.sub(r"</?span[^>]*>", "", view)


def test_a_character_of_several_tokens_is_shown_once_and_whole(text_model: Model) -> None:
    codec = text_model.speech
    assert isinstance(codec, TextCodec)
    tokens = codec.encode("sea — ☃")
    mask, end = codec.symbols.mask_id, codec.symbols.last
    assert len(tokens) > len(pieces(codec, tokens)) - pieces(codec, tokens).count("")
    assert "".join(pieces(codec, tokens)) == "sea — ☃"
    assert "".join(pieces(codec, [end, *tokens[:-1], mask, end])).endswith(f"·{END}")


def test_a_chart_has_a_point_for_each_number_and_says_what_it_shows() -> None:
    lines = [Line(name="A", points=((1, 0.1), (2, 0.01))), Line(name="B", points=((1, 0.2), (2, 0.02), (3, 0.0)))]
    drawn = chart(lines, title="Residual", x_title="step", is_log=True, marked=(2,))
    assert drawn.count("<title>") == 4  # a residual of 0 has no place on a logarithmic axis
    assert "Residual: A, from 0.1 to 0.01" in drawn
    assert "nan" not in drawn
    assert drawn.count("fp-here") == 1
    assert "nothing to show" in chart([], title="Residual", x_title="step")


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [-2.0, 5.0], [1e-9, 2e-9], [1.0, 1e6]])
def test_an_axis_holds_all_its_values_and_its_marks(values: list[float]) -> None:
    axis = axis_of(values)
    for value in (*values, *axis.ticks):
        assert -1e-6 <= axis.at(value) <= 1 + 1e-6
    assert axis_of([0.5, 40.0], is_log=True).ticks == (0.1, 1.0, 10.0, 100.0)
    assert Axis(low=1, high=100, ticks=(), is_log=True).at(10) == 0.5


def test_images_show_masked_and_new_cells(image_offer: Offer) -> None:
    recording = recorded(image_offer, num_samples=2, classes=("star",), budget=24, steps=4)
    codec = image_offer.model.speech
    assert isinstance(codec, ImageCodec)
    for frame in recording.frames[1:]:
        html = images_of(image_offer.model, frame, recording.labels)
        tokens = np.array(frame.tokens)
        is_new = np.array(frame.before) != tokens
        assert html.count('class="fp-masked"') == (tokens == codec.mask_id).sum()
        assert html.count('class="fp-revealed"') == is_new.sum()
        assert html.count("<figcaption>star</figcaption>") == 2
        assert html.count("data:image/png;base64,") == 2
    assert "fp-masked" not in html


def test_what_is_painted_is_drawn_anew_and_the_rest_stays(image_offer: Offer) -> None:
    codec = image_offer.model.speech
    assert isinstance(codec, ImageCodec)
    picture = generate(image_offer.model, classes=("star",), seed=1).shown[0]
    background = for_editor(picture)
    assert background.shape == (EDITOR, EDITOR, 3)
    layer = np.zeros((EDITOR, EDITOR, 4), dtype=np.uint8)
    layer[: EDITOR // 4, : EDITOR // 4] = 255  # one cell of 4 x 4
    request = request_of(codec, {"background": background, "layers": [layer]}, PAINTED)
    assert request["inpaint_mask"].sum() == 16
    assert request["inpaint_mask"][:4, :4].all()
    offers = {"shapes": image_offer}
    sides = fill_in(offers, Limits(), "shapes", images_asked(), {"background": background, "layers": [layer]}, PAINTED)
    *_, (_, kept) = run(sides, image_drawing(offers), Stops(), "", "fill_in", pace=0.0)
    assert kept is not None
    start, end = kept[0].frames[0].tokens[0], kept[0].frames[-1].tokens[0]
    assert [place for place, token in enumerate(start) if token == codec.mask_id] == [0]
    assert start[1:] == end[1:]


def test_a_part_can_be_chosen_without_a_brush(image_offer: Offer) -> None:
    codec = image_offer.model.speech
    assert isinstance(codec, ImageCodec)
    grey = np.full((50, 30), 90, dtype=np.uint8)  # of another size and without colours
    request = request_of(codec, {"background": grey, "layers": []}, "the lower half")
    assert request["inpaint"].shape == (16, 16)
    assert request["inpaint_mask"][8:].all()
    assert not request["inpaint_mask"][:8].any()


@pytest.mark.parametrize(
    ("edited", "region", "words"),
    [
        (None, PAINTED, "there is no image"),
        ({"background": None}, "the middle", "there is no image"),
        ("a text", PAINTED, "there is no image"),
        ({"background": np.zeros((16, 16, 3), np.uint8), "layers": []}, PAINTED, "nothing is painted"),
        ({"background": np.zeros((16, 16, 3), np.uint8)}, "the edge", "unknown part"),
    ],
)
def test_in_painting_without_an_image_or_a_hole_is_refused(
    image_offer: Offer, edited: Any, region: str, words: str
) -> None:
    codec = image_offer.model.speech
    assert isinstance(codec, ImageCodec)
    with pytest.raises(ValueError, match=words):
        request_of(codec, edited, region)


TEXT_FAULTS = [
    ({"budget": 769}, {}, "budget is 769; it must be 1 to 768"),
    ({"budget": 10**9}, {}, "budget"),
    ({"budget": 0}, {}, "budget"),
    ({"budget": float("nan")}, {}, "budget is nan"),
    ({"budget": "96"}, {}, "budget is '96'; it must be a number"),
    ({"budget": 20.5}, {}, "whole number"),
    ({"budget": True}, {}, "must be a number"),
    ({"budget": None}, {}, "must be a number"),
    ({"text": "x" * 4001}, {}, "4001 letters; this page takes at most 4000"),
    ({"text": ["a"]}, {}, "give letters"),
    ({"text": "\ud800"}, {}, "give letters"),
    ({"mode": "Delete"}, {}, "the mode is 'Delete'"),
    ({"seed": -1}, {}, "seed"),
    ({"seed": 2**32}, {}, "seed"),
    ({}, {"steps": 257}, "number of steps is 257; it must be 0 to 256"),
    ({}, {"allocation": "fancy"}, "unknown allocation"),
    ({}, {"reuse": "all"}, "unknown reuse"),
    ({}, {"tolerance": 2}, "tolerance"),
    ({}, {"temperature": -1}, "temperature"),
    ({}, {"top_p": 1.5}, "top-p"),
    ({}, {"order": "halton"}, "unknown order"),
]


@pytest.mark.parametrize(("request_changes", "way_changes", "words"), TEXT_FAULTS)
def test_a_text_beyond_the_limits_is_refused(
    request_changes: dict[str, Any], way_changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        asked(**request_changes).settings(Way(**way_changes), Limits())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 17}, "number of images is 17; it must be 1 to 16"),
        ({"count": 0}, "number of images"),
        ({"guidance": 9}, "guidance"),
        ({"order": "ancestral"}, "unknown order"),
        ({"budget": 800}, "budget"),
        ({"wanted": 7}, "give letters"),
    ],
)
def test_images_beyond_the_limits_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        images_asked(**changes).settings(Limits())


def test_what_the_model_cannot_do_is_refused_before_anything_is_computed(offer: Offer, image_offer: Offer) -> None:
    offers = {"nonsense": offer, "shapes": image_offer}
    stops, drawing = Stops(), text_drawing(offers)
    faults = [
        (asked(text="sea " * 30), Way(), "has .* tokens; the model writes 24"),
        (asked(mode=MODES[1]), Way(), "has no blank to fill in"),
        (asked(budget=8), Way(steps=8), "the smallest feasible budget is 24"),
    ]
    for request, way, words in faults:
        with pytest.raises(ValueError, match=words):
            next(run(write(offers, Limits(), request, [("nonsense", way)]), drawing, stops, "", "write"))
    with pytest.raises(ValueError, match="unknown model"):
        write(offers, Limits(), asked(), [("../../etc", Way())])
    with pytest.raises(ValueError, match="unknown class 'cat'"):
        next(run(draw_images(offers, Limits(), "shapes", images_asked(wanted="cat")), drawing, stops, "", "draw"))


def test_settings_at_their_ends_mean_what_the_form_says() -> None:
    found = asked(text="  ").settings(Way(temperature=0, top_p=0.5), Limits())
    assert found["prompts"] == ()  # the model begins by itself
    assert (found["steps"], found["tolerance"], found["top_p"]) == (None, None, None)
    assert asked(mode=MODES[1], text="a _").settings(Way(), Limits())["infill"] == ("a _",)
    assert images_asked(wanted=ANY_CLASS).settings(Limits())["classes"] == ()


def test_the_limits_can_be_changed_but_not_to_nothing() -> None:
    assert asked(budget=1000).settings(Way(), Limits(budget=1000))["budget"] == 1000
    with pytest.raises(ValueError, match="limit of images is 0"):
        Limits(images=0)


def test_an_error_becomes_a_sentence() -> None:
    assert sentence(ValueError("no such\n model")) == "No such model."
    assert sentence(ValueError("")) == "This cannot be done."


def test_a_report_becomes_tables_and_charts(offer: Offer) -> None:
    def row(budget: int, value: float) -> dict[str, Any]:
        return {"sampling": {"budget": budget}, "metrics": {"perplexity": {"value": value, "low": 1.0, "high": 99.0}}}

    frontier = [{"budget": 96, "temperature": t, "entropy": 4 + t, "perplexity": 30 + 10 * t} for t in (0.7, 0.9, 1.0)]
    report = {
        "validation": [{"value": 104.9, "error": 2.26, "num_sequences": 3472, "by_iterations": {"2": 114.6}}],
        "samples": [row(24, 60.5), row(96, 41.25)],
        "frontier": [*frontier, {"budget": "broken"}, 7],
    }
    shown = measured_of(replace(offer, report=report))
    for words in (
        "104.9",
        "114.6",
        "41.25 [1, 99]",
        "Quality at each budget",
        "unigram entropy",
        "96 block evaluations",
    ):
        assert words in shown
    assert shown.count("<svg viewBox") == 2


def test_the_frontier_is_read_as_its_command_keeps_it(offer: Offer) -> None:
    def metrics(entropy: float, perplexity: float) -> dict[str, Any]:
        values = {"entropy": entropy, "perplexity_per_sample": perplexity}
        return {name: {"value": value, "low": value, "high": value} for name, value in values.items()}

    points = [
        {"model": "nonsense", "budget": budget, "knob": "temperature", "setting": t, "metrics": metrics(4 + t, 30 * t)}
        for budget in (24, 96)
        for t in (0.7, 1.0)
    ]
    kept = {"judge": "a judge", "points": [*points, {"budget": 7}], "real": {"metrics": metrics(5.1, 20.0)}}
    shown = measured_of(replace(offer, report={"frontier": kept}))
    assert shown.count("<polyline") == 2 * 3  # 2 budgets and real text, each also in the legend
    for words in ("24 block evaluations", "real text", "temperature 0.7"):
        assert words in shown


@pytest.mark.parametrize("report", [{}, {"samples": [], "validation": "?"}, {"frontier": [None]}])
def test_a_model_of_which_nothing_was_measured_says_so(offer: Offer, report: dict[str, Any]) -> None:
    shown = measured_of(replace(offer, report=report))
    assert ("Nothing was measured" if not report else "was not measured") in shown


def test_the_card_is_shown_without_its_header_and_pictures(offer: Offer) -> None:
    card = "---\ntags: [a]\n---\n# title\n\n![Curves](curves.png)\n\ntext ![inline](b.png)\n"
    shown = card_of(replace(offer, model=replace(offer.model, card=card)))
    assert shown.startswith("# title")
    assert "curves.png" not in shown
    assert card_of(offer) == "This model has no card."


def test_models_are_offered_by_the_names_of_their_folders(tmp_path: Path, text_model: Model) -> None:
    for name in ("one", "two"):
        text_model.save(tmp_path / name)
    (tmp_path / "two" / "report.json").write_text(json.dumps({"samples": []}))
    found = offered([str(tmp_path / "one"), str(tmp_path / "two")])
    assert list(found) == ["one", "two"]
    assert found["two"].report == {"samples": []}
    assert found["one"].kind == "text"
    with pytest.raises(ValueError, match="two models are called one"):
        offered([str(tmp_path / "one"), str(tmp_path / "one")])


def test_bundled_models_that_judge_are_not_offered(text_model: Model) -> None:
    assert bundled()
    assert not [name for name in bundled() if "judge" in name or "classifier" in name]
    with pytest.raises(ValueError, match="the page shows masked models"):
        offer_of("x", replace(text_model, codec=None))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def test_a_port_in_use_is_one_line_and_exit_code_2(taken_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--port", str(taken_port)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"port {taken_port}: Address already in use; give a free port with --port" in printed


def test_wrong_options_of_the_page_are_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--port", "0"], ["--port", "70000"], ["--limits.images", "0"], ["--host", "not an address"]):
        assert main(["demo", *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_page_without_gradio_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo"]) == 2
    assert "pip install 'fpmgm[demo]'" in capsys.readouterr().err


def test_addresses_are_those_that_a_browser_takes() -> None:
    assert address("127.0.0.1", 7860) == "http://127.0.0.1:7860"
    assert address("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert address("::1", 80) == "http://[::1]:80"
    check_free("127.0.0.1", _free_port())


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_the_log_is_silent_of_visitors_who_leave() -> None:
    def record(kind: type[BaseException] | None, words: str = "Exception in ASGI application") -> logging.LogRecord:
        info = None if kind is None else (kind, kind(), None)
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, words, None, info)

    left = type("ClientDisconnect", (Exception,), {})
    assert not is_no_leaver(record(left))
    assert not is_no_leaver(record(None, "Cancel 2 running task(s), timeout graceful shutdown exceeded"))
    assert is_no_leaver(record(ValueError))
    assert is_no_leaver(record(None))


def test_torch_is_used_without_gradients(offer: Offer) -> None:
    assert not any(step.logits.requires_grad for step in Steps(offer.model, budget=24))
    assert torch.is_grad_enabled()

"""`fpmgm demo` in a real browser: the system's chromium, driven by playwright, with small models of random weights."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fpmgm
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.data.tokenizing import train_bpe
from tests.conftest import SMALL
from tests.documentation import DOCS, blocks
from tests.images import small_image_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120_000
"""Milliseconds that a page may take for anything: a loaded machine is no failure."""


def small_text_model(*, fp: bool) -> Model:
    """A model that writes 40 tokens of nonsense; a plain stack, or with a fixed point."""
    tokenizer = train_bpe(iter(["the sea and the sky and the old oak\n" * 50]), 270)
    size = tokenizer.get_vocab_size() + 1
    blocks = {"num_pre": 1, "num_fp": 1, "num_post": 1} if fp else {"num_pre": 3, "num_fp": 0, "num_post": 0}
    changes: dict[str, Any] = {"vocab_size": size, "mask_id": size - 1, "length": 40, **blocks}
    denoiser, rng = fpmgm.mdlm(replace(SMALL, **changes)), fpmgm.generator(1)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=rng))
    codec = TextCodec(tokenizer.to_str(pretty=True))
    return Model(denoiser=denoiser.eval(), config=replace(SMALL, **changes), codec=codec)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page for three small models, served by the command itself."""
    folder, port = tmp_path_factory.mktemp("models"), free_port()
    small_text_model(fp=True).save(folder / "solved")
    small_text_model(fp=False).save(folder / "plain")
    small_image_model().save(folder / "shapes")
    models = [str(folder / name) for name in ("solved", "plain", "shapes")]
    command = [sys.executable, "-m", "fpmgm", "demo", *models, "--port", str(port), "--limits.waiting", "2"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield wait_for(f"http://127.0.0.1:{port}", server, folder / "log")
        finally:
            server.terminate()
            server.wait(60)
    printed = (folder / "log").read_text()
    assert "Traceback" not in printed, printed


@pytest.fixture(scope="module")
def server_with_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of `fpmgm serve` and the page, in one process."""
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    small_text_model(fp=True).save(folder / "solved")
    command = [sys.executable, "-m", "fpmgm", "serve", "--models", str(folder / "solved"), "--port", str(port)]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([*command, "--page"], stdout=log, stderr=subprocess.STDOUT)
        try:
            yield wait_for(f"http://127.0.0.1:{port}", server, folder / "log")
        finally:
            server.terminate()
            server.wait(60)
    assert "Traceback" not in (folder / "log").read_text()


def wait_for(address: str, server: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + 300
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=60):
                return address
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH; install it, as with: apt-get install -y chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Visitor:
    """A page in a browser window of its own, and what it asked other machines for."""

    def __init__(self, browser: Any, address: str, **window: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **window})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.outside: list[str] = []
        self.page.on("request", lambda request: self._note(request.url))
        self.page.goto(address)
        self.button("Write").wait_for()

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.outside.append(url)

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True).locator("visible=true")

    def choose(self, label: str, option: str) -> None:
        self.page.get_by_label(label, exact=True).locator("visible=true").click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def set(self, label: str, value: str) -> None:
        """Type into the field for the number of a slider."""
        field = self.page.get_by_label(f"number input for {label}", exact=True).locator("visible=true")
        field.fill(value)
        field.press("Enter")

    def slider(self) -> Any:
        return self.page.get_by_label("range slider for Step", exact=True).locator("visible=true")

    def view(self, tab: str = "text") -> Any:
        return self.page.locator(f"#fp-{tab}-view")

    def wait(self, words: str, tab: str = "text") -> str:
        """Wait until the view of a tab shows these words; all that it shows."""
        self.view(tab).get_by_text(words).first.wait_for()
        return str(self.view(tab).inner_text())

    def finish(self, tab: str = "text") -> str:
        """Wait until a run goes on, and then until it is over; all that the view of the tab shows."""
        self.view(tab).locator("progress").wait_for()
        shown = self.wait("Finished.", tab)
        self.page.wait_for_timeout(1500)  # a button that is pressed before the run is quite over does nothing
        return shown

    def prompt(self) -> Any:
        return self.page.locator("#fp-prompt textarea")

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()


@pytest.fixture
def visitor(browser: Any, address: str) -> Iterator[Visitor]:
    found = Visitor(browser, address)
    yield found
    found.context.close()
    assert found.outside == []


def test_a_visitor_writes_from_a_prompt_and_steps_back_and_forth(visitor: Visitor) -> None:
    visitor.prompt().fill("the sea and")
    visitor.button("Write").click()
    shown = visitor.finish()
    assert "the sea and" in shown
    assert visitor.view().locator(".fp-token.fp-masked").count() == 0
    assert re.search(r"block evaluations\s+96 of 96", shown)
    assert "Relative residual of the solver" in visitor.view().inner_html()
    titles = [each.get_attribute("title") for each in visitor.view().locator(".fp-token").all()]
    assert any(re.search(r"written in step \d+ with probability [\d.]+ %", title) for title in titles)
    slider = visitor.slider()
    for key, step in (("ArrowLeft", 15), ("ArrowLeft", 14), ("ArrowRight", 15), ("Home", 0), ("End", 16)):
        slider.press(key)
        visitor.wait(f"You see step {step} of 16.")
        assert (visitor.view().locator(".fp-token.fp-masked").count() > 0) == (step < 16)


def test_blanks_are_filled_in_and_the_rest_stays(visitor: Visitor) -> None:
    visitor.page.get_by_label("Fill in the blanks").check()
    visitor.prompt().fill("the __ and the ___ oak")
    visitor.button("Write").click()
    shown = visitor.finish()
    assert re.search(r"the.*and the.*oak∎", shown, re.DOTALL)


def test_two_settings_are_compared_at_one_budget(visitor: Visitor) -> None:
    visitor.page.get_by_label("Compare with").check()
    visitor.choose("Model of B", "plain")
    visitor.choose("Which tokens come first of B", "masks some again")
    visitor.button("Write").click()
    shown = visitor.finish()
    assert visitor.view().locator(".fp-side").count() == 2
    assert len(re.findall(r"block evaluations\s+96 of 96", shown)) == 2
    assert len(re.findall(r"multiply-adds\s+[\d.]+ million", shown)) == 2
    assert len(re.findall(r"computing time\s+[\d.]+ s", shown)) == 2
    assert "plain: a plain stack has no solver" in shown


def test_a_class_of_images_is_drawn_cell_by_cell(visitor: Visitor) -> None:
    visitor.tab("Images")
    visitor.choose("Class", "star")
    visitor.button("Draw").click()
    visitor.view("images").locator("rect.fp-masked").first.wait_for()
    shown = visitor.wait("Finished.", "images")
    assert shown.count("star") == 8
    assert visitor.view("images").locator("image").count() == 8
    assert visitor.view("images").locator("rect.fp-masked").count() == 0
    visitor.slider().press("Home")
    visitor.wait("You see step 0 of", "images")
    assert visitor.view("images").locator("rect.fp-masked").count() == 8 * 16


def test_a_part_of_an_image_is_painted_over_and_drawn_anew(visitor: Visitor) -> None:
    visitor.tab("Images")
    visitor.set("Number of images", "1")
    visitor.button("Draw").click()
    visitor.finish("images")
    visitor.page.get_by_role("button", name="Draw a part of an image anew").click()
    visitor.button("Take the first image of the last run").click()
    canvas = visitor.page.locator("#fp-editor canvas").first
    canvas.wait_for()
    visitor.page.wait_for_timeout(2000)  # the editor says nothing when the image is there
    box = canvas.bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    visitor.page.mouse.move(middle[0] - 40, middle[1])
    visitor.page.mouse.down()
    visitor.page.mouse.move(middle[0] + 40, middle[1], steps=10)
    visitor.page.mouse.up()
    visitor.page.wait_for_timeout(1000)
    visitor.button("Fill in").click()
    visitor.finish("images")
    visitor.slider().press("Home")
    visitor.wait("You see step 0 of", "images")
    masked = visitor.view("images").locator("rect.fp-masked").count()
    assert 0 < masked < 16  # only what was painted


def test_an_over_long_prompt_is_refused_kindly_and_the_page_goes_on(visitor: Visitor) -> None:
    prompt = visitor.prompt()
    prompt.fill("oak " * 100)
    visitor.button("Write").click()
    words = re.compile(r"has 1?\d\d tokens; the model writes 40, so a prompt may have 38")
    visitor.view().get_by_text(words).wait_for()
    visitor.page.get_by_test_id("toast-text").get_by_text(words).wait_for()
    visitor.page.wait_for_timeout(1500)
    prompt.fill("the oak")
    visitor.button("Write").click()
    visitor.finish()


def test_two_visitors_at_once_wait_for_each_other_and_both_finish(browser: Any, address: str) -> None:
    visitors = [Visitor(browser, address), Visitor(browser, address)]
    for each in visitors:
        each.button("Write").click()
    for each in visitors:
        each.wait("Finished.")
        each.context.close()


def test_a_run_is_stopped_in_the_middle_and_can_be_looked_at(visitor: Visitor) -> None:
    visitor.set("Budget", "768")
    visitor.button("Write").click()
    visitor.page.wait_for_function("document.querySelector('#fp-text-view progress')?.value >= 2")
    visitor.button("Stop").click()
    shown = visitor.wait("Stopped after")
    assert re.search(r"Stopped after \d+ of 128 steps", shown)
    visitor.slider().press("Home")
    visitor.wait("You see step 0 of")
    visitor.set("Budget", "24")
    visitor.button("Write").click()
    visitor.finish()


def test_a_visitor_who_leaves_lets_the_next_one_run(browser: Any, address: str) -> None:
    first, second = Visitor(browser, address), Visitor(browser, address)
    first.set("Budget", "768")
    first.button("Write").click()
    first.view().locator("progress").wait_for()
    first.context.close()
    second.button("Write").click()
    second.finish()
    second.context.close()


def test_the_page_works_by_keyboard(visitor: Visitor) -> None:
    prompt = visitor.prompt()
    prompt.focus()
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.id") == "fp-write"
    visitor.page.keyboard.press("Enter")
    visitor.finish()
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.id") == "fp-stop-text"
    prompt.press("Shift+Enter")
    visitor.finish()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_its_colours_can_be_read(browser: Any, address: str, scheme: str) -> None:
    phone = Visitor(browser, address, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    phone.page.get_by_label("Compare with").check()
    phone.choose("Which tokens come first of B", "masks some again")
    phone.button("Write").click()
    phone.finish()
    assert phone.page.evaluate("document.documentElement.scrollWidth") == 390
    for kind in ("masked", "revealed", "remasked"):
        colours = phone.page.locator(f".fp-legend .fp-{kind}").first.evaluate(
            "each => [getComputedStyle(each).color, getComputedStyle(each).backgroundColor]"
        )
        assert contrast(*colours) >= 4.5, (scheme, kind, colours)
    phone.context.close()


def contrast(ink: str, paper: str) -> float:
    """The ratio by which accessibility guidelines judge two colours."""
    levels = []
    for colour in (ink, paper):
        parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
        levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    low, high = sorted(levels)
    return (high + 0.05) / (low + 0.05)


def test_measured_quality_says_that_nothing_was_measured(visitor: Visitor) -> None:
    visitor.tab("Measured quality")
    visitor.page.locator("#fp-measured").get_by_text("Nothing was measured of this model yet").wait_for()


def test_one_process_serves_the_page_and_the_endpoint(browser: Any, server_with_page: str) -> None:
    visitor = Visitor(browser, server_with_page)
    visitor.button("Write").click()
    visitor.finish()
    visitor.context.close()
    with urllib.request.urlopen(f"{server_with_page}/v1/models", timeout=60) as answer:
        assert [each["id"] for each in json.load(answer)["data"]] == ["solved"]


def test_the_python_of_the_page_on_the_demo_runs() -> None:
    """In a process of its own: gradio leaves event loops open, which is an error here."""
    [block] = [content for language, content in blocks(DOCS / "demo.md") if language == "python"]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


WAY = (0, "auto", "auto", 0, 1, 1, "model's own")
FORM = ("solved", "Continue the text", "the sea", 24, 0, *WAY, False, "plain", *WAY)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, "/etc/passwd", "Unknown model"),
        (2, "x" * 5000, "at most 4000"),
        (2, "oak " * 100, "a prompt may have 38"),
        (3, 100_000, "The budget is 100000; it must be 1 to 768."),
        (3, "many", "it must be a number"),
        (5, 100_000, "The number of steps is 100000; it must be 0 to 256."),
        (9, -1, "The temperature is -1; it must be 0 to 2."),
    ],
)
def test_a_request_made_by_hand_beyond_the_limits_is_refused(address: str, place: int, value: Any, words: str) -> None:
    """Whatever the page's form allows, the server checks it."""
    client = pytest.importorskip("gradio_client")
    form = [*FORM[:place], value, *FORM[place + 1 :]]
    begin = time.monotonic()
    with pytest.raises(client.exceptions.AppError, match=words):
        client.Client(address, verbose=False, analytics_enabled=False).predict(*form, api_name="/write")
    assert time.monotonic() - begin < 300


def test_a_request_made_by_hand_within_the_limits_is_answered(address: str) -> None:
    client = pytest.importorskip("gradio_client")
    view, *_ = client.Client(address, verbose=False, analytics_enabled=False).predict(*FORM, api_name="/write")
    assert "Finished." in view


def test_requests_beyond_the_queue_are_told_to_come_back(address: str) -> None:
    """Two may wait; of six at once some are refused, and the others are answered."""
    client = pytest.importorskip("gradio_client")
    clients = [client.Client(address, verbose=False, analytics_enabled=False) for _ in range(6)]
    jobs = [each.submit(*FORM, api_name="/write") for each in clients]
    errors = [job.exception(timeout=300) for job in jobs]
    assert None in errors
    refused = [str(error) for error in errors if error is not None]
    assert refused
    assert all("queue" in error.lower() for error in refused), refused

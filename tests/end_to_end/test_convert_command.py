"""`convert`, as its user types it; the hub is a server on this machine."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fpmgm
from fpmgm.__main__ import main
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model
from fpmgm.data.tokenizing import train_bpe
from fpmgm.denoiser import Denoiser
from fpmgm.evaluation.held_out import text_codec
from fpmgm.interop.layer_map import LayerMap
from tests.conftest import SMALL, Build
from tests.published import hub_config, hydra_config, mdlm_tensors, write_hub, write_lightning

CHANGES: dict[str, Any] = {"num_pre": 4, "num_fp": 0, "num_post": 0}


@pytest.fixture
def plain(text_model: Model, small_model: Build) -> Model:
    """A plain stack of 4 blocks with a tokenizer."""
    sizes = {name: getattr(text_model.config, name) for name in ("vocab_size", "mask_id", "length")}
    return replace(
        text_model, denoiser=small_model(**CHANGES, **sizes), config=replace(as_mdlm(text_model.config), **CHANGES)
    )


@pytest.fixture
def places(plain: Model, tmp_path: Path) -> dict[str, Path]:
    """The same model in every format, and the tokenizer."""
    plain.save(tmp_path / "ours")
    config = as_mdlm(plain.config)
    tensors = mdlm_tensors(plain.denoiser, config)
    doubled = mdlm_tensors(plain.denoiser, config, "backbone.backbone.")
    shadows = [tensor for name, tensor in tensors.items() if not name.endswith("inv_freq")]
    noisy = {name: tensor + ("inv_freq" not in name) for name, tensor in tensors.items()}
    average = {"decay": 0.9999, "num_updates": 9, "shadow_params": shadows}
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(text_codec(plain).content)
    return {
        "ours": tmp_path / "ours",
        "mdlm": write_hub(tmp_path / "mdlm", tensors, hub_config(config), text_codec(plain).content),
        "sdtt": write_hub(tmp_path / "sdtt", doubled, hydra_config(config)),
        "lightning": write_lightning(tmp_path / "x.ckpt", {"state_dict": noisy, "ema": average}, config),
        "tokenizer": tokenizer,
    }


def logits(denoiser: Denoiser) -> Tensor:
    z = torch.arange(24)[None] % denoiser.vocab_size
    with torch.no_grad():
        return denoiser.head(denoiser(z, 0.5, torch.ones_like(z, dtype=torch.bool)).features)


def arguments_for(places: dict[str, Path], format: str) -> list[str]:
    needs_tokenizer = format in ("sdtt", "lightning")
    return [str(places[format]), *(["--tokenizer", str(places["tokenizer"])] if needs_tokenizer else [])]


@pytest.mark.parametrize("format", ["ours", "mdlm", "sdtt", "lightning"])
def test_every_format_becomes_an_mdlm_with_its_logits_and_goes_back(
    places: dict[str, Path], plain: Model, tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, *options = arguments_for(places, format)
    assert main(["convert", source, str(tmp_path / "out"), "--map", "none", *options]) == 0
    model = fpmgm.load(tmp_path / "out")
    assert model.config == replace(as_mdlm(plain.config), dropout=as_mdlm(model.config).dropout)
    assert model.codec == plain.codec
    torch.testing.assert_close(logits(model.denoiser), logits(plain.denoiser), atol=1e-5, rtol=0)
    assert main(["convert", str(tmp_path / "out"), str(tmp_path / "back"), "--to", "mdlm"]) == 0
    assert main(["convert", str(tmp_path / "back"), str(tmp_path / "again"), "--map", "none"]) == 0
    again = fpmgm.load(tmp_path / "again").denoiser.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.denoiser.state_dict().items())
    assert "MDLM in the hub's naming" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["ours", "mdlm", "sdtt", "lightning"])
def test_every_format_becomes_an_fp_mdlm_that_writes(
    places: dict[str, Path], plain: Model, tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, *options = arguments_for(places, format)
    changes = ["--map", "1/2,3/4", "--a", "1", "--b", "0", "--injection", "linear"]
    assert main(["convert", source, str(tmp_path / "fp"), *changes, *options]) == 0
    model = fpmgm.load(tmp_path / "fp")
    expected = fpmgm.to_fixed_point(plain, LayerMap.parse("1/2,3/4"), a=1.0, b=0.0, injection="linear")
    found = model.denoiser.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.denoiser.state_dict().items())
    printed = capsys.readouterr().out
    for text in ("1/2/1", "1/2,3/4", "linear, exactly 1 h + 0 h_pre", "where adaptation starts"):
        assert text in printed
        assert text in model.card
    assert source in model.card
    assert len(fpmgm.generate(model, budget=24).texts) == 1


def test_the_default_map_is_first_middle_last_with_half_and_half(places: dict[str, Path], tmp_path: Path) -> None:
    assert main(["convert", str(places["ours"]), str(tmp_path / "fp")]) == 0
    assert "1/2/4. Injection: mlp, exactly 0.5 h + 0.5 h_pre" in (tmp_path / "fp" / "README.md").read_text()


def test_json_says_what_was_used(
    places: dict[str, Path], plain: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, *options = arguments_for(places, "lightning")
    assert main(["convert", source, str(tmp_path / "fp"), "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "Lightning checkpoint"
    assert report["weights"] == "moving average (EMA)"
    assert (report["source_blocks"], report["blocks"], report["layers"]) == ("4", "1/1/1", "1/2/4")
    assert report["source_parameters"] == sum(p.numel() for p in plain.denoiser.parameters())
    assert report["parameters"] == sum(p.numel() for p in fpmgm.load(tmp_path / "fp").denoiser.parameters())


def test_a_checkpoint_without_an_average_says_so(
    plain: Model, places: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = mdlm_tensors(plain.denoiser, as_mdlm(plain.config))
    file = write_lightning(tmp_path / "raw.ckpt", {"state_dict": tensors})
    options = ["--tokenizer", str(places["tokenizer"]), "--length", "24"]
    assert main(["convert", str(file), str(tmp_path / "out"), "--map", "none", *options]) == 0
    printed = capsys.readouterr().out
    assert "those of the last update: the file has no EMA" in printed
    assert "the source does not say, so as in MDLM: dropout 0.1, time_conditioning False" in printed


@pytest.mark.parametrize("can_be_had", [True, False])
def test_gpt2s_vocabulary_brings_its_tokenizer_if_that_can_be_had(
    small_model: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    can_be_had: bool,
) -> None:
    changes: dict[str, Any] = {**CHANGES, "num_pre": 2, "vocab_size": 50258, "mask_id": 50257, "width": 16}
    config = replace(SMALL, **changes)
    folder = write_hub(tmp_path / "hub", mdlm_tensors(small_model(**changes), config), hub_config(config))

    def fetch(name: str) -> Path:
        assert name == "gpt2"
        if not can_be_had:
            raise ConnectionError("no network")
        (tmp_path / "gpt2").write_text(gpt2_like())
        return tmp_path / "gpt2"

    monkeypatch.setattr("fpmgm.commands.convert_source.fetch", fetch)
    assert main(["convert", str(folder), str(tmp_path / "out"), "--map", "none"]) == 0
    model = fpmgm.load(tmp_path / "out")
    assert model.config.vocabulary.mask_id == 50257
    assert (model.codec is not None) == can_be_had
    said = "tokenizer gpt2, by the number of symbols" if can_be_had else "no tokenizer: gpt2 cannot be had now (no net"
    assert said in capsys.readouterr().out


def gpt2_like() -> str:
    """A tokenizer with as many symbols as GPT-2's."""
    from tokenizers import Tokenizer, models

    vocabulary = {f"w{index}": index for index in range(50256)} | {"<|endoftext|>": 50256}
    return Tokenizer(models.WordLevel(vocabulary, unk_token="w0")).to_str()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["OURS", "OURS"], "exists; give a folder that does not, so that nothing is lost"),
        (["MDLM", "CKPT"], "exists; give a folder that does not, so that nothing is lost"),
        (["NOWHERE", "OUT"], "no model at"),
        (["runs/last.ckpt", "OUT"], "no file at runs/last.ckpt"),
        (["OURS", "OUT", "--map", "1/6/12"], "names layer 6, 12, but the source has layers 1 to 4"),
        (["MDLM", "OUT", "--map", "1/2/5"], "names layer 5, but the source has layers 1 to 4"),
        (["OURS", "OUT", "--map", "1-6-12"], "the layer map is '1-6-12'; write pre/fixed-point/post layers"),
        (["OURS", "OUT", "--map", "0/1/2"], "names layer 0; layers count from 1"),
        (["OURS", "OUT", "--injection", "mpl"], "did you mean 'mlp'?"),
        (["OURS", "OUT", "--injection", "diagonal", "--a", "1"], "a is 1, and the injection diagonal always shrinks h"),
        (["OURS", "OUT", "--to", "mdml"], "unknown format 'mdml'; did you mean 'mdlm'?"),
        (["OURS", "OUT", "--to", "mdlm", "--map", "1/2/4"], "has no form in MDLM's naming; use --map none"),
        (["OURS", "OUT", "--map", "none", "--a", "1"], "a, b and injection are for fixed-point models"),
        (["OURS", "OUT", "--a", "nan"], "both must be finite"),
        (["OURS", "OUT", "--length", "3"], "length is given, but"),
        (["MDLM", "OUT", "--length", "3"], "you say that length is 3, but it is 24"),
        (["FP", "OUT"], "the source has a fixed point already"),
        (["FP", "OUT", "--to", "mdlm"], "a fixed-point model (1/1/1 blocks) has no form in MDLM's naming"),
        (["SDTT", "OUT"], "neither GPT-2's nor BERT's; give --tokenizer, or --mask-id"),
        (["SDTT", "OUT", "--tokenizer", "NOWHERE"], "give gpt2, bert or a tokenizer.json that exists"),
        (["SDTT", "OUT", "--tokenizer", "TEXT"], "the tokenizer cannot be read"),
        (["SDTT", "OUT", "--tokenizer", "TOKENIZER", "--mask-id", "3"], "symbols with the mask 3"),
        (["SDTT", "OUT", "--tokenizer", "OTHER"], "the tokenizer has 258 symbols with the mask 257, the model "),
        (["OURS", "OUT", "--tokenizer", "OTHER"], "the tokenizer has 258 symbols with the mask 257, the model "),
        (["SDTT", "OUT", "--mask-id", "999"], "mask_id is 999; it must be below vocab_size"),
        (["TEXT", "OUT"], "is no checkpoint: torch.save writes a zip, and this is none"),
        (["TRUNCATED", "OUT"], "is truncated: a zip without its end"),
        (["TRAP", "OUT"], "asks to run posix.mkdir when it is read; refused, and nothing ran"),
        (["MISSING", "OUT", "--tokenizer", "TOKENIZER"], "missing: blocks.2.norm1.weight; extra: blocks.2.norm.weight"),
        (["FOLDER", "OUT"], "it has no config.json; weights.pt is a pickle, and pickles are never read"),
    ],
)
def test_wrong_input_gets_one_line_and_exit_code_2_and_nothing_is_written(
    places: dict[str, Path],
    plain: Model,
    text_model: Model,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    words = {"CKPT": places["lightning"], **{name.upper(): place for name, place in places.items()}}
    words |= {name: tmp_path / name for name in ("OUT", "NOWHERE", "FP", "TEXT", "TRUNCATED", "TRAP", "MISSING")}
    words["FOLDER"] = tmp_path / "FOLDER"
    words["OTHER"] = tmp_path / "OTHER"
    write_bad_sources(words, plain, text_model)
    for reader in ("load_folder", "load_foreign"):  # what is wrong is found before any weight is read
        monkeypatch.setattr(f"fpmgm.commands.convert_source.{reader}", lambda *_: pytest.fail("weights were read"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["convert", *(str(words.get(word, word)) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "ran").exists()


def write_bad_sources(words: dict[str, Path], plain: Model, text_model: Model) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(words["TRAP"].parent / "ran"),)

    text_model.save(words["FP"])
    words["TEXT"].write_text("text")
    train_bpe(iter(["a"]), 258).save(str(words["OTHER"]))
    words["TRUNCATED"].write_bytes(words["CKPT"].read_bytes()[:-500])
    config = as_mdlm(plain.config)
    tensors = dict(mdlm_tensors(plain.denoiser, config))
    write_lightning(words["TRAP"], {"state_dict": tensors, "x": Trap()}, config)
    tensors["backbone.blocks.2.norm.weight"] = tensors.pop("backbone.blocks.2.norm1.weight")
    write_lightning(words["MISSING"], {"state_dict": tensors}, config)
    words["FOLDER"].mkdir()
    (words["FOLDER"] / "weights.pt").touch()


class Hub(ThreadingHTTPServer):
    """A repository with one branch, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(path)
        branch = "teacher_1M_sm"
        if path == f"/api/models/someone/sdtt/revision/{branch}":
            names = [{"rfilename": file.name} for file in self.server.folder.iterdir()]
            self.answer(json.dumps({"id": "someone/sdtt", "sha": "2" * 40, "siblings": names}).encode())
        elif path.startswith("/api/models/someone/sdtt/tree/"):
            files = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "3" * 40}
                for file in self.server.folder.iterdir()
            ]
            self.answer(json.dumps(files).encode())
        elif path.startswith(f"/someone/sdtt/resolve/{'2' * 40}/"):
            self.answer((self.server.folder / path.rsplit("/", 1)[1]).read_bytes())
        else:
            self.send_error(404)

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hash(body)}"')
        self.send_header("X-Repo-Commit", "2" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(places: dict[str, Path]) -> Iterator[Hub]:
    (places["sdtt"] / "training_state.bin").write_bytes(b"never fetched")
    server = Hub(places["sdtt"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_hub_id_with_a_branch_is_fetched_and_converted(
    hub: Hub, places: dict[str, Path], plain: Model, tmp_path: Path
) -> None:
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    out = tmp_path / "out"
    words = ["convert", "someone/sdtt@teacher_1M_sm", str(out), "--map", "none", "--tokenizer", places["tokenizer"]]
    command = [sys.executable, "-m", "fpmgm", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(logits(fpmgm.load(out).denoiser), logits(plain.denoiser), atol=1e-5, rtol=0)
    assert "someone/sdtt@teacher_1M_sm" in (out / "README.md").read_text()
    assert any("teacher_1M_sm" in path for path in hub.asked)
    assert not any(path.endswith(".bin") for path in hub.asked)

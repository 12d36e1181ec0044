"""The report of `fpmgm analyse MODEL`: it opens from disk, its JSON can be read back, and refusals are one line."""

import base64
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fpmgm.__main__ import main
from fpmgm.analysis.observed import observations
from fpmgm.analysis.report import Analysis, analysed, read_analysis
from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model
from tests.conftest import Build
from tests.images import small_image_model

TINY: dict[str, Any] = {
    "budget": 12,
    "steps": (2, 4),
    "num_iters": 1,
    "depth": 7,
    "tolerances": (0.3,),
    "num_samples": 2,
}
WORDS = ["--budget", "12", "--steps", "2", "4", "--num-iters", "1", "--depth", "7", "--tolerances", "0.3"]
WORDS += ["--num-samples", "2", "--num-sequences", "4"]
SOLVER = ["residuals", "movement", "starts", "tolerance"]


class Page(HTMLParser):
    """What a page loads, and which tags were left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        assert not {"href", "srcset"} & set(found)
        if tag == "img":
            self.images.append(found["src"] or "")
            assert found["alt"]
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def plain(text_model: Model, small_model: Build) -> Model:
    blocks: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0}
    config = replace(as_mdlm(text_model.config), **blocks)
    sizes = {"vocab_size": config.vocab_size, "mask_id": config.mask_id, "length": config.length}
    return replace(text_model, denoiser=small_model(**sizes, **blocks), config=config)


@pytest.mark.slow
def test_the_report_opens_from_disk_and_holds_every_figure_and_the_protocol(
    text_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "verse.txt").write_text("the sea and the sky and the old oak\n" * 60)
    text_model.save(tmp_path / "model")
    out = tmp_path / "out"
    command = ["analyse", str(tmp_path / "model"), *WORDS, "--data", str(tmp_path / "verse.txt"), "--out", str(out)]
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "residuals fall with each of the first 4 iterations" in printed
    assert f"wrote {out}/report.html and 20 files beside it" in printed
    text = (out / "report.html").read_text()
    page = Page(text)
    assert not page.open
    names = [*SOLVER, "lagged", "cka-layers", "cka-consecutive"]
    inside = [base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")) for source in page.images]
    assert inside == [(out / f"{name}.svg").read_bytes() for name in names]
    assert all((out / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    assert not re.search(r"https?://", text)
    for words in ("block evaluations", "<th>seed</th>", "<th>judge</th>", str(tmp_path / "model"), "<th>samples</th>"):
        assert words in text
    assert json.loads((out / "cka.json").read_text())["layers"][0] == "pre 1"
    for name in (*SOLVER, "lagged"):
        kept = json.loads((out / f"{name}.json").read_text())["found"]
        assert json.loads(json.dumps(asdict(read_analysis(out / f"{name}.json")))) == kept


@pytest.mark.slow
def test_analyses_of_guided_images_are_read_back_from_json_as_they_were(tmp_path: Path) -> None:
    replace(small_image_model(), generation={"defaults": {"cfg_weight": 0.5}}).save(tmp_path / "model")
    report = analysed(Analysis(model=str(tmp_path / "model"), out=str(tmp_path / "out"), **TINY))
    assert list(report.found) == [*SOLVER, "lagged"]
    again = {name: read_analysis(tmp_path / "out" / f"{name}.json") for name in report.found}
    assert again == report.found
    assert observations(again) == report.seen
    assert report.left_out[0].startswith("CKA: the model does not tell what it was trained on")
    assert "What is left out" in (tmp_path / "out" / "report.html").read_text()
    assert report.protocol["guidance weight"] == 0.5


def test_of_a_plain_stack_only_what_it_says_is_analysed_and_the_page_says_so(
    text_model: Model, small_model: Build, tmp_path: Path
) -> None:
    plain(text_model, small_model).save(tmp_path / "plain")
    text_model.save(tmp_path / "fp")
    asked = Analysis(model=str(tmp_path / "plain"), against=str(tmp_path / "fp"), out=str(tmp_path / "out"), **TINY)
    report = analysed(asked)
    assert list(report.found) == ["lagged"]
    assert "which solves nothing" in report.left_out[0]
    assert len(report.found["lagged"].reduction) == 2
    assert any("is lower than that of" in each.claim for each in report.seen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "2"], "a budget of 2 block evaluations is too small"),
        (["--steps", "1"], "steps is 1; it must be 2 to 1000000"),
        (["--num-samples", "1"], "num_samples is 1; it must be 2 to 1000000"),
        (["--tolerances", "0"], "a tolerance is 0, which nothing meets"),
        (["--depth", "1"], "depth is 1; it must be 2 to"),
        (["--depth", "6"], "depth is 6, and the sampler runs up to 6 iterations; give more than that"),
        (["--transition", "haltn"], "did you mean 'halton'"),
        (["--data", "nowhere.txt"], "no data at 'nowhere.txt'"),
        (["--split", "held-in"], "unknown split 'held-in'"),
        (["--against", "fashion"], "writes text and fashion image"),
        (["--out", __file__], "which is no folder; give one for the report"),
        (["report"], "unknown analysis 'report'"),
    ],
)
def test_wrong_input_gets_one_line_and_exit_code_2(
    text_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    text_model.save(tmp_path / "model")
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    assert main(["analyse", str(tmp_path / "model"), *arguments, *out]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "out").exists()


def test_models_that_draw_nothing_or_have_other_symbols_are_refused(
    text_model: Model, small_model: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model.save(tmp_path / "model")
    causal: dict[str, Any] = {"is_causal": True, "num_pre": 2, "num_fp": 0, "num_post": 0}
    config = replace(as_mdlm(text_model.config), **causal)
    sizes = {"vocab_size": config.vocab_size, "mask_id": config.mask_id, "length": config.length}
    replace(text_model, denoiser=small_model(**sizes, **causal), config=config).save(tmp_path / "judge")
    shorter: dict[str, Any] = {**sizes, "length": 16}
    short = replace(text_model, denoiser=small_model(**shorter), config=replace(as_mdlm(text_model.config), **shorter))
    short.save(tmp_path / "short")
    for words, message in (
        ([str(tmp_path / "judge")], "is causal, made to judge text; give a masked model"),
        ([str(tmp_path / "model"), "--against", str(tmp_path / "short")], "have other symbols or lengths"),
    ):
        assert main(["analyse", *words, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err

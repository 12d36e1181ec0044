"""The page on images: what is committed is found, and a small page with runs of two updates on digits."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm.__main__ import main
from fpmgm.backbones.classifier import ClassifierNetwork
from fpmgm.data.images import ImagesConfig
from fpmgm.data.pixels import PixelsConfig
from fpmgm.evaluation import sweep
from fpmgm.evaluation.rows import read_rows
from fpmgm.experiments.book import PARTS, README
from fpmgm.experiments.image_mini import failing, lines, pairs, sections, whole
from fpmgm.experiments.image_mini.lines import FP, FROM_START, SHAPES, STAGES, Line
from fpmgm.experiments.image_mini.page import ImagePage
from fpmgm.experiments.image_mini.quoted import FILE, quoted
from fpmgm.experiments.image_mini.tables import FINDINGS, not_here, without_missing
from fpmgm.experiments.report import FOUND, ROWS, Report
from fpmgm.experiments.reproduce import Reproduction
from fpmgm.recipes import RECIPES
from fpmgm.recipes.images import MINI
from fpmgm.training import loop
from fpmgm.training.loop import train
from tests.test_image_training import digits

COMMITTED = Path(__file__).parents[1] / "docs" / "results" / "image-mini"
SMALL: dict[str, Any] = {"updates": 2, "batch_size": 4, "validation_sequences": 8, "trackers": ()}
NAMES = ("fashion-fp", "fashion-maskgit", "fashion-maskgit-6", "fashion", "fashion-control", "fashion-from-start")


def forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: str) -> Callable[..., None]:
        return lambda *_: pytest.fail(words)

    monkeypatch.setattr(sweep, "measure_cell", fail("measured again"))
    monkeypatch.setattr(loop.Run, "update", fail("trained again"))
    monkeypatch.setattr(Report, "_keep", fail("found again"))


def test_the_committed_page_is_made_again_to_the_byte_without_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that is newer than the rows must leave the identity of a run alone where it has its default."""
    forbid_work(monkeypatch)
    folder = tmp_path / "page"
    shutil.copytree(COMMITTED, folder)
    page = whole.ImageMini(out=str(folder), runs=str(tmp_path / "runs")).page()
    whole.write_whole(page)
    for name in (README, PARTS, ROWS, FOUND):
        assert (folder / name).read_bytes() == (COMMITTED / name).read_bytes(), name


def test_every_row_and_all_else_that_is_committed_is_on_the_page(tmp_path: Path) -> None:
    page = ImagePage(folder=COMMITTED, runs=tmp_path)
    keys = {
        sweep.key_of(*job)
        for name, section in whole.SECTIONS.items()
        for table in section.tables(page)
        for job in page.jobs(name, table).values()
    }
    assert keys == page.row_keys()


def test_what_came_to_a_table_later_is_measured_only_if_its_section_is_named(tmp_path: Path) -> None:
    page = ImagePage(folder=tmp_path, runs=tmp_path)
    table = sections.inception_tables(page)[0]
    assert {budget for _, budget, _ in page.jobs("inception", table)} == {96}
    asked = replace(page, asked=("inception",))
    assert {budget for _, budget, _ in asked.jobs("inception", table)} == {24, 96}


def test_what_nobody_has_measured_has_no_column_and_no_line_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_work(monkeypatch)
    page = ImagePage(folder=COMMITTED, runs=tmp_path)
    table = sections.budgets_table(page)
    found = {key: dict(own) for key, own in page.measured("budgets", early(table)).items()}
    shown, words = without_missing("budgets", table, found)
    assert shown.late_budgets == ()
    assert words == "Not measured here: 120 blocks; 240 blocks. `fpmgm reproduce image-mini --only budgets` does it."
    key = table.lines[0].key
    found[key][120] = found[key][96]
    shown, words = without_missing("budgets", table, found)
    assert shown.late_budgets == (120,)
    assert "120" not in words
    late = table._replace(lines=(*table.lines, Line(lines.PLAIN_SHORT[0], "none", is_late=True)))
    shown, words = without_missing("budgets", late, {**found, late.lines[-1].key: {}})
    assert shown.lines == table.lines
    assert lines.PLAIN_SHORT[0].name in words


def early(table: lines.Table) -> lines.Table:
    """The table without what came to it later."""
    return table._replace(late_budgets=())


def test_a_run_that_several_sections_need_is_counted_once_in_the_sum(tmp_path: Path) -> None:
    page = ImagePage(folder=COMMITTED, runs=tmp_path, asked=("budgets", "pairs"))
    made: set[Path] = set()
    first, again = (whole.estimate(page, "pairs", made) for _ in range(2))
    assert first == whole.estimate(page, "pairs")
    assert again.training == 0 < first.training
    assert again.sampling == first.sampling


def test_sections_are_listed_and_nothing_is_left_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "image-mini", "--sections", "--out", str(COMMITTED)]) == 0
    found = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in found] == [*whole.SECTIONS, "all"]
    assert {words[1] for words in found} == {"0"}


def test_sizes_are_those_of_the_committed_page_and_other_reports_keep_their_own() -> None:
    asked = whole.ImageMini()
    sizes = f"--num-samples {asked.num_samples} --contest-samples {asked.contest_samples}"
    assert f"    fpmgm reproduce image-mini {sizes} \\\n" in (COMMITTED / README).read_text()
    assert Reproduction(report="injections").contest_samples == 86


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "mian"], "unknown section 'mian'; did you mean 'main'?"),
        (["--judge", ""], "give --judge"),
        (["--judge", "no-such-model"], "no-such-model"),
        (["--num-samples", "5"], "num_samples is 5"),
        (["--inception-samples", "-1"], "inception_samples is -1"),
        (["--seed", "-1"], "seed"),
        (["--convention", "published"], "--convention"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "image-mini", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert told in line


def test_every_quoted_table_of_images_has_as_many_cells_as_titles() -> None:
    for name, table in json.loads(FILE.read_text()).items():
        assert {len(row) for row in table["rows"]} == {len(table["header"])}, name
        assert "Quoted from the paper" in quoted(name)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImagePage:
    """Few lines of every table, of networks that are 16 wide."""
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    tokenizer = train(digits(tmp_path), "test", card_samples=1)
    judge = replace(
        RECIPES["fashion-classifier"],
        **SMALL,
        model=ClassifierNetwork(channels=8, num_stages=2),
        data=PixelsConfig(source="digits"),
        out=str(tmp_path / "judge"),
    )
    train(judge, "test", card_samples=1)
    data = ImagesConfig(source="digits", tokenizer=str(tokenizer), num_codes=16, grid=(2, 2))
    narrow = replace(MINI, width=16, num_heads=2, mlp_multiple=8)
    for name in NAMES:
        shape: Any = RECIPES[name].model
        model = replace(shape, width=16, num_heads=2, mlp_multiple=8)
        monkeypatch.setitem(RECIPES, name, replace(RECIPES[name], model=model, data=data, **SMALL))
    short = [replace(each, changes={**each.changes, "updates": 2}) for each in FROM_START[:1]]
    shapes = [replace(each, changes={"model": replace(narrow, num_pre=1, num_post=1)}) for each in SHAPES[:1]]
    for name, value in {
        "FROM_START": tuple(short),
        "SHAPES": tuple(shapes),
        "STAGES": STAGES[:1],
        "PLAIN_SHORT": (),
        "BUDGETS": (24,),
        "MORE_BUDGETS": (),
        "ABLATION_BUDGETS": (24,),
    }.items():
        monkeypatch.setattr(lines, name, value)
    monkeypatch.setattr(pairs, "BUDGETS", (24,))
    return ImagePage(
        folder=tmp_path / "page",
        runs=tmp_path / "runs",
        num_samples=10,
        num_rest=8,
        inception_samples=0,
        judge=str(tmp_path / "judge"),
        repeats=1,
    )


@pytest.mark.slow
def test_the_page_on_images_has_all_tables_and_measures_nothing_twice(
    page: ImagePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = whole.write_whole(page)
    text = file.read_text()
    for section in whole.SECTIONS.values():
        assert f"## {section.title}" in text
    assert f"| {FP.name} | three-state | 3 |" in text
    assert "no L_CONS, as many updates" in text
    assert "Not measured here. `fpmgm reproduce image-mini --only pairs` does it." in text
    assert FINDINGS in text
    for name in ("main.png", "real.png", "samples-0.png"):
        assert (page.folder / name).stat().st_size > 0
    rows = read_rows(page.folder / ROWS)
    (page.folder / FINDINGS).write_text("What holds.\n")
    shutil.rmtree(page.runs)
    with monkeypatch.context() as forbidden:
        forbid_work(forbidden)
        assert "What holds." in whole.write_whole(replace(page)).read_text()
    assert read_rows(page.folder / ROWS) == rows


@pytest.mark.slow
def test_pairs_are_measured_when_they_are_asked_for_and_only_once(
    page: ImagePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ((Line(FP, "three-state"), Line(FP, "none")), (Line(FP, "none"), Line(FP, "none")))
    assert [each.readings for each in pairs.compared(page, "pairs", own)] == [[], []]
    asked = replace(page, asked=("pairs",))
    other, same = pairs.compared(asked, "pairs", own)
    assert len(other.readings) == 1
    assert same.readings[0][1:] == (0, 0, 0)
    shutil.rmtree(page.runs)
    forbid_work(monkeypatch)
    assert pairs.compared(replace(page), "pairs", own) == [other, same]


@pytest.mark.slow
def test_failures_are_counted_when_they_are_asked_for(page: ImagePage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "LINES", (Line(FP, "none"),))
    assert failing.failures_part(page).text == not_here("failures")
    page.train([FP])
    asked = replace(page, asked=("failures",))
    text = failing.failures_part(asked).text
    assert "| real images |  | 10 |" in text
    assert "not measured" not in text.lower()


@pytest.mark.slow
def test_costs_of_networks_are_measured_when_they_are_asked_for(page: ImagePage) -> None:
    text = whole.write_whole(replace(page, asked=("speed",)), ["speed"]).read_text()
    assert "| MaskGIT, 12 blocks | " in text
    assert "Not measured here" not in text

"""The page of text-mini: sections, claims and costs, on networks that are 16 wide."""

import json
import math
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpmgm import recipes
from fpmgm.__main__ import main
from fpmgm.analysis.report import Analysis
from fpmgm.backbones.dit import Network
from fpmgm.data import assets
from fpmgm.data.text import TextConfig
from fpmgm.evaluation import sweep
from fpmgm.evaluation.intervals import Interval
from fpmgm.evaluation.rows import Row
from fpmgm.evaluation.tables import Noted
from fpmgm.evaluation.text import GENERATIVE
from fpmgm.experiments.book import PARTS, README, filled
from fpmgm.experiments.over_seeds import over_seeds
from fpmgm.experiments.parts import Part, Reading, Source
from fpmgm.experiments.report import FOUND, HISTORY
from fpmgm.experiments.reproduce import Reproduction
from fpmgm.experiments.text_mini import inside, others, whole
from fpmgm.experiments.text_mini.claims import CLAIMS, NOT_SHOWN, NOT_TRIED, SHOWN, Claim, claims_table, verdict
from fpmgm.experiments.text_mini.compared import jobs_of, paired
from fpmgm.experiments.text_mini.estimate import estimates, seconds_of_run
from fpmgm.experiments.text_mini.lines import MDLM, plain, staged
from fpmgm.experiments.text_mini.others import TASKS
from fpmgm.experiments.text_mini.page import Page, Sizes
from fpmgm.experiments.text_mini.quoted import FILE, quoted
from fpmgm.experiments.text_mini.whole import write_whole
from fpmgm.objectives import NextToken
from fpmgm.training import loop
from fpmgm.training.config import Training
from fpmgm.training.loop import train
from fpmgm.training.optim import OptimConfig
from fpmgm.training.watch import Watch
from tests.test_tables import sampled_row

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(600) for word in ("sea", "sky", "old oak"))
SMALL: dict[str, Any] = {
    "updates": 3,
    "batch_size": 4,
    "validation_sequences": 8,
    "validate_every": 3,
    "snapshot_every": 2,
    "trackers": (),
}
DEEP = Network(width=16, num_heads=2, num_pre=3, cond_width=8, dropout=0.0)
SHALLOW = replace(DEEP, num_pre=1, num_fp=1, num_post=1)
SIZES = Sizes(
    few=4,
    least=4,
    many=4,
    seeds=2,
    budgets=(6, 12),
    high=(6, 12, 18),
    pair=(9, 12),
    one=(12,),
    temperatures=(0.5, 1.0),
    steps=(1, 2, 4),
    iterations=(1, 4),
    stage=2,
    proxy=2,
    tenth=2,
    batch_size=2,
    mauve=8,
    questions=2,
    validation=8,
    real=8,
    shown=3,
    resamples=20,
    repeats=1,
    analysed=2,
    analysed_steps=(2, 4),
    depth=8,
)


COMMITTED = Path(__file__).parents[1] / "docs" / "results" / "text-mini"


def small_models(folder: Path) -> dict[str, Any]:
    """The base models, a judge, and the recipes of stories cut down to them."""
    folder.mkdir(exist_ok=True)
    (folder / "verse.txt").write_text(VERSE)
    data = TextConfig(source=str(folder / "verse.txt"), tokenizer="bpe-300", length=16)
    optim = OptimConfig(lr=1e-2, warmup=2, ema=0.9)
    base = Training(model=DEEP, data=data, optim=optim, **SMALL)
    causal = replace(base, model=replace(DEEP, is_causal=True), objective=NextToken())
    made = {
        name: str(train(replace(config, out=str(folder / name)), name, card_samples=1))
        for name, config in (("deep", base), ("shallow", replace(base, model=SHALLOW)), ("judge", causal))
    }
    own = {"stories-fp": made["shallow"], "stories-mdlm": made["deep"], "": ""}
    small: dict[str, Training] = {}
    for name, recipe in recipes.RECIPES.items():
        if name.startswith("stories") and name != "stories-judge":
            objective: Any = recipe.objective
            if getattr(objective, "teacher", None) in own:
                objective = replace(objective, teacher=own[objective.teacher])
            model = DEEP if getattr(recipe.model, "num_fp", 0) == 0 else SHALLOW
            changes = {"model": model, "data": data, "optim": optim, "objective": objective, **SMALL}
            changes |= {"init": own[recipe.init], "init_map": recipe.init_map and "1/2/3", "watch": Watch()}
            small[name] = replace(recipe, **changes)
    return {"judge": made["judge"], "recipes": small}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """A page of small models, with its questions."""
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    write_questions(tmp_path / "cache", monkeypatch)
    models = small_models(tmp_path / "models")
    for name, recipe in models["recipes"].items():
        monkeypatch.setitem(recipes.RECIPES, name, recipe)
    return Page(folder=tmp_path / "out", runs=tmp_path / "runs", judge=models["judge"], sizes=SIZES)


def write_questions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds some questions of every task."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assets.hub_answers.cache_clear()
    folder = cache / "assets" / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    for task in TASKS:
        question: dict[str, Any] = {"context": "the sea", "choices": ["and the sky", "old"], "gold": 1}
        if task == "lambada":
            question = {"context": "the sea and", "target": " the"}
        (folder / f"{task}.jsonl").write_text(2 * (json.dumps(question) + "\n"))


def reading(value: float, low: float, high: float, where: str = "24 blocks") -> Reading:
    return Reading(where, value, low, high)


BETTER = Claim(words="A is better than B", said="", section="main", reading="A / B")


def test_a_claim_is_shown_only_if_every_interval_lies_within_it() -> None:
    surely, hardly, worse = reading(0.8, 0.7, 0.9), reading(0.9, 0.8, 0.99), reading(1.2, 1.1, 1.3)
    unsure = reading(0.9, 0.8, 1.01)
    assert verdict(BETTER, [surely, hardly]) == (SHOWN, hardly)
    assert verdict(BETTER, [surely, unsure]) == (NOT_SHOWN, unsure)
    assert verdict(BETTER, [surely, worse, unsure]) == (NOT_SHOWN, worse)
    far, near = reading(0.2, 0.19, 0.21), reading(0.6, 0.55, 0.65, "192 blocks")
    assert verdict(BETTER, [far, near]) == (SHOWN, near)  # a ratio near 0 is nothing against the claim
    assert verdict(BETTER, []) == (NOT_TRIED, None)
    assert verdict(replace(BETTER, until=1), [surely, worse])[0] == SHOWN  # it is about the first budget only
    assert verdict(replace(BETTER, since=1), [surely, worse])[0] == NOT_SHOWN
    assert verdict(replace(BETTER, low=0.9, high=1.1), [reading(1.0, 0.95, 1.05)])[0] == SHOWN
    assert verdict(replace(BETTER, low=0.9, high=1.1), [surely])[0] == NOT_SHOWN
    apart = reading(math.nan, math.nan, math.nan)
    assert verdict(BETTER, [surely, apart]) == (NOT_SHOWN, apart)
    assert "no shared entropies" in str(verdict(BETTER, [apart]))


def test_the_same_claim_is_read_as_measured_and_on_the_frontier() -> None:
    part = Part(
        text="", readings={"A / B": [reading(0.5, 0.4, 0.6)]}, frontier={"A / B": [reading(1.0, 0.9, 1.1, "96 blocks")]}
    )
    alone = replace(BETTER, words="A is smaller", has_frontier=False)
    other = replace(BETTER, words="C is better", section="nucleus")
    lines = claims_table({"main": part}, (BETTER, alone, other)).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cell[2:4] for cell in cells] == [
        ["shown: 0.5 [0.4, 0.6] (24 blocks)", "not shown: 1 [0.9, 1.1] (96 blocks)"],
        ["shown: 0.5 [0.4, 0.6] (24 blocks)", "-"],
        ["not tried", "not tried"],
    ]


def test_every_claim_names_a_section_and_every_section_stands_for_something() -> None:
    assert {claim.section for claim in CLAIMS} <= set(whole.SECTIONS)
    assert all(section.of_paper and section.title for section in whole.SECTIONS.values())


def test_a_paired_ratio_forgives_what_both_lines_share_and_knows_training_runs() -> None:
    rng = np.random.default_rng(0)
    hard = 2 * rng.standard_normal((3, 40))  # some samples are hard for everybody
    ours, theirs = hard - 0.1 + 0.01 * rng.standard_normal((3, 40)), hard
    value, low, high = paired(ours, theirs, has_runs=False)
    assert low < value < high < -0.09
    runs = np.array([[-0.4], [0.0], [0.3]])  # training runs that differ more than samples do
    value, low, high = paired(ours + runs, theirs, has_runs=False)
    wide = paired(ours + runs, theirs, has_runs=True)
    assert wide[0] == value
    assert wide[1] < low < high < wide[2]


def test_the_page_fits_six_hours_of_two_cores_and_what_is_found_costs_nothing() -> None:
    page = Page(folder=Path("nowhere"), runs=Path("nowhere"))
    found = list(estimates(page, whole.SECTIONS))
    assert 2 * 60 < sum(each.minutes for each in found) / 2 < 6 * 60
    by_name = {each.section.name: each for each in found}
    assert by_name["reuse"].sampling == 0  # the samples are those of the components
    assert by_name["main"].cost_class == "hours"
    assert by_name["cka"].cost_class == "minutes"
    total, *corpora = whole.listed(page)[len(whole.SECTIONS) :]
    assert "6 are allowed" in total
    assert any("tokens" in line and "shapes" in line for line in corpora)  # what fresh networks read is told
    left = {
        each.section.name: each.minutes
        for each in estimates(replace(page, folder=COMMITTED), whole.SECTIONS, whole.read_parts(page))
    }
    assert left["main"] == left["mdlm-stages"] == left["plain"] == 0


def test_an_update_of_the_base_models_is_estimated_as_it_was_measured() -> None:
    names = ("stories-fp", "stories-mdlm")
    once = [replace(recipes.RECIPES[name], updates=1) for name in names]
    assert [seconds_of_run(each, "bfloat16") for each in once] == pytest.approx([0.29, 0.63])
    assert [seconds_of_run(each, "float32") for each in once] == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "mian"], "unknown section 'mian'; did you mean 'main'?"),
        (["--judge", ""], "give --judge"),
        (["--convention", "published"], "has only paper"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "text-mini", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]


def test_sections_are_listed_with_their_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "text-mini", "--sections"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.split()[0] != "corpus"] == [*whole.SECTIONS, "all"]


def test_every_quoted_table_has_as_many_cells_as_titles() -> None:
    for name, table in json.loads(FILE.read_text()).items():
        assert {len(row) for row in table["rows"]} == {len(table["header"])}, name
        assert "Quoted from the paper" in quoted(name)


def test_paragraphs_are_broken_and_tables_are_not() -> None:
    table = "| " + "a" * 200 + " |"
    text = "\n\n".join(["word " * 50, table, "* " + "item " * 40, "> " + "said " * 40, "    fpmgm reproduce"])
    broken = list(filled(text))
    assert broken[1] == table
    assert broken[4] == "    fpmgm reproduce"
    for block in (broken[0], broken[2], broken[3]):
        assert all(len(line) <= 120 for line in block.split("\n"))
    assert all(line.startswith("> ") for line in broken[3].split("\n"))


def test_a_cell_over_seeds_is_their_mean_and_what_their_intervals_span_and_of_one_seed_its_interval() -> None:
    def row(value: float) -> Row:
        metric = Interval(value=value, low=value - 1, high=value + 1)
        metrics = {GENERATIVE.name: metric, "entropy": Interval(value=4.0, low=3.9, high=4.1)}
        return replace(sampled_row(), metrics=metrics)

    assert over_seeds([row(10.0)], GENERATIVE.name) == Noted(value=10.0, low=9.0, high=11.0, note="(4.00)")
    both = over_seeds([row(10.0), row(16.0)], GENERATIVE.name)
    assert both == Noted(value=13.0, low=9.0, high=17.0, note="(4.00)")


def test_the_reports_with_settings_of_their_own_are_offered_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "text-minni"]) == 2
    assert "did you mean 'text-mini'?" in capsys.readouterr().err
    with pytest.raises(ValueError, match="text-mini has settings of its own; write fpmgm reproduce text-mini"):
        Reproduction(report="text-mini")


def files_of(page: Page) -> dict[str, bytes]:
    """The page and what it is made of, without the files that grow."""
    names = [README, PARTS, *(file.name for file in page.folder.glob("*.png"))]
    return {name: (page.folder / name).read_bytes() for name in names}


def forbid_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(loop.Run, "update", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(Page, "_keep", lambda *_: pytest.fail("found again"))
    monkeypatch.setattr(inside, "analysed", lambda *_: pytest.fail("analysed again"))


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_the_cells_of_the_committed_page_are_found_with_no_run_folder(compute: Any, tmp_path: Path) -> None:
    """A setting that is newer than the rows must leave the identity of a run alone where it has its default."""
    page = Page(folder=COMMITTED, runs=tmp_path, compute=compute)
    keys = page.row_keys()
    for name in ("main", "mdlm-stages"):
        for table in whole.SECTIONS[name].tables(page):
            assert all(page.has_row(job, keys) for own in jobs_of(page, table).values() for job in own)


def test_a_run_is_known_by_what_it_is_trained_with_and_not_by_its_place_or_rounding() -> None:
    stage = staged("FP-MDLM + L_CONS")
    usual = stage.identity(0)
    assert usual != stage.identity(1)
    assert [made.identity for made in stage.made(Path("here"))] == [made.identity for made in stage.made(Path("there"))]

    def changed(**changes: Any) -> str:
        return replace(stage, changes=changes).identity(0)

    assert changed(mixed_precision="no", checkpoint_every=7) == usual
    assert len({usual, changed(updates=7), changed(init="stories-mdlm"), changed(validate_every=7)}) == 4  # it may stop
    later = replace(stage, name="later", start=stage)
    first, other = later.identity(0), replace(later, start=replace(stage, changes={"updates": 7})).identity(0)
    assert len({usual, first, other}) == 3
    assert later.config(0, Path("runs/later-0")).init == "runs/fp-mdlm---l-cons-0/model"


def test_parts_of_another_precision_and_size_stay_and_those_of_another_seed_do_not(tmp_path: Path) -> None:
    settings = {"judge": "stories-source", "convention": "paper", "seed": 0, "compute": "bfloat16", "sizes": {"few": 7}}
    part = {"text": "as it was", "readings": {}, "frontier": {}}
    (tmp_path / PARTS).write_text(json.dumps({"settings": settings, "parts": {"main": part}}))
    page = Page(folder=tmp_path, runs=tmp_path)
    assert whole.read_parts(page) == {"main": Part(text="as it was")}
    assert whole.read_parts(replace(page, seed=1)) == {}


def test_a_part_tells_in_small_print_where_its_numbers_come_from() -> None:
    part = Part(text="", sources=(Source("bfloat16", "abc", "2 cores"), Source("float32", "abc", "4 cores")))
    assert part.measured == "<sub>Measured in bfloat16, commit abc, 2 cores; float32, commit abc, 4 cores.</sub>"
    assert Part.of(json.loads(json.dumps(part.as_json()))) == part
    assert Part(text="").measured == ""


def test_an_analysis_is_made_again_if_its_files_are_of_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(COMMITTED / "inside-base", tmp_path / "inside-base")
    shutil.copy(COMMITTED / FOUND, tmp_path)
    made = []

    def fake(asked: Analysis) -> None:
        made.append(asked.seed)
        file = Path(asked.out) / "lagged.json"
        told = json.loads(file.read_text())
        file.write_text(json.dumps({**told, "protocol": {**told["protocol"], "seed": asked.seed}}))

    monkeypatch.setattr(inside, "analysed", fake)
    for seed in (0, 1, 1, 0, 0):  # the first is committed
        inside.SECTIONS[1].run(Page(folder=tmp_path, runs=tmp_path, seed=seed))
    assert made == [1, 0]


def test_texts_of_the_precision_of_the_page_are_read_before_others_that_are_as_good(tmp_path: Path) -> None:
    page, line = Page(folder=tmp_path, runs=tmp_path), plain(MDLM)
    sampling = {**vars(others._at(page, line, 24)), "transition": "auto"}
    about = {**page.models(MDLM)[0].about, "sampling": sampling, "samples": 1}
    all_computes: tuple[Any, ...] = ("float32", "bfloat16", "int8")
    for compute in all_computes:
        page.kept("texts", {**about, "compute": compute}, partial(list, [compute]))
        assert others._texts(replace(page, compute=compute), line, 24, 1) == [compute]


def test_the_small_print_tells_no_precision_of_what_a_run_wrote_of_itself(tmp_path: Path) -> None:
    page = Page(folder=tmp_path, runs=tmp_path)
    page.kept(HISTORY, {}, dict)
    assert not page.sources
    page.kept("texts", {"compute": "bfloat16"}, list)
    assert {each.precision for each in page.sources} == {"bfloat16"}


def test_a_base_model_that_another_is_named_for_is_made_as_it_is_known() -> None:
    base = replace(MDLM, changes={"init": "stories-fp"})
    (make,) = base.models(Path("nowhere")).values()
    assert make() == base.made(Path("nowhere"))[0].model == "stories-fp"


@pytest.mark.slow
def test_a_page_whose_cells_are_found_is_written_with_no_run_folder(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("lagged", "initialised", "dynamics", "duration", "mauve", "validation", "samples")
    write_whole(page, names)
    before = files_of(page)
    shutil.rmtree(page.runs)
    forbid_work(monkeypatch)
    write_whole(replace(page, compute="bfloat16"), names)
    assert files_of(page) == before
    assert not page.runs.exists()


@pytest.mark.slow
def test_every_section_is_on_the_page_and_a_second_run_changes_no_byte(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_whole(page).read_text()
    for name, section in whole.SECTIONS.items():
        own = text.split(f'<a id="{name}"></a>')[1].split("<a id=")[0]
        assert f"## {section.title}\n" in own
        assert "\n| --- |" in own or "![" in own, name
        for picture in re.findall(r"!\[[^]]*\]\(([^)]*)\)", own):
            assert (page.folder / picture).stat().st_size > 0
    claims = [line for line in text.split("## The paper's claims")[1].split("## ")[0].splitlines() if "](#" in line]
    assert len(claims) == len(CLAIMS)
    assert not [line for line in claims if "| not tried" in line]
    before = files_of(page)
    forbid_work(monkeypatch)
    write_whole(replace(page))  # a new page, which knows nothing but its files
    assert files_of(page) == before


@pytest.mark.slow
def test_a_run_that_was_stopped_after_any_section_ends_with_the_same_page(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("cka", "adapted", "nucleus")
    short = {name: whole.SECTIONS[name] for name in names}
    monkeypatch.setattr(whole, "SECTIONS", short)
    write_whole(page)
    expected = files_of(page)
    for stop in range(1, len(names)):
        stopped = replace(page, folder=page.folder.with_name(f"stopped-{stop}"))
        write_whole(stopped, names[:stop])
        assert "## Not made yet" in (stopped.folder / README).read_text()
        write_whole(replace(stopped))
        assert files_of(stopped) == expected

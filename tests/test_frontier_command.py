"""The command frontier, on small models with a small judge."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpmgm
from fpmgm.__main__ import main
from fpmgm.checkpoint import Model, load
from fpmgm.evaluation import sweep
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.evaluator import evaluator_for
from fpmgm.evaluation.frontier import compare
from fpmgm.evaluation.frontier_asked import Frontiers
from fpmgm.evaluation.frontier_page import card_lines, store_report
from fpmgm.evaluation.frontiers import sampled_frontier
from fpmgm.evaluation.rows import read_rows
from tests.conftest import Build

WIDE = (0.3, 2.0)
TEXT = "the sea and the sky and the old oak\n" * 50


@pytest.fixture
def made(text_model: Model, small_model: Build, tmp_path: Path) -> Path:
    """A folder with the models `one`, `two` and `far`, a judge that finds colder samples likelier, and a text."""
    for known in (sweep.weights_of, sweep._loaded, sweep._samples):
        known.cache_clear()
    config = text_model.config
    shapes: dict[str, Any] = {
        "vocab_size": config.vocabulary.size,
        "mask_id": config.vocabulary.mask_id,
        "length": config.vocabulary.length,
    }
    text_model.save(tmp_path / "one")
    replace(text_model, denoiser=small_model(seed=2, **shapes)).save(tmp_path / "two")
    replace(text_model, denoiser=small_model(seed=2, std=0.25, **shapes)).save(tmp_path / "far")
    causal: dict[str, Any] = {"num_pre": 2, "num_fp": 0, "num_post": 0, "is_causal": True}
    network: Any = config
    judge = replace(
        text_model, config=replace(network, **causal), denoiser=small_model(seed=12, std=0.25, **shapes, **causal)
    )
    judge.save(tmp_path / "judge")
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def settings(made: Path, **changes: Any) -> dict[str, Any]:
    found = {"judge": str(made / "judge"), "budgets": (6,), "temperatures": (0.7, 1.0), "num_samples": 8, "data": ""}
    return {**found, "out": str(made / "out"), **changes}


def command(made: Path, models: Sequence[str] = ("one", "two"), **changes: Any) -> list[str]:
    words = ["frontier", *(str(made / name) for name in models)]
    for name, value in settings(made, **changes).items():
        words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value])]
    return words


def test_the_command_compares_models_at_equal_entropy_and_a_second_call_measures_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FPMGM_CACHE", str(made / "cache"))
    words = command(made, data=made / "text.txt")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second = found["pairs"]
    assert (first["model"], first["against"], first["budget"]) == ("one", "two", 6)
    assert first["low"] <= first["ratio"] <= first["high"]
    assert second["ratio"] == pytest.approx(1 / first["ratio"])
    assert first["entropies"][0] <= first["entropy_low"] < first["entropy_high"] <= first["entropies"][1]
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert row["sampling"]["precision"] == found["dtype"] == "float64"
        assert row["protocol"]["judged_by"] == "text"
        assert {"set_distinct_4", "overlap_4"} <= set(row["metrics"])
    assert found["real"]["band"][0] <= found["real"]["metrics"]["entropy"]["value"] <= found["real"]["band"][1]
    written = {file.name: file.read_bytes() for file in (made / "out").iterdir()}
    assert {"README.md", "frontier.json", "frontier.png", "frontier.svg", "frontier.jsonl", "real.jsonl"} <= set(
        written
    )
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("a cell was measured again"))
    assert main(words) == 0
    assert "at equal entropy" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in (made / "out").iterdir()} == written


def test_rows_hold_each_sample_and_rows_without_are_measured_again(made: Path) -> None:
    cells = Frontiers(models=(str(made / "one"),), **settings(made)).cells()
    evaluator = evaluator_for("text", judge=str(made / "judge"))
    protocol, file = sweep.Protocol(num_samples=8, evaluator=evaluator, keeps_samples=True), made / "rows.jsonl"
    rows = sweep.run_sweep(cells, protocol, file)
    for row in rows:
        assert len(row.per_sample["nats"]) == len(row.per_sample["entropy"]) == 8
        mean = np.mean([each for each in row.per_sample["nats"] if each is not None])
        assert row.metrics["perplexity_per_sample"].value == pytest.approx(np.exp(mean), rel=1e-3)
    old = [json.loads(line) for line in file.read_text().splitlines()]
    old[0].pop("per_sample")
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert sweep.run_sweep(cells, protocol, file)[0].per_sample == rows[0].per_sample
    assert [row.key for row in read_rows(file)] == [*(row.key for row in rows), rows[0].key]


def test_a_frontier_of_runs_takes_a_model_a_seed_and_others_are_compared_by_it(made: Path) -> None:
    line = f"runs={made / 'two'},{made / 'one'}"
    found = fpmgm.frontier([line, str(made / "one")], **settings(made, seeds=(0, 1), out=""))
    assert [row.model for row in found.rows[:4:2]] == [str(made / "two"), str(made / "one")]
    (pair,) = found.shown
    assert (pair.model, pair.against, pair.num_samples) == ("runs", "one", 16)
    assert pair.by_seed[1] == pytest.approx(1)  # the same model and seed
    assert pair.by_seed[0] != pytest.approx(1, abs=0.001)
    assert found.points[0].metrics["entropy"].value == pytest.approx(
        np.mean([row.metrics["entropy"].value for row in found.rows[0:4:2]])
    )


def test_a_frontier_in_memory_is_that_of_the_command(made: Path) -> None:
    evaluator = evaluator_for("text", judge=str(made / "judge"))
    ours, theirs = (
        sampled_frontier(load(made / name), evaluator, budget=6, temperatures=(0.7, 1.0), num_samples=8)
        for name in ("one", "two")
    )
    found = fpmgm.frontier([str(made / name) for name in ("one", "two")], **settings(made, out=""))
    assert compare(ours, theirs).ratio == found.pairs[0].ratio


def test_a_report_keeps_the_frontier_of_a_model_and_its_card_opens_with_it(made: Path) -> None:
    found = fpmgm.frontier([str(made / name) for name in ("one", "two")], **settings(made, out=""))
    (made / "report.json").write_text('{"validation": []}')
    (made / "README.md").write_text("# two\n\n## How\n\nso\n\n## Frontier\n\nan old one\n\n## 20 samples\n\nonce\n")
    store_report(made, found.as_json(), "two")
    report = json.loads((made / "report.json").read_text())
    assert report["validation"] == []
    card = "\n".join(card_lines(report))
    assert f"| two | one | 6 | {found.pairs[1].ratio:.2f} [" in card
    assert "| one | two |" not in card
    assert card_lines({"validation": []}) == []
    written = (made / "README.md").read_text()
    assert written == f"# two\n\n{card.rstrip()}\n\n## How\n\nso\n\n## 20 samples\n\nonce\n"
    store_report(made, found.as_json(), "two")
    assert (made / "README.md").read_text() == written
    with pytest.raises(ValueError, match=r"line is 'three', and the frontiers are those of one, two"):
        store_report(made, found.as_json(), "three")


def evaluation(made: Path, models: Sequence[str] = ("one", "two"), judge: str = "judge") -> list[str]:
    words = ["evaluate", *(str(made / name) for name in models), "--judge", judge and str(made / judge)]
    return [*words, "--data", "", "--budgets", "6", "--num-samples", "8"]


def test_evaluate_opens_with_the_frontier_unless_it_is_turned_off(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(evaluation(made)) == 0
    shown = capsys.readouterr().out
    assert 0 < shown.index("at equal entropy") < shown.index("samples a row")
    assert "one temperature each" not in shown
    assert main([*evaluation(made), "--no-frontier"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "in pairs" not in shown
    assert "Models are not compared at equal entropy here: --no-frontier was given." in shown


@pytest.mark.parametrize(("models", "judge"), [(["one"], "judge"), (["one", "two"], "")])
def test_evaluate_has_no_frontier_of_one_model_or_without_a_judge(
    made: Path, capsys: pytest.CaptureFixture[str], models: Sequence[str], judge: str
) -> None:
    assert main(evaluation(made, models, judge)) == 0
    told = capsys.readouterr()
    assert "equal entropy" not in told.out
    assert len([line for line in told.err.splitlines() if line.startswith("cell ")]) == len(models)


def test_evaluate_samples_the_points_of_temperature_one_once(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled, measure = [], sweep.measure_cell

    def counted(cell: Cell, protocol: sweep.Protocol) -> Any:
        sampled.append((Path(cell.model).name, cell.sampling.temperature))
        return measure(cell, protocol)

    monkeypatch.setattr(sweep, "measure_cell", counted)
    words = [*evaluation(made), "--out", str(made / "out"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    others = [(name, temperature) for name in ("one", "two") for temperature in (0.7, 0.8, 0.9, 1.1)]
    assert sampled == [("one", None), ("two", None), *others]
    rows = found["frontier"]["rows"]
    for own, point in zip(found["samples"], (rows[3], rows[8]), strict=True):
        assert (own["key"], own["metrics"]) == (point["key"], point["metrics"])
        assert "per_sample" not in own
    assert main(words) == 0
    assert len(sampled) == 10  # nothing is measured again


def test_evaluate_says_why_models_are_not_compared_at_equal_entropy(
    made: Path, text_model: Model, small_model: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    network: Any = text_model.config
    shapes: dict[str, Any] = {"vocab_size": network.vocab_size, "mask_id": network.mask_id, "length": 20}
    replace(text_model, config=replace(network, **shapes), denoiser=small_model(**shapes)).save(made / "short")
    assert main(evaluation(made, ["one", "short"])) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "write lengths of 24 and 20, so their entropies do not compare." in shown


def test_evaluate_shows_its_table_if_frontiers_share_no_entropies(
    made: Path, text_model: Model, small_model: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    network: Any = text_model.config
    shapes = {"vocab_size": network.vocab_size, "mask_id": network.mask_id, "length": network.length}
    replace(text_model, denoiser=small_model(seed=2, std=0.6, **shapes)).save(made / "farther")
    assert main(evaluation(made, ["one", "farther"])) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "No shared entropies: at 6 blocks one has" in shown
    assert "samples a row" in shown


def test_frontiers_are_swept_along_top_p_too(made: Path) -> None:
    found = fpmgm.frontier(
        str(made / "one"), **settings(made, out="", top_ps=(0.5, 1.0), temperatures=(0.7, 0.8, 0.9, 1.0, 1.1))
    )
    assert [(row.sampling.top_p, row.sampling.temperature) for row in found.rows] == [(0.5, 1.0), (1.0, 1.0)]
    assert not found.pairs


def refused(made: Path, capsys: pytest.CaptureFixture[str], models: Sequence[str], **changes: Any) -> str:
    """The one line that a command is refused with."""
    assert main(command(made, models, **changes)) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("cell ")]
    assert len(lines) == 1
    return lines[0]


def test_frontiers_that_share_no_entropies_are_named_with_both_ranges(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(made, capsys, ["one", "far"])
    assert "no two frontiers share 0.01 nats of entropy or more: at 6 blocks one has 2.91 to 3.05 and far 2." in line


def test_a_pair_that_shares_nothing_stands_beside_pairs_that_do(made: Path) -> None:
    found = fpmgm.frontier([str(made / name) for name in ("one", "two", "far")], **settings(made))
    near, apart = found.shown[:2]
    assert near.ratio is not None
    assert (apart.against, apart.ratio, apart.entropy_low) == ("far", None, None)
    assert apart.entropies[0] > apart.against_entropies[1]
    assert "No shared entropies: at 6 blocks one has 2.91" in (made / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("models", "changes", "words"),
    [
        (["one", "one"], {}, "give each of them once"),
        (["one"], {"temperatures": (1.0,)}, "there is 1 point on a frontier; give at least two temperatures"),
        (["one"], {"temperatures": (1.0, -1.0)}, "temperature is -1.0"),
        (["one"], {"top_ps": (0.5, 2.0), "temperatures": (0.7, 0.8, 0.9, 1.0, 1.1)}, "top_p is 2.0"),
        (["one"], {"top_ps": (0.5, 0.9)}, "temperatures and top_ps are both given"),
        (["one"], {"judge": ""}, "give --judge"),
        (["one"], {"transitions": ("halton", "halton")}, "give each of them once"),
        (["one"], {"budgets": (2,)}, "smallest feasible budget is 3"),
        (["one"], {"num_samples": 1}, "an interval needs at least 2"),
        (["one"], {"data": "auto"}, "does not tell what it was trained on"),
        (["a=one,two"], {}, "has 2 models and there are 1 seeds"),
        (["=one"], {}, "write NAME=MODEL,MODEL"),
        (["nowhere"], {}, "nowhere"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_sampled(
    made: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    models: Sequence[str],
    changes: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("something was sampled"))
    monkeypatch.chdir(made)
    given = [str(word) for word in command(Path(), models, **{"judge": made / "judge", "out": made / "out", **changes})]
    assert main(given) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert words in lines[0]


def test_models_of_other_symbols_or_lengths_are_refused(
    made: Path, text_model: Model, small_model: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    network: Any = text_model.config
    shapes: dict[str, Any] = {"vocab_size": network.vocab_size, "mask_id": network.mask_id, "length": 20}
    short = replace(text_model, config=replace(network, **shapes), denoiser=small_model(**shapes))
    short.save(made / "short")
    assert "write lengths of 24 and 20, so their entropies do not compare" in refused(made, capsys, ["one", "short"])
    words = ["frontier", str(made / "one"), "fashion", "--judge", str(made / "judge")]
    assert main(words) == 2
    assert "nothing measures both" in capsys.readouterr().err


def test_a_judge_of_exact_ids_refuses_a_model_of_other_symbols(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpmgm.evaluation import judges, text

    def ids_only(name: str, device: str) -> judges.Judge:
        return judges.Judge(name=name, read=lambda texts: [], read_ids=lambda content, rows: None, reads_text=False)

    monkeypatch.setattr("fpmgm.evaluation.stories_judge.load_stories_judge", ids_only)
    monkeypatch.setattr(sweep, "measure_cell", lambda *_: pytest.fail("something was sampled"))
    text._judge.cache_clear()
    line = refused(made, capsys, ["one"], judge=judges.STORIES_IDS)
    text._judge.cache_clear()
    assert "reads only models that write the source's own ids" in line


def test_each_of_several_transitions_is_a_frontier_of_every_model(made: Path) -> None:
    rules: tuple[Any, ...] = ("ancestral", "halton")
    found = fpmgm.frontier(
        [str(made / "one"), str(made / "two")], **settings(made, transitions=rules, temperatures=WIDE)
    )
    lines = ["one (ancestral)", "one (halton)", "two (ancestral)", "two (halton)"]
    assert [point.model for point in found.points[::2]] == lines
    assert [row.sampling.transition for row in found.rows[::2]] == [*rules, *rules]
    alone = fpmgm.frontier(
        [str(made / "one"), str(made / "two")], **settings(made, transitions=("halton",), temperatures=WIDE, out="")
    )
    assert [row.metrics for row in alone.rows] == [row.metrics for row in (*found.rows[2:4], *found.rows[6:])]
    page = " ".join((made / "out" / "README.md").read_text().split())
    assert "--transitions ancestral halton" in page
    assert "`ancestral` in one (ancestral), two (ancestral); `halton` in one (halton), two (halton)" in page


def test_a_page_says_by_which_rule_each_model_reveals_tokens_of_itself(made: Path) -> None:
    (made / "two" / "generation_config.json").write_text('{"defaults": {"transition": "halton"}}')
    models = [str(made / "one"), str(made / "two")]
    page = made / "out" / "README.md"
    fpmgm.frontier(models, **settings(made, temperatures=WIDE))
    assert "steps reveal tokens are `ancestral` in one; `halton` in two." in " ".join(page.read_text().split())
    fpmgm.frontier(models, **settings(made, temperatures=WIDE, transitions=("ancestral",)))
    assert "by which steps reveal tokens is `ancestral`" in " ".join(page.read_text().split())


def test_draws_in_float32_stand_in_rows_of_their_own(made: Path) -> None:
    found = fpmgm.frontier(str(made / "one"), **settings(made, out=""))
    low = fpmgm.frontier(str(made / "one"), **settings(made, out="", dtype="float32"))
    assert {row.sampling.precision for row in low.rows} == {"float32"}
    assert {row.key for row in found.rows}.isdisjoint(row.key for row in low.rows)
    assert low.as_json()["dtype"] == "float32"


def test_networks_that_compute_in_bfloat16_stand_in_rows_of_their_own(made: Path) -> None:
    found = fpmgm.frontier(str(made / "one"), **settings(made, out=""))
    low = fpmgm.frontier(str(made / "one"), **settings(made, out="", compute="bfloat16"))
    assert {row.protocol.dtype for row in found.rows} == {"float32"}
    assert {row.protocol.dtype for row in low.rows} == {"bfloat16"}
    assert {row.key for row in found.rows}.isdisjoint(row.key for row in low.rows)
    assert low.as_json()["compute"] == "bfloat16"

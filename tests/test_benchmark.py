"""The benchmark command and what it measures with. No test is timed: contestants do nothing, or differ in kind."""

import json
from pathlib import Path

import pytest

from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.evaluation.latency import Timing, in_fresh_process, interleave, peak_bytes
from fpmgm.experiments.workloads import expected_multiply_adds
from tests.conftest import SMALL


def test_contestants_take_turns_and_places_and_the_first_round_is_not_counted() -> None:
    turns: list[str] = []
    timings = interleave({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, repeats=3)
    assert turns == ["a", "b", "b", "a"] * 2
    assert all(len(timing.rounds) == 3 for timing in timings.values())
    with pytest.raises(ValueError, match="repeats is 0; at least 1 is needed"):
        interleave({"a": list}, 0)
    with pytest.raises(ValueError, match="nobody to time"):
        interleave({})


def test_a_ratio_is_taken_within_rounds_so_that_a_slow_round_cancels() -> None:
    fast, slow = Timing((1.0, 10.0, 1.0, 11.0)), Timing((2.0, 20.0, 2.0, 22.0))
    assert slow.against(fast) == 2
    assert slow.over(2) == fast
    assert str(fast) == "5.50 s (1.00 to 11.00)"


def hold(num_bytes: int) -> int:
    held = []
    return peak_bytes(lambda: held.append(bytearray(b"\1") * num_bytes))


@pytest.mark.slow
def test_the_peak_of_a_fresh_process_is_what_was_held_in_it() -> None:
    found = in_fresh_process("tests.test_benchmark", "hold", 80_000_000)
    assert found == pytest.approx(80_000_000, rel=0.1)
    with pytest.raises(RuntimeError, match=r"OverflowError|MemoryError|TypeError"):
        in_fresh_process("tests.test_benchmark", "hold", "much")


def test_expected_multiply_adds_are_those_of_an_even_reveal() -> None:
    expected = sum(SMALL.multiply_adds(num_iters=num, num_positions=4) for num in (3, 2, 2, 1))
    assert expected_multiply_adds(SMALL, (3, 2, 2, 1)) == pytest.approx(expected)
    between = [sum(SMALL.multiply_adds(num_iters=1, num_positions=n) for _ in range(3)) for n in (5, 6)]
    assert between[0] < expected_multiply_adds(SMALL, (1, 1, 1)) < between[1]


@pytest.mark.slow
def test_the_benchmark_command_measures_models_side_by_side(
    text_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_model.save(tmp_path / "model")
    command = ["benchmark", str(tmp_path / "model"), "--budget", "12", "--repeats", "1", "--batch-size", "2"]
    assert main([*command, "--train", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["rows"]
    assert (row["block_evals"], row["steps"], row["ratio"], row["update_ratio"]) == (12, 2, 1, 1)
    assert row["update_seconds"]["median"] > 0
    assert row["peak_bytes"] >= 0
    assert found["provenance"]["hardware"]
    assert main([*command, "--train"]) == 0
    assert capsys.readouterr().out.count("update") == 2  # their seconds and their ratio
    assert main([*command[:2], "--budget", "2"]) == 2
    assert "smallest feasible budget is 3" in capsys.readouterr().err

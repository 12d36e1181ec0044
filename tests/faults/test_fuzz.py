"""Wrong command lines and damaged files end in one line and an exit code, whatever they are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str) -> str:
    """Run the fuzzer in a fresh process, where nothing checks types; what it printed, after it found no failure."""
    command = [sys.executable, "-m", "tests.faults.fuzz", *arguments]
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-20_000:]
    print(done.stdout)
    return done.stdout


def test_some_wrong_inputs_end_in_one_line() -> None:
    """All kinds but run folders, which take longest."""
    printed = fuzz("--cases", "30", "--seed", "1", "--leave-out", "run-folder")
    assert re.search(r"^\d+ cases, 0 failures", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", [0, 1000])
def test_two_thousand_wrong_inputs_end_in_one_line(first: int) -> None:
    """In two halves, so that two processes can share them."""
    printed = fuzz("--first", str(first), "--cases", "1000")
    assert re.search(r"^1000 cases, 0 failures", printed, re.MULTILINE)

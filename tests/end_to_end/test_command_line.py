"""The commands, as their user types them."""

import re
from pathlib import Path
from typing import Any

import pytest

from fpmgm import __version__
from fpmgm.__main__ import main

ROOT = Path(__file__).parents[2]


def test_quickstart_trains_samples_and_prints_its_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    code = main(["quickstart", "--updates", "3", "--num-samples", "4", "--svg", str(picture)])
    printed = capsys.readouterr().out
    assert code == 0
    assert "Trained 3 updates" in printed
    for budget in (6, 24, 72):
        assert re.search(rf"{budget} .* {budget} ", printed)
    assert picture.read_text().startswith("<svg")
    assert "font-face" not in picture.read_text()  # it loads nothing from elsewhere


@pytest.mark.slow
def test_quickstart_learns_and_a_larger_budget_writes_more_coherent_sentences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["quickstart", "--num-samples", "256"]) == 0
    shares = [float(share) for share in re.findall(r"(\d+\.\d)% │ +\d+\.\d%", capsys.readouterr().out)]
    assert len(shares) == 3
    assert shares[0] < 5
    assert shares[0] + 15 < shares[1]
    assert shares[1] + 15 < shares[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quikstart"], "unknown command 'quikstart'; did you mean 'quickstart'?"),
        (["quickstart", "--update", "3"], "--update, 3; did you mean --updates?"),
        (["quickstart", "--updates", "many"], "--updates: invalid literal for int() with base 10: 'many'"),
        (["quickstart", "--updates", "0"], "updates is 0"),
        (["quickstart", "--svg", "/no/such/folder/x.svg"], "svg is /no/such/folder/x.svg; its folder does not exist"),
    ],
)
def test_wrong_input_gets_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_help_lists_the_commands_and_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "quickstart" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fpmgm {__version__}\n"


def test_the_python_of_the_readme_runs() -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        scope: dict[str, Any] = {}
        exec(block, scope)
        assert scope["out"].block_evals.tolist() == [96, 96]
        assert not (scope["out"].z == scope["model"].mask_id).any()


def test_the_readme_opens_with_exactly_two_commands_and_ci_runs_the_second() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^\./run .*", readme, flags=re.MULTILINE)
    assert [command.split("#")[0].split() for command in commands[:2]] == [["./run", "quickstart"], ["./run", "test"]]
    assert 'run" test' in (ROOT / ".ci" / "run").read_text()

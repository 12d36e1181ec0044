"""Full-size reproductions: their commands can be parsed, their plan has costs, and stages run in order and once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpmgm import __main__
from fpmgm.__main__ import main
from fpmgm.experiments import full_size
from fpmgm.experiments.full_size import FULL_SIZE, FullSize, Line, Stage, command_of, missing, planned, run_stages
from fpmgm.experiments.plan import Asked, plan_of
from fpmgm.recipes import RECIPES


@pytest.mark.parametrize("report", FULL_SIZE)
def test_every_command_of_a_full_size_reproduction_is_one_that_the_command_line_takes(
    report: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed: list[Any] = []
    parse = __main__._parse

    class ParsedError(Exception):
        """Instead of what the command would do."""

    def only_parse(*given: Any, **options: Any) -> None:
        parsed.append(parse(*given, **options))
        raise ParsedError

    monkeypatch.setattr(__main__, "_parse", only_parse)
    asked = FullSize(report=report)
    for stage in FULL_SIZE[report].stages:
        words = command_of(stage, asked)
        main(words[words.index("fpmgm") + 1 :])
        assert "unexpected ParsedError" in capsys.readouterr().err, stage.name
        if stage.trains:
            assert parsed[-1].mixed_precision == "bf16"
            assert stage.trains in RECIPES
    assert len(parsed) == len(FULL_SIZE[report].stages)


def test_the_plan_of_owt_has_hours_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(FULL_SIZE, "owt", replace(FULL_SIZE["owt"], micro_batch=1, packages=("no_such_package",)))
    monkeypatch.setattr(full_size, "hub_answers", lambda: False)
    monkeypatch.setattr(full_size, "run_stages", lambda *_: pytest.fail("run"))
    monkeypatch.chdir(tmp_path)
    plan = planned(FullSize(report="owt"))
    lines = {line.name: line for line in plan}
    assert lines["train owt-mdlm"].hours == pytest.approx(139, rel=1e-6)
    assert lines["frontier"].hours is not None
    assert lines["data"].hours is None
    found = list(missing(FullSize(report="owt"), plan))
    assert not any(line.startswith("memory") for line in found)
    assert any("8 of H200 are planned for, and 0 are here" in line for line in found)
    assert "package: no_such_package is not installed" in found
    assert any("the hub does not answer" in line for line in found)
    assert main(["reproduce", "owt", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "accelerate launch --num_processes 8 -m fpmgm train owt --mixed-precision bf16" in out
    assert main(["reproduce", "owt"]) == 1
    assert "owt cannot be run here" in capsys.readouterr().err
    assert main(["reproduce", "owt", "--hardware", "2xcpu"]) == 2


def test_stages_run_in_order_and_a_done_stage_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stages = tuple(
        Stage(name=name, command=command) for name, command in (("one", ("--version",)), ("two", ("no-such-command",)))
    )
    monkeypatch.setitem(FULL_SIZE, "owt", replace(FULL_SIZE["owt"], stages=stages))
    asked = FullSize(report="owt", hardware="1xH200", out=str(tmp_path))
    for num_versions in (1, 0):  # the second time only the stage that failed is run
        with pytest.raises(OSError, match="the stage 'two' ended with exit code 2"):
            run_stages(asked)
        printed = capfd.readouterr()
        assert printed.out.count("fpmgm ") == num_versions
        assert "unknown command 'no-such-command'" in printed.err
    monkeypatch.setitem(FULL_SIZE, "owt", replace(FULL_SIZE["owt"], stages=stages[:1]))
    run_stages(asked)
    assert [line.is_done for line in planned(asked)] == [True]


def test_a_stage_that_needs_more_memory_than_a_device_has_is_missing() -> None:
    asked = FullSize(report="imagenette")
    needs = {"train large": 94.2, "train small": 54.2, "data": None}
    lines = [Line(name=name, command="", hours=None, gib=gib, is_done=False) for name, gib in needs.items()]
    (found,) = [line for line in missing(asked, lines) if line.startswith("memory")]
    assert found.startswith("memory: train large needs 94.2 GiB of a device, and A100 has 74.5 (--hardware")
    assert not [line for line in missing(replace(asked, hardware="1xH200"), lines) if line.startswith("memory")]


def test_maskgit_large_fits_the_device_that_the_paper_used() -> None:
    (side,) = plan_of(Asked(recipe="imagenette-maskgit-large", hardware="1xA100", against="")).sides
    assert (side.batch_size, side.micro_batch, side.fits) == (128, 64, True)


def test_the_recipes_of_imagenette_cut_off_the_initial_state_as_the_code_of_fpdm_does() -> None:
    objectives: list[Any] = [
        recipe.objective for name, recipe in RECIPES.items() if name.startswith("imagenette") and "token" not in name
    ]
    assert [getattr(each, "base", each).gradient for each in objectives] == ["sjfb-cut"] * 4

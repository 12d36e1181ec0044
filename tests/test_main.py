"""How the command line ends: exit codes and the one line that says what went wrong."""

import os
from pathlib import Path

import pytest

from fpmgm import __main__
from fpmgm.__main__ import main


def end_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The exit code of a command that raises this."""

    def fail(arguments: object) -> None:
        raise error

    monkeypatch.setitem(__main__.COMMANDS, "info", fail)
    return main(["info"])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("width is 0"), 2, "fpmgm: width is 0"),
        (ValueError("two\nlines"), 2, "fpmgm: two lines"),
        (OSError("no disk"), 1, "fpmgm: no disk"),
        (FloatingPointError("nan"), 1, "fpmgm: nan"),
        (KeyboardInterrupt(), 130, "fpmgm: interrupted"),
        (MemoryError(), 1, "fpmgm: there is not enough memory for this; ask for less"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "fpmgm: there is not enough memory for this"),
        (KeyError("steps"), 1, "fpmgm: unexpected KeyError: 'steps'; set FPMGM_DEBUG=1 for the traceback and please"),
        (RecursionError("deep\ndown"), 1, "fpmgm: unexpected RecursionError: deep down; set FPMGM_DEBUG=1"),
    ],
)
def test_every_error_ends_in_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    monkeypatch.delenv("FPMGM_DEBUG", raising=False)
    assert end_with(monkeypatch, error) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith(line)


@pytest.mark.parametrize("error", [KeyError("steps"), ValueError("width is 0"), KeyboardInterrupt()])
def test_fpmgm_debug_shows_the_traceback_of_every_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    monkeypatch.setenv("FPMGM_DEBUG", "1")
    end_with(monkeypatch, error)
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert printed.splitlines()[-1].startswith("fpmgm: ")


def test_the_exit_code_of_a_command_that_ends_by_itself_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as stop:
        end_with(monkeypatch, SystemExit(143))
    assert stop.value.code == 143


def test_an_argument_that_is_not_utf8_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--prompt", os.fsdecode(b"caf\xe9")]) == 2
    assert capsys.readouterr().err == "fpmgm: argument 3 is 'caf\\udce9', which is not UTF-8 text\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["benchmark", "--length", "-1"], "length is -1; it must be 0 to 65536"),
        (["benchmark", "--batch-size", "1000000000"], "batch_size is 1000000000; it must be 1 to 65536"),
        (["train", "poetry", "--model.num-heads", "0"], "num_heads is 0; it must be 1 to 4096"),
        (["train", "poetry", "--model.width", "0"], "width is 0; it must be 2 to 65536"),
        (["train", "poetry", "--model.width", "1000000000000"], "width is 1000000000000; it must be 2 to 65536"),
        (["train", "poetry", "--model.num-pre", "100000"], "num_pre is 100000; it must be 0 to 1000"),
        (["train", "poetry", "--micro-batch-size", "-1"], "micro_batch_size is -1; it must be at least 0"),
        (["train", "poetry-sdtt", "--objective.rounds", "1000000000"], "rounds is 1000000000; it must be 1 to 64"),
        (["train", "poetry", "--data.tokenizer", "bpe-99999999999"], "byte-level BPE has 258 to 1048576 symbols"),
        (["sample", "--budget", "1000000000000"], "a budget of 1000000000000 block evaluations is beyond reason"),
        (["sample", "--num-samples", "1000000000000"], "num_samples is 1000000000000; it must be 1 to 1000000"),
        (["sample", "--tolerance", "nan"], "tolerance is nan; it must be a number, 0 or more"),
        (["evaluate", "--num-samples", "1000000000"], "num_samples is 1000000000; it must be 2 to 1000000"),
        (["quickstart", "--num-samples", "1000000000"], "num_samples is 1000000000; it must be 1 to 1000000"),
    ],
)
def test_numbers_beyond_reason_are_refused_with_their_limits(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_pushed_because_nothing_answers_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("HF_TOKEN", "nobody")
    assert main(["push", "stories-fp", "owner/name"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("fpmgm: the hub does not give a place to owner/name: ")
    assert printed.count("\n") == 1

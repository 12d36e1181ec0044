import io
import sys
from dataclasses import dataclass

import pytest

from fpmgm import progress
from fpmgm.progress import Progress, StepProgress, tracked


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_work_that_is_soon_done_shows_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("tokenising", 10, unit="MB", patience=3.0) as shown:
        for megabytes in range(11):
            clock.now = megabytes * 0.2
            shown.reach(megabytes)
    assert capsys.readouterr().err == ""


def test_long_work_shows_a_line_now_and_then_in_a_pipe(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("tokenising a.txt", 100, unit="MB", patience=3.0) as shown:
        for megabytes in range(101):
            clock.now = float(megabytes)
            shown.reach(megabytes)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"tokenising a.txt {n}/100 1.00 MB/s, {100 - n} s left" for n in (3, 33, 63, 93)]


def test_steps_are_counted_and_the_first_and_last_are_shown(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("update", 4) as shown:
        for update in range(4):
            clock.now = 2.0 * (update + 1)
            shown.step(f"loss {update}")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["update 1/4 0.50/s, 6 s left, loss 0", "update 4/4 0.50/s, 0 s left, loss 3"]


def test_a_terminal_gets_a_bar_only_if_the_work_is_long(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    for seconds, is_shown in ((1.0, False), (9.0, True)):
        clock.now = 0.0
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress("tokenising", 10, unit="MB", patience=3.0) as shown:
            clock.now = seconds
            shown.reach(5)
        assert ("tokenising" in terminal.getvalue()) == is_shown


def test_sampling_shows_its_steps_if_it_takes_long(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of steps is known from the first of them; two batches have twice as many."""
    for seconds, expected in ((0.1, []), (2.0, ["writing 15/20 0.50 steps/s, 10 s left"])):
        clock.now = 0.0
        with StepProgress("writing", 2) as shown:
            for index in range(20):
                clock.now += seconds
                shown(FixedTimes(t=1 - index % 10 / 10, t_next=1 - (index % 10 + 1) / 10))
        assert capsys.readouterr().err.splitlines() == expected


def test_items_come_unchanged_and_are_counted_if_they_take_long(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for item in tracked(range(10), "judging texts"):
        found.append(item)
        clock.now += 11.0
    assert found == list(range(10))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "judging texts 3/10 0.09/s, 77 s left"
    assert len(lines) == 3


@dataclass(frozen=True)
class FixedTimes:
    t: float
    t_next: float

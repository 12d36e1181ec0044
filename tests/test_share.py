import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from fpmgm.share import claim, share


def test_what_another_holds_is_left_for_last_and_then_asked_for(tmp_path: Path) -> None:
    done: list[str] = []
    found: dict[str, str] = {}
    others_done = threading.Event()

    def do(name: str) -> str:
        done.append(name)
        if name == "c":
            others_done.set()
        return name.upper()

    def work() -> None:
        found.update(share({name: partial(do, name) for name in "abc"}, tmp_path))

    with claim(tmp_path / "a"):
        thread = threading.Thread(target=work)
        thread.start()
        assert others_done.wait(20)
        assert done == ["b", "c"]
    thread.join(20)
    assert done == ["b", "c", "a"]
    assert list(found.items()) == [("a", "A"), ("b", "B"), ("c", "C")]


def test_whoever_is_killed_lets_go(tmp_path: Path) -> None:
    file = tmp_path / "claims" / "a"
    hold = f"""
from pathlib import Path
from fpmgm.share import claim
with claim(Path({str(file)!r})):
    print("held", flush=True)
    input()
"""
    command = [sys.executable, "-c", hold]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with claim(file, is_waiting=False) as is_held:
            assert not is_held
        other.send_signal(signal.SIGKILL)
    with claim(file, is_waiting=False) as is_held:
        assert is_held


def test_names_of_work_may_have_any_letters(tmp_path: Path) -> None:
    assert share({"SDTT, from 1/64": lambda: 1}, tmp_path) == {"SDTT, from 1/64": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["sdtt--from-1-64"]

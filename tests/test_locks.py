import signal
import subprocess
import sys
from pathlib import Path

from fpmgm.locks import claim


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    file = tmp_path / "claims" / "a"
    hold = f"""
from pathlib import Path
from fpmgm.locks import claim
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

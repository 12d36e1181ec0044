"""A text larger than the memory it may take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 2 * 10**9
MEMORY = 2 * 10**9
LINE = " ".join(["notwithstanding incomprehensible multitudinous circumnavigation extraordinary"] * 20) + "\n"

SCRIPT = """
import resource, sys
from fpmgm.__main__ import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_gigabytes_of_text_are_packed_and_trained_on_within_two_gigabytes_of_memory(tmp_path: Path) -> None:
    source = tmp_path / "large.txt"
    block = LINE * (10**6 // len(LINE))
    with open(source, "w") as file:
        for _ in range(SIZE // len(block) + 1):
            file.write(block)
    assert source.stat().st_size >= SIZE
    command = ["train", "poetry", "--data.source", str(source), "--data.tokenizer", "bpe-600"]
    command += ["--out", str(tmp_path / "run"), "--updates", "3", "--validation-sequences", "32", "--model.width", "48"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command],
        env={**os.environ, "FPMGM_CACHE": str(tmp_path / "cache"), "TOKENIZERS_PARALLELISM": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    assert int(done.stdout.split()[-1]) < MEMORY
    source.unlink()  # pytest would keep it
    for packed in (tmp_path / "cache").rglob("rows.bin"):
        packed.unlink()

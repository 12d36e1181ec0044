"""The fuzzer: wrong command lines and damaged files, each run in a process of its own that is forked after the imports.

    python -m tests.faults.fuzz --seed 0 --cases 2200

Case number n of a seed is always the same; `--only n` repeats it and shows all that it printed.
"""

import argparse
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS = 60
WALL_SECONDS = 240
MEMORY = 4 << 30
LAST_RESORT = "fpmgm: unexpected"
PROGRESS = re.compile(
    r"^(cell \d+ of \d+: .*|update \d+/\d+ .*|sampling the .*|comparing layers .*|fetching .*|tokenising .*"
    r"|\d+ block evaluations in .*|.*: recipe .*|note: .*)$"
)
"""Lines on stderr that are no complaint."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case: the exit codes of its commands and what was wrong with them, empty if nothing."""

    wrong: str
    codes: tuple[int, ...]
    seconds: float
    output: str


def run_case(number: int, seed: int, bench: Path, scratch: Path) -> Outcome:
    """Damage a copy of the workbench as the case says, run its commands one after the other, and judge them."""
    from tests.faults.kinds import case_of
    from tests.faults.workbench import PROTECTED, bundled, contents

    folder = scratch / f"case-{number}"
    shutil.copytree(bench, folder, symlinks=True)
    begin = _cpu()
    before, models, is_named = contents(folder / PROTECTED), bundled(), False
    codes: list[int] = []
    output, wrong = "", ""
    try:
        for command in case_of(number, seed, folder):
            code, out, err = _run(command, folder)
            codes.append(code)
            is_named = is_named or PROTECTED in command
            output += f"$ fpmgm {' '.join(map(ascii, command))}\n{out}{err}-> {code}\n"
            wrong = wrong or _judged(code, out, err)
        after = contents(folder / PROTECTED)
        kept = {name: content for name, content in after.items() if name in before}
        if (kept if is_named else after) != before or bundled() != models:
            wrong = wrong or "a protected folder has changed"
    finally:
        shutil.rmtree(folder)
    return Outcome(wrong, tuple(codes), _cpu() - begin, output)


def _cpu() -> float:
    """Seconds of CPU of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _judged(code: int, out: str, err: str) -> str:
    """What is wrong with the end of a command; empty if nothing is."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in out + err or "panicked" in out + err:
        return "a traceback"
    if LAST_RESORT in err:
        return "the last resort"
    if "not enough memory" in err:
        return f"more than {MEMORY >> 30} GB of memory"
    lines = [line for line in err.splitlines() if not PROGRESS.match(line)]
    if code and (len(lines) != 1 or not lines[0].startswith("fpmgm: ")):
        return f"{len(lines)} lines instead of one"
    return ""


def _run(command: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """The exit code (minus the signal, if one ended it), standard output and standard error of a command."""
    streams = [folder.parent / f"{folder.name}.{name}" for name in ("out", "err")]
    process = os.fork()
    if process == 0:
        _child(command, folder, streams)
    _, status = os.waitpid(process, 0)
    texts = [stream.read_text(errors="backslashreplace") for stream in streams]
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _child(command: Sequence[str], folder: Path, streams: Sequence[Path]) -> None:
    """Run the command here, within its limits, and end this process."""
    code = 99
    try:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, stream in enumerate(streams, 1):
            os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(WALL_SECONDS)
        from fpmgm.__main__ import main

        try:
            code = main(command)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_all(numbers: Sequence[int], seed: int) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of the cases, in order."""
    from tests.faults.kinds import import_all
    from tests.faults.workbench import build

    with tempfile.TemporaryDirectory(prefix="fpmgm-fuzz-") as name:
        place = Path(name)
        _prepare_environment(place)
        import_all()
        bench, scratch = place / "bench", place / "scratch"
        bench.mkdir()
        scratch.mkdir()
        process = os.fork()  # so that this process starts no thread
        if process == 0:
            code = 1
            try:
                os.dup2(os.open(place / "build.log", os.O_WRONLY | os.O_CREAT), 2)
                os.dup2(2, 1)
                build(bench)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        if os.waitpid(process, 0)[1]:
            raise RuntimeError(f"the workbench cannot be built:\n{(place / 'build.log').read_text()}")
        for number in numbers:
            yield number, run_case(number, seed, bench, scratch)


def _prepare_environment(place: Path) -> None:
    """No network, no threads, a cache and a home of its own."""
    os.environ.update(
        FPMGM_CACHE=str(place / "cache"),
        HF_HOME=str(place / "hub"),
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        OMP_NUM_THREADS="1",
        MPLBACKEND="agg",
        COLUMNS="100",
    )


def main() -> int:
    """Run cases, print those that fail, then how many there were; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=2200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of single cases, which are shown in full")
    parser.add_argument("--kinds", nargs="*", default=[], help="which kinds of damage; all if none is given")
    parser.add_argument("--leave-out", nargs="*", default=[], help="kinds of damage to leave out")
    chosen = parser.parse_args()
    from tests.faults.kinds import KINDS, kind_of

    kinds = [kind for kind in chosen.kinds or KINDS if kind not in chosen.leave_out]
    numbers = chosen.only or [
        n for n in range(chosen.first, chosen.first + chosen.cases) if kind_of(n, chosen.seed) in kinds
    ]
    counts: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    failures: Counter[str] = Counter()
    seconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    begin = time.perf_counter()
    for number, outcome in run_all(numbers, chosen.seed):
        kind = kind_of(number, chosen.seed)
        counts[kind] += 1
        codes.update(outcome.codes)
        seconds[kind] += outcome.seconds
        if outcome.wrong:
            failures[kind] += 1
            print(
                f"FAILED --seed {chosen.seed} --only {number} ({kind}): {outcome.wrong}\n{outcome.output[-3000:]}",
                flush=True,
            )
        elif chosen.only:
            print(outcome.output)
    for kind in counts:
        print(f"{kind:12} {counts[kind]:5} cases {failures[kind]:5} failures {seconds[kind]:7.1f} s of CPU")
    print("exit codes:", ", ".join(f"{codes[code]} times {code}" for code in sorted(codes)))
    total = time.perf_counter() - begin
    print(f"{counts.total()} cases, {failures.total()} failures (seed {chosen.seed}, {total:.0f} s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Work on several processes: what is refused, what comes back, and that a killed worker loses nothing."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
import torch

from fpmgm import cluster
from fpmgm.__main__ import main
from fpmgm.checkpoint import Model
from fpmgm.cluster import HERE, OnWorkers, Workers
from fpmgm.evaluation.cells import Cell
from fpmgm.evaluation.layout import COSTS, measured_columns, varied
from fpmgm.evaluation.rows import Row, read_rows
from fpmgm.evaluation.sweep import Protocol, run_sweep
from fpmgm.evaluation.tables import markdown
from fpmgm.generation import Sampling

NOBODY = "127.0.0.1:1"
OPEN = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
"""The environment of a cluster that asks nobody for a token."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sweep budgets --workers 0", "workers is 0; it must be 1 to 1024"),
        ("sweep budgets --workers 2 --ray auto", "give --workers for this machine, or --ray for a cluster"),
        ("sweep budgets --ray somewhere", "ray is 'somewhere'; write the HOST:PORT of the head"),
        ("sweep budgets --ray ray://head:10001", "ray is 'ray://head:10001'; write the HOST:PORT"),
        *(
            (f"{verb} --ray {NOBODY}", f"ray is {NOBODY}, and nobody answers there ([Errno 111] Connection refused)")
            for verb in ("sweep budgets", "evaluate", "frontier", "reproduce")
        ),
    ],
)
def test_workers_that_cannot_be_are_refused_in_one_line_within_seconds(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.perf_counter()
    assert main([*words.split(), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert time.perf_counter() - start < 60  # within seconds, on a machine that is not busy


def test_without_ray_several_workers_are_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    assert main(["sweep", "budgets", "--workers", "2"]) == 2
    assert "several workers need ray" in (error := capsys.readouterr().err)
    assert "pip install 'fpmgm[cluster]'" in error
    assert error.count("\n") == 1


@dataclass
class Listener:
    """Somebody who is no Ray: says one thing to whoever calls."""

    says: bytes

    def __enter__(self) -> str:
        self.socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._answer, daemon=True).start()
        return f"127.0.0.1:{self.socket.getsockname()[1]}"

    def _answer(self) -> None:
        caller, _ = self.socket.accept()
        with caller:
            caller.recv(100)
            caller.sendall(self.says)

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"hi"])
def test_somebody_who_answers_and_is_no_ray_is_told_apart(says: bytes) -> None:
    with Listener(says) as address, pytest.raises(ValueError, match="who answers there is no Ray"):
        cluster._check_address(address)


def test_one_that_greets_as_ray_does_is_let_through() -> None:
    with Listener(bytes([0, 0, 6, 4, 0, 0, 0, 0, 0])) as address:
        cluster._check_address(address)


@pytest.mark.slow
def test_one_that_greets_as_ray_does_and_is_none_is_refused_in_one_line() -> None:
    words = [sys.executable, "-m", "fpmgm", "sweep", "budgets", "--ray"]
    with Listener(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])) as address:
        done = subprocess.run([*words, address], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert f"ray is {address}, and there is no cluster to join (" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def head(tmp_path: Path) -> Iterator[str]:
    """The address of a Ray that somebody else has started."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = ["start", "--head", "--node-ip-address", "127.0.0.1", "--port", port, "--num-cpus", "1", "--block"]
    words += ["--include-dashboard", "false"]
    with (tmp_path / "head.log").open("w") as log, TemporaryDirectory(prefix="ray-") as short:  # of a socket's name
        command = [str(Path(sys.executable).with_name("ray")), *words, "--temp-dir", short]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=OPEN)
        try:
            while "Ray runtime started" not in (tmp_path / "head.log").read_text():
                assert process.poll() is None, (tmp_path / "head.log").read_text()
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
            assert process.poll() is None  # whoever joins it leaves it as it is
        finally:
            process.terminate()
            process.wait()


@pytest.mark.slow
def test_a_cluster_that_runs_already_does_the_work_twice(head: str, text_model: Model, tmp_path: Path) -> None:
    text_model.save(tmp_path / "model")
    words = [sys.executable, "-m", "fpmgm", "sweep", "budgets", str(tmp_path / "model"), "--num-samples", "2"]
    for budget in ("6", "9"):
        asked = ["--judge", "", "--budgets", budget, "--ray", head, "--out", str(tmp_path / "out")]
        done = subprocess.run([*words, *asked], capture_output=True, text=True, timeout=600, env=OPEN)
        assert done.returncode == 0, done.stderr
    assert [row.sampling.budget for row in read_rows(tmp_path / "out" / "budgets.jsonl")] == [6, 9]


@pytest.mark.slow
def test_workers_of_this_machine_join_no_cluster_that_the_environment_names(text_model: Model, tmp_path: Path) -> None:
    text_model.save(tmp_path / "model")
    words = ["sweep", "budgets", str(tmp_path / "model"), "--num-samples", "2", "--judge", "", "--budgets", "6"]
    asked = [sys.executable, "-m", "fpmgm", *words, "--workers", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=600, env={**OPEN, "RAY_ADDRESS": NOBODY})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("told", "num"), [(None, 1), ("3", 3), ("4,2", 4), ("", 1), ("no", 1), ("0", 1)])
def test_a_worker_has_one_thread_or_what_omp_num_threads_says(
    told: str | None, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert cluster.threads() == num


@pytest.mark.parametrize(
    ("asked", "device", "gpus", "each"),
    [
        (OnWorkers(workers=4), "auto", 0, 0.0),
        (OnWorkers(workers=4), "auto", 2, 0.5),
        (OnWorkers(workers=2), "cuda", 8, 1.0),
        (OnWorkers(workers=4), "cpu", 2, 0.0),
        (OnWorkers(ray="auto"), "auto", 64, 1.0),
        (OnWorkers(ray="auto"), "auto", 0, 0.0),
    ],
)
def test_workers_share_the_gpus_of_a_machine_and_have_one_each_on_a_cluster(
    asked: OnWorkers, device: str, gpus: int, each: float
) -> None:
    class Ray:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return {"CPU": 8.0, **({"GPU": float(gpus)} if gpus else {})}

    assert asked._workers(Ray, device).num_gpus == each


def test_this_process_does_its_work_in_order_and_tells_before_and_after_each_piece() -> None:
    told: list[str] = []
    work = {name: partial(str.upper, name) for name in "ba"}
    found = HERE.run(work, "letters", on_turn=told.append, on_done=lambda name, result: told.append(name + result))
    assert list(found.items()) == [("b", "B"), ("a", "A")]
    assert told == ["b", "bB", "a", "aA"]


@pytest.fixture(scope="module")
def two() -> Iterator[Workers]:
    """Two workers of Ray, opened once: on a busy machine that takes half a minute."""
    with OnWorkers(workers=2).open_workers() as workers:
        yield workers


def seen() -> tuple[int, str, int, str | None]:
    return os.getpid(), os.getcwd(), torch.get_num_threads(), os.environ.get("FPMGM_CACHE")


def fail(name: str) -> None:
    raise ValueError(f"{name} cannot be done")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_work_by_ray_is_done_elsewhere_in_the_same_folder_and_comes_back_in_order(
    two: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPMGM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done: list[str] = []
    found = two.run(dict.fromkeys("abcdef", seen), "letters", on_done=lambda name, _: done.append(name))
    assert list(found) == list("abcdef")
    assert sorted(done) == list("abcdef")
    assert os.getpid() not in {pid for pid, *_ in found.values()}
    assert {tuple(rest) for _, *rest in found.values()} == {(str(tmp_path), 1, str(tmp_path / "cache"))}


@pytest.mark.slow
def test_an_error_of_a_worker_is_the_error_of_the_command(two: Workers) -> None:
    with pytest.raises(ValueError, match=r"^b cannot be done$"):
        two.run({"a": seen, "b": partial(fail, "b")}, "letters")  # type: ignore[arg-type]


@pytest.mark.slow
def test_work_that_kills_every_worker_is_given_up_with_a_word_on_it(two: Workers) -> None:
    with pytest.raises(ConnectionError, match="bad was lost with its worker 4 times"):
        two.run({"bad": die}, "letters")


def busy_workers() -> list[psutil.Process]:
    """The processes of Ray that measure cells now."""
    every = psutil.Process().children(recursive=True)
    return [process for process in every if process.name().startswith("ray::cells")]


def table_of(rows: list[Row]) -> str:
    return markdown(rows, (*varied(rows), *COSTS, *measured_columns(rows)))


@pytest.mark.slow
def test_two_workers_of_which_one_is_killed_fill_the_table_of_one_process(
    two: Workers, text_model: Model, tmp_path: Path
) -> None:
    text_model.save(tmp_path / "model")
    settings = [
        Sampling(budget=budget, temperature=t) for budget in (12, 24, 48, 96) for t in (0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    ]
    cells = [Cell(model=str(tmp_path / "model"), sampling=sampling) for sampling in settings]
    protocol = Protocol(num_samples=64)
    killed: list[int] = []

    def kill_once(cell: Cell, index: int, total: int) -> None:
        assert total == 24
        if not killed and (busy := busy_workers()):
            busy[0].kill()
            killed.append(busy[0].pid)

    shared = run_sweep(cells, protocol, tmp_path / "two.jsonl", on_cell=kill_once, workers=two)
    alone = run_sweep(cells, protocol, tmp_path / "one.jsonl")
    assert killed
    shared, alone = ([replace(row, seconds=0.0) for row in rows] for rows in (shared, alone))
    assert shared == alone
    assert table_of(shared) == table_of(alone)
    lines = {row.key: replace(row, seconds=0.0) for row in read_rows(tmp_path / "two.jsonl")}
    assert len(read_rows(tmp_path / "two.jsonl")) == 24  # each cell once, by one writer
    assert [lines[row.key] for row in alone] == alone


@pytest.mark.slow
def test_a_sweep_by_workers_goes_on_where_it_was_stopped(two: Workers, text_model: Model, tmp_path: Path) -> None:
    text_model.save(tmp_path / "model")
    cells = [Cell(model=str(tmp_path / "model"), sampling=Sampling(budget=budget)) for budget in (6, 9, 12)]
    protocol, file, told = Protocol(num_samples=2), tmp_path / "rows.jsonl", []
    run_sweep(cells[:2], protocol, file)
    run_sweep(cells, protocol, file, workers=two, on_cell=lambda cell, *_: told.append(cell.sampling.budget))
    assert told == [12]
    assert len(read_rows(file)) == 3


@pytest.mark.slow
def test_an_open_ray_is_used_and_left_open(two: Workers) -> None:
    with OnWorkers(workers=2).open_workers() as again:
        assert again.run({"a": seen}, "letters")["a"][0] != os.getpid()
    assert sys.modules["ray"].is_initialized()

"""Where a result comes from: version, commit and hardware."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch


@cache
def provenance() -> dict[str, str | int]:
    """What travels with every model and result."""
    return {
        "fpmgm": version("fpmgm"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardware": _hardware(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str:
    """The commit of the checkout that this package lies in, with a + if files were changed; empty if it is none."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return ""
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{os.cpu_count()} cores, {_cpu_name()}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

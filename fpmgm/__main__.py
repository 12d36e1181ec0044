"""The command line: `fpmgm COMMAND [--field value ...]`."""

import io
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import TypeVar

import tyro

from fpmgm import __version__
from fpmgm.names import choose
from fpmgm.quickstart import Quickstart
from fpmgm.quickstart import run as run_quickstart

COMMANDS = {"quickstart": (Quickstart, run_quickstart)}

USAGE = """usage: fpmgm COMMAND [--field value ...]

commands:
{commands}

fpmgm COMMAND --help lists the fields of a command; fpmgm --version prints the version."""

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if fine, 1 if it failed, 2 if the input was wrong: one line then says what would work."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:12} {config.__doc__}" for name, (config, _) in COMMANDS.items()]
        print(USAGE.format(commands="\n".join(lines)))
        return 0
    if arguments[0] == "--version":
        print(f"fpmgm {__version__}")
        return 0
    try:
        config_type, run = choose("command", arguments[0], COMMANDS)
        run(_parse(config_type, arguments[0], arguments[1:]))
    except ValueError as error:
        print(f"fpmgm: {error}", file=sys.stderr)
        return 2
    except (OSError, FloatingPointError) as error:
        print(f"fpmgm: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(config_type: type[T], command: str, arguments: Sequence[str]) -> T:
    """The command's settings, or a ValueError of one line where tyro would print a box."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.cli(config_type, prog=f"fpmgm {command}", args=arguments)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
    _title, *lines = [re.sub(r"[─-]{3,}|[╭╮╰╯│]", "", line).strip() for line in box.getvalue().splitlines()]
    sections = [" ".join(section.split("\n")) for section in re.split(r"\n{2,}", "\n".join(lines).strip())]
    message = sections[0]
    if "Perhaps you meant:" in lines:
        message += f"; did you mean {lines[lines.index('Perhaps you meant:') + 1].split()[0]}?"
    raise ValueError(f"{message} (fpmgm {command} --help lists all)")


if __name__ == "__main__":
    sys.exit(main())

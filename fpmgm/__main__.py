"""The command line: `fpmgm COMMAND [--field value ...]`."""

import sys
from collections.abc import Sequence

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if fine, 2 if the input was wrong (one line says what would work)."""
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
        run(tyro.cli(config_type, prog=f"fpmgm {arguments[0]}", args=arguments[1:]))
    except ValueError as error:
        print(f"fpmgm: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

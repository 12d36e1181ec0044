"""The command line: `fpmgm COMMAND [--field value ...]`."""

import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import Any, TypeVar

import tyro

from fpmgm import __version__
from fpmgm.names import choose

USAGE = """usage: fpmgm COMMAND [--field value ...]

commands:
  train RECIPE               train a model, or continue a run
  convert SOURCE DEST        an MDLM of ours, of Lightning or of the hub becomes an FP-MDLM or MDLM, or back
  sample [MODEL]             write text; without a model, with the bundled one
  evaluate [MODEL ...]       validation and generative perplexity, diversity, cost, side by side
  sweep PRESET [MODEL ...]   a grid of sampling settings: budgets, steps, allocations, reuse, nucleus, solver, grid
  analyse MODEL cka          how alike the layers of a model are
  analyse MODEL optimum      what a stage of consistency could gain at best, without training it
  analyse RUN dynamics       quality, entropy and perplexity of a run's snapshots, by update
  benchmark [NAME ...]       latency, throughput, memory and time per update of models or recipes, in one run
  reproduce [REPORT]         the paper's tables in miniature, resumable: text-mini, tuning, injections
  info [NAME]                parameters, blocks and cost of a model or a recipe
  push MODEL OWNER/NAME      put a model on the hub
  quickstart                 watch the bundled model write, then see what four budgets buy

recipes:
{recipes}

fpmgm COMMAND --help lists the fields of a command; fpmgm --version prints the version."""

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if fine, 1 if it failed, 2 if the input was wrong: one line then says what would work."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it ends
        return 1
    except ValueError as error:
        print(f"fpmgm: {error}", file=sys.stderr)
        return 2
    except (OSError, FloatingPointError) as error:
        print(f"fpmgm: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        from fpmgm.recipes import RECIPES

        recipes = textwrap.fill(
            ", ".join(RECIPES), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        print(USAGE.format(recipes=recipes))
    elif arguments[0] == "--version":
        print(f"fpmgm {__version__}")
    else:
        choose("command", arguments[0], COMMANDS)(arguments[1:])


def _quickstart(arguments: Sequence[str]) -> None:
    from fpmgm.quickstart import Quickstart, run

    run(_parse(Quickstart, "quickstart", arguments))


def _train(arguments: Sequence[str]) -> None:
    from fpmgm.recipes import RECIPES
    from fpmgm.training.config import Training
    from fpmgm.training.loop import train

    if not arguments or arguments[0].startswith("-"):
        raise ValueError(f"train needs a recipe: {', '.join(RECIPES)}")
    recipe = choose("recipe", arguments[0], RECIPES)
    config = _parse(Training, f"train {arguments[0]}", arguments[1:], default=recipe)
    print(train(config, arguments[0], recipe))


def _convert(arguments: Sequence[str]) -> None:
    from fpmgm.commands.convert import ConvertCommand, run_convert

    run_convert(_parse(ConvertCommand, "convert", arguments))


def _sample(arguments: Sequence[str]) -> None:
    from fpmgm.commands.sample import SampleCommand, run_sample

    run_sample(_parse(SampleCommand, "sample", arguments))


def _info(arguments: Sequence[str]) -> None:
    from fpmgm.commands.sample import InfoCommand, run_info

    run_info(_parse(InfoCommand, "info", arguments))


def _evaluate(arguments: Sequence[str]) -> None:
    from fpmgm.commands.evaluate import EvaluateCommand, run_evaluate

    run_evaluate(_parse(EvaluateCommand, "evaluate", arguments))


def _sweep(arguments: Sequence[str]) -> None:
    from fpmgm.commands.evaluate import SweepCommand, run_sweep_command

    run_sweep_command(_parse(SweepCommand, "sweep", arguments))


def _analyse(arguments: Sequence[str]) -> None:
    from fpmgm.commands.analyse import AnalyseCommand, run_analyse
    from fpmgm.commands.dynamics import DynamicsCommand, run_dynamics
    from fpmgm.commands.optimum import OptimumCommand, run_optimum

    if list(arguments[1:2]) == ["dynamics"]:
        run_dynamics(_parse(DynamicsCommand, "analyse RUN dynamics", arguments))
    elif list(arguments[1:2]) == ["optimum"]:
        run_optimum(_parse(OptimumCommand, "analyse MODEL optimum", arguments))
    else:
        run_analyse(_parse(AnalyseCommand, "analyse", arguments))


def _benchmark(arguments: Sequence[str]) -> None:
    from fpmgm.commands.benchmark import BenchmarkCommand, run_benchmark

    run_benchmark(_parse(BenchmarkCommand, "benchmark", arguments))


def _reproduce(arguments: Sequence[str]) -> None:
    from fpmgm.commands.reproduce import ReproduceCommand, run_reproduce

    run_reproduce(_parse(ReproduceCommand, "reproduce", arguments))


def _push(arguments: Sequence[str]) -> None:
    from fpmgm.commands.sample import PushCommand, run_push

    run_push(_parse(PushCommand, "push", arguments))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": _train,
    "convert": _convert,
    "sample": _sample,
    "info": _info,
    "evaluate": _evaluate,
    "sweep": _sweep,
    "analyse": _analyse,
    "analyze": _analyse,
    "benchmark": _benchmark,
    "reproduce": _reproduce,
    "push": _push,
    "quickstart": _quickstart,
}


def _parse(config_type: type[T], command: str, arguments: Sequence[str], **options: Any) -> T:
    """The command's settings, or a ValueError of one line where tyro would print a box."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.cli(config_type, prog=f"fpmgm {command}", args=arguments, **options)
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

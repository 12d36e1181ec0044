"""The command line: `fpmgm COMMAND [--field value ...]`."""

import io
import os
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from difflib import get_close_matches
from typing import Any, TypeVar

import tyro

from fpmgm import __version__
from fpmgm.names import choose
from fpmgm.schema import has_surrogates

USAGE = """usage: fpmgm COMMAND [--field value ...]

commands:
  prepare RECIPE|ASSET       fetch and pack the data of a recipe, or fetch an asset, ahead of time
  prepare stories            make the corpus `stories`; a stopped command goes on when it is repeated
  train RECIPE               train a model, or go on with a run that was stopped
  convert SOURCE DEST        make a fixed-point or plain model of an MDLM or MaskGIT, or the public form of ours
  sample [MODEL]             write text or draw images; without a name, the bundled text model writes
  evaluate [MODEL ...]       measure models side by side: at equal entropy, perplexities, diversity and cost; or tasks
  evaluate MODEL --tasks T   the questions of benchmarks, such as lambada and arc_easy, through lm-eval
  frontier MODEL ...         compare models at equal entropy, with intervals
  sweep PRESET [MODEL ...]   measure a grid of sampling settings, such as budgets, steps or reuse
  analyse MODEL              report what the solver does, and how what the model says changes from step to step
  analyse MODEL cka          compare the layers of a model
  analyse MODEL optimum      estimate what a stage of consistency could gain at best, without training it
  analyse RUN dynamics       sample the snapshots of a run and draw their quality by update
  tune-reuse MODEL           propose reuse coefficients and a tolerance, and check them on other seeds
  benchmark [NAME ...]       time sampling and training of models or recipes, and measure their memory
  reproduce [REPORT]         fill the tables of a report; a stopped command goes on when it is repeated
  reproduce owt|imagenette   plan the paper's own runs, say what is missing here, and run them where nothing is
  tune RECIPE                tune a recipe in the paper's stages; a stopped command goes on when it is repeated
  plan RECIPE                count parameters, operations, memory and hours of a recipe on named hardware
  info [NAME]                show parameters, blocks and cost of a model or a recipe
  push MODEL OWNER/NAME      put a model on the hub
  demo [MODEL ...]           serve a page on this machine that shows models at work, step by step
  serve [--models ...]       answer requests in the form of OpenAI's completions
  quickstart                 watch a bundled model write, see its quality at four budgets, and images of another model

recipes:
{recipes}

fpmgm COMMAND --help lists the fields of a command; fpmgm --version prints the version.
OMP_NUM_THREADS=N fpmgm COMMAND sets the number of threads. Without it, small work uses one thread."""

TRAIN_USAGE = """usage: fpmgm train RECIPE [--field value ...]

Trains a model. If the run was stopped, the same command goes on with it.

recipes:
{recipes}

fpmgm train RECIPE --help lists the settings of a recipe. Each of them can be changed."""

PREPARE_USAGE = """usage: fpmgm prepare RECIPE [--data.field value ...]
       fpmgm prepare ASSET

Fetches, tokenises and packs the data of a recipe, or fetches an asset, and says where it is. Training then finds it in
the cache. Without this it is done at the start of training, by one process while the others wait.

recipes: {recipes}
assets: {assets}"""

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if fine, 1 if it failed, 2 if the input was wrong: one line then says what would work.

    130 if it was interrupted. With FPMGM_DEBUG=1, the traceback of what went wrong comes before that line.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _check_text(arguments)
        _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it ends
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("FPMGM_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        code, message = _explained(error)
        print(f"fpmgm: {' '.join(message.split())}", file=sys.stderr)
        return code
    return 0


def _explained(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and what to say of it."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error)):
        return 1, "there is not enough memory for this; ask for less: a smaller batch, model, length or number"
    if isinstance(error, ValueError):
        return 2, str(error)
    if isinstance(error, OSError | FloatingPointError):
        return 1, str(error) or type(error).__name__
    debug = "set FPMGM_DEBUG=1 for the traceback and please report it"
    return 1, f"unexpected {type(error).__name__}: {error}; {debug}"


def _check_text(arguments: Sequence[str]) -> None:
    """A ValueError if an argument is not UTF-8; Python then hands over half characters, which nothing can print."""
    for number, argument in enumerate(arguments, 1):
        if has_surrogates(argument):
            raise ValueError(f"argument {number} is {argument!a}, which is not UTF-8 text")


def _run(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        from fpmgm.recipes import ABOUT

        recipes = textwrap.fill(
            ", ".join(ABOUT), 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
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
    begin = time.monotonic()
    from fpmgm.recipes import ABOUT, RECIPES

    if not arguments or arguments[0] in ("-h", "--help"):
        width = max(map(len, ABOUT)) + 2
        print(TRAIN_USAGE.format(recipes="\n".join(f"  {name:{width}}{about}" for name, about in ABOUT.items())))
        return
    if arguments[0].startswith("-"):
        raise ValueError(f"train needs a recipe before {arguments[0]}, as in: fpmgm train mine --data.source FILE")
    choose("recipe", arguments[0], ABOUT)
    if arguments[0] == "mine":
        from fpmgm.commands.mine import MineCommand, run_mine

        run_mine(_parse(MineCommand, "train mine", arguments[1:]), begin)
        return
    from fpmgm.training.config import Training
    from fpmgm.training.loop import train

    recipe = RECIPES[arguments[0]]
    config = _parse(Training, f"train {arguments[0]}", arguments[1:], default=recipe)
    print(train(config, arguments[0], recipe))


def _prepare(arguments: Sequence[str]) -> None:
    from fpmgm.commands.prepare import (
        PrepareCommand,
        PrepareStories,
        check_prepared,
        run_prepare,
        run_prepare_asset,
        run_prepare_stories,
    )
    from fpmgm.data.assets import ASSETS
    from fpmgm.recipes import RECIPES

    if not arguments or arguments[0] in ("-h", "--help"):
        print(PREPARE_USAGE.format(recipes=", ".join(RECIPES), assets=", ".join(ASSETS)))
        return
    name, rest = arguments[0], arguments[1:]
    check_prepared(name)
    if name == "stories":
        run_prepare_stories(_parse(PrepareStories, "prepare stories", rest))
        return
    if name not in RECIPES:
        if rest:
            raise ValueError(f"an asset has no settings, and {rest[0]} is given")
        run_prepare_asset(name)
        return
    default = PrepareCommand(data=RECIPES[name].data)
    run_prepare(_parse(PrepareCommand, f"prepare {name}", rest, default=default), RECIPES[name].init)


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


def _frontier(arguments: Sequence[str]) -> None:
    from fpmgm.commands.frontier import FrontierCommand, run_frontier

    run_frontier(_parse(FrontierCommand, "frontier", arguments))


def _sweep(arguments: Sequence[str]) -> None:
    from fpmgm.commands.evaluate import SweepCommand, run_sweep_command

    run_sweep_command(_parse(SweepCommand, "sweep", arguments))


def _analyse(arguments: Sequence[str]) -> None:
    from fpmgm.commands.analyse import AnalyseCommand, run_analyse
    from fpmgm.commands.analyse_report import AnalyseReportCommand, run_analyse_report
    from fpmgm.commands.dynamics import DynamicsCommand, run_dynamics
    from fpmgm.commands.optimum import OptimumCommand, run_optimum

    if list(arguments[1:2]) == ["dynamics"]:
        run_dynamics(_parse(DynamicsCommand, "analyse RUN dynamics", arguments))
    elif list(arguments[1:2]) == ["optimum"]:
        run_optimum(_parse(OptimumCommand, "analyse MODEL optimum", arguments))
    elif arguments[1:] and not arguments[1].startswith("-"):
        run_analyse(_parse(AnalyseCommand, "analyse MODEL cka", arguments))
    else:
        run_analyse_report(_parse(AnalyseReportCommand, "analyse", arguments))


def _tune_reuse(arguments: Sequence[str]) -> None:
    from fpmgm.commands.tune_reuse import TuneReuseCommand, run_tune_reuse

    run_tune_reuse(_parse(TuneReuseCommand, "tune-reuse", arguments))


def _benchmark(arguments: Sequence[str]) -> None:
    from fpmgm.commands.benchmark import BenchmarkCommand, run_benchmark

    run_benchmark(_parse(BenchmarkCommand, "benchmark", arguments))


def _reproduce(arguments: Sequence[str]) -> None:
    if arguments and arguments[0] in ("owt", "imagenette"):
        from fpmgm.commands.full_size import FullSizeCommand, run_full_size

        run_full_size(_parse(FullSizeCommand, f"reproduce {arguments[0]}", arguments))
        return
    report = arguments[0] if arguments and not arguments[0].startswith("-") else "text-mini"
    if report in ("text-mini", "frontier"):
        from fpmgm.commands.reproduce_text import StagesCommand, TextMiniCommand, run_stages, run_text_mini

        if report == "frontier":
            run_stages(_parse(StagesCommand, "reproduce frontier", arguments))
        else:
            run_text_mini(_parse(TextMiniCommand, "reproduce text-mini", arguments))
        return
    from fpmgm.commands.reproduce import ImageMiniCommand, ReproduceCommand, run_image_mini, run_reproduce

    if report == "image-mini":
        run_image_mini(_parse(ImageMiniCommand, "reproduce image-mini", arguments))
        return
    run_reproduce(_parse(ReproduceCommand, "reproduce", arguments))


def _tune(arguments: Sequence[str]) -> None:
    from fpmgm.commands.tune import TuneCommand, run_tune
    from fpmgm.recipes import RECIPES

    if not arguments or arguments[0].startswith("-"):
        raise ValueError("tune needs a recipe first, as in: fpmgm tune stories-fp --updates 500")
    name = arguments[0]
    default = TuneCommand(recipe=name, training=choose("recipe", name, RECIPES))
    run_tune(_parse(TuneCommand, f"tune {name}", arguments[1:], default=default))


def _plan(arguments: Sequence[str]) -> None:
    from fpmgm.commands.plan import PlanCommand, run_plan

    run_plan(_parse(PlanCommand, "plan", arguments))


def _push(arguments: Sequence[str]) -> None:
    from fpmgm.commands.sample import PushCommand, run_push

    run_push(_parse(PushCommand, "push", arguments))


def _demo(arguments: Sequence[str]) -> None:
    from fpmgm.commands.demo import DemoCommand, run_demo

    run_demo(_parse(DemoCommand, "demo", arguments))


def _serve(arguments: Sequence[str]) -> None:
    from fpmgm.commands.serve import ServeCommand, run_serve

    run_serve(_parse(ServeCommand, "serve", arguments))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": _train,
    "prepare": _prepare,
    "convert": _convert,
    "sample": _sample,
    "info": _info,
    "evaluate": _evaluate,
    "frontier": _frontier,
    "sweep": _sweep,
    "analyse": _analyse,
    "analyze": _analyse,
    "tune-reuse": _tune_reuse,
    "benchmark": _benchmark,
    "reproduce": _reproduce,
    "plan": _plan,
    "tune": _tune,
    "push": _push,
    "demo": _demo,
    "serve": _serve,
    "quickstart": _quickstart,
}


def _parse(config_type: type[T], command: str, arguments: Sequence[str], **options: Any) -> T:
    """The command's settings, or a ValueError of one line where tyro would print a box."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            one_kind = (tyro.conf.AvoidSubcommands,)  # which objective it is a recipe decides, not a word in between
            return tyro.cli(config_type, prog=f"fpmgm {command}", args=arguments, config=one_kind, **options)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
    _title, *lines = [re.sub(r"[─-]{3,}|[╭╮╰╯│]", "", line).strip() for line in box.getvalue().splitlines()]
    sections = [" ".join(section.split("\n")) for section in re.split(r"\n{2,}", "\n".join(lines).strip())]
    message = re.sub(r"^Error parsing [\w.]+: ", "", sections[0])
    if "Perhaps you meant:" in lines:
        message += f"; did you mean {lines[lines.index('Perhaps you meant:') + 1].split()[0]}?"
    raise ValueError(f"{message.rstrip('.')}{_nearest_choice(message)} (fpmgm {command} --help lists all)")


def _nearest_choice(message: str) -> str:
    """What to add where the parser says which choices there are: the one that was meant, perhaps."""
    found = re.search(r"invalid choice '([^']*)' .*Expected one of \((.*)\)", message)
    near = get_close_matches(found[1], re.findall(r"'([^']*)'", found[2]), n=1, cutoff=0.5) if found else []
    return f"; did you mean '{near[0]}'?" if near else ""


if __name__ == "__main__":
    sys.exit(main())

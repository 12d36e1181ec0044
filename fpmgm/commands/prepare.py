"""The command `prepare`: data is fetched, made, tokenised and packed before anything else waits for it."""

import os
from dataclasses import dataclass
from typing import Annotated

import tyro

from fpmgm.data.assets import ASSETS, fetch
from fpmgm.data.stories import DEFAULT_SIZE, MAX_SIZE, STORIES, make_stories
from fpmgm.names import choose
from fpmgm.recipes import RECIPES
from fpmgm.schema import require
from fpmgm.training.config import AnyData
from fpmgm.training.start import load_data

NEEDS_SOURCE = "mine"
"""The recipe that plans by its text, and so has no data before it is told which."""
MAX_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class PrepareCommand:
    """Fetch, tokenise and pack the data of a recipe, so that training finds it in the cache."""

    data: AnyData


@dataclass(frozen=True, kw_only=True)
class PrepareStories:
    """Make the corpus `stories` in the cache. A command that was stopped can be repeated."""

    size: Annotated[int, tyro.conf.arg(aliases=["--data.size"])] = DEFAULT_SIZE
    """How many of its source's tokens the corpus has; 0 makes only the held-out stories."""
    workers: int = 0
    """How many processes make stories at the same time; 0 starts one for each core."""

    def __post_init__(self) -> None:
        require("size", self.size, 0, MAX_SIZE)
        require("workers", self.workers, 0, MAX_WORKERS)


def check_prepared(name: str) -> None:
    """A ValueError if there is nothing of that name to prepare."""
    if name == NEEDS_SOURCE:
        raise ValueError("train mine prepares its text by itself; prepare takes other recipes, or an asset")
    choose("recipe or asset", name, {STORIES: None, **dict.fromkeys(RECIPES), **dict.fromkeys(ASSETS)})


def run_prepare_asset(name: str) -> None:
    """Fetch an asset and say where it is."""
    print(fetch(name))


def run_prepare_stories(command: PrepareStories) -> None:
    """Make the stories and say where they are."""
    print(make_stories(command.size, workers=command.workers or os.cpu_count() or 1))


def run_prepare(command: PrepareCommand, init: str) -> None:
    """Make the data of a recipe that starts from `init` and say where it is."""
    data = load_data(command.data, init)
    print(
        f"{command.data.name}: {len(data.train):,} sequences of {data.vocabulary.length} tokens to train on, "
        f"{len(data.held_out):,} held out, {data.vocabulary.size:,} symbols"
    )
    print(data.place)

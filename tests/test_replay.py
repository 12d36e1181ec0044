import io
import re

import pytest
import torch
from rich.console import Console
from rich.style import Style

from fpmgm import replay
from fpmgm.checkpoint import Model
from fpmgm.generation import generate
from fpmgm.replay import Replay


def shown(model: Model, *, is_terminal: bool, **options: object) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=60, highlight=False)
    with Replay(model, console, **options) as watch:  # type: ignore[arg-type]
        generate(model, num_samples=3, batch_size=1, budget=12, seed=0, on_step=watch)
    return out.getvalue()


def test_a_pipe_gets_every_step_of_the_first_sequence_in_plain_text(text_model: Model) -> None:
    printed = shown(text_model, is_terminal=False)
    assert "\x1b" not in printed
    assert [line.split(",")[0] for line in printed.splitlines() if "t = " in line] == ["step 1", "step 2"]
    tokens = generate(text_model, num_samples=1, budget=12, seed=0).tokens[0]
    last = printed.split("t = 0.00")[1].split("─\n", 1)[1]
    assert "·" in printed.split("t = 0.00")[0]
    assert "".join(last.split()) == "".join("".join(text_model.speech.show([token]) for token in tokens).split())


def test_a_pipe_can_be_shown_some_steps_only(text_model: Model) -> None:
    printed = shown(text_model, is_terminal=False, steps={1})
    assert "step 1" not in printed
    assert "step 2" in printed


def test_a_terminal_sees_the_tokens_appear_one_after_the_other(
    text_model: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(replay.time, "sleep", naps.append)
    shown(text_model, is_terminal=True, seconds=0.03)
    assert len(naps) == int((torch.tensor(generate(text_model, budget=12, seed=0).tokens) >= 0).sum())


def test_a_terminal_shows_each_of_the_four_changes_in_its_colour_and_says_which_is_which(
    text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The colours are those of the page of `fpmgm demo`."""
    monkeypatch.setattr(replay.time, "sleep", lambda seconds: None)
    Style.parse.cache_clear()  # rich remembers how the first terminal wrote a colour
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=200, highlight=False)
    with Replay(text_model, console, stays=False) as watch:
        generate(text_model, budget=40, steps=10, transition="remdm-rescale", seed=0, on_step=watch)
    printed = out.getvalue()
    assert all(look.words in printed for look in replay.LOOKS.values())
    assert "residual" in printed
    tokens: dict[replay.ChangeName, str] = {"masked": "·", "remasked": "·", "revealed": "[^·n]"}
    for name, token in tokens.items():
        red, green, blue = (int(replay.LOOKS[name].colour[place : place + 2], 16) for place in (1, 3, 5))
        assert re.search(rf"38;2;{red};{green};{blue}m{token}", printed), name

import io

import pytest
import torch
from rich.console import Console

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

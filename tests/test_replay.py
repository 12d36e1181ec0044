import io
import re

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


def test_each_of_the_four_changes_has_its_colour_and_a_terminal_says_which_is_which(
    text_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The colours are those of the page of `fpmgm demo`."""
    monkeypatch.setattr(replay.time, "sleep", lambda seconds: None)
    printed = shown(text_model, is_terminal=True, stays=False)
    assert all(look.words in printed for look in replay.LOOKS.values())
    assert re.search(r"step 2, t = 0.00, \d iterations?, residual", printed)
    mask = text_model.denoiser.mask_id
    text = Replay(text_model, Console())._text([70, mask, mask, 80], [70, mask, 75, mask])
    colours = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert [span.start for span in text.spans] == [1, 2, 3]  # what is unchanged looks like any text
    assert [str(span.style).split()[-1] for span in text.spans] == [
        replay.LOOKS[name].colour for name in ("masked", "revealed", "remasked")
    ]
    assert "bold" in colours[text.plain[2]]

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fpmgm.__main__ import main
from fpmgm.analysis.optimum import Foreseen
from fpmgm.denoiser import Denoiser
from fpmgm.randomness import Streams
from fpmgm.sampling import even_times, sample
from fpmgm.transitions import Ancestral
from fpmgm.types import Logits, Places, State
from tests.given import LENGTH, MASK, NUM_SYMBOLS, given_fixed_point, given_plain, table_of

BOTH = pytest.mark.parametrize("make", [given_plain, given_fixed_point])


@dataclass(frozen=True, kw_only=True)
class Kept(Ancestral):
    """The ancestral rule that keeps the logits it was given."""

    logits: list[Logits] = field(default_factory=list)

    def write(self, state: State, logits: Logits, places: Places, t: float, t_next: float, *, rng: Streams) -> State:
        self.logits.append(logits)
        return super().write(state, logits, places, t, t_next, rng=rng)


def means_of_one_step(denoiser: Denoiser, mean: str, gap: float) -> Tensor:
    """What 8 sequences of masks draw their first token from at t = 1, normalised."""
    z = torch.full((8, LENGTH), MASK)
    kept = Kept()
    foreseen = Foreseen(denoiser=denoiser, mean=mean, gap=gap, num_inputs=200, num_iters=8, rule=kept)
    nothing = torch.zeros(z.shape, dtype=torch.bool)
    state = State(z=z, mask_id=MASK, is_given=nothing, confidence=torch.zeros(z.shape, dtype=torch.float64))
    places = Places.of(torch.tensor([True, False, False]).expand_as(z))
    with torch.no_grad():
        foreseen.write(state, torch.zeros(8, MASK + 1), places, 1.0, 0.5, rng=Streams.of(0, range(8)))
    return kept.logits[0][:, :NUM_SYMBOLS].log_softmax(dim=-1)


def expected(denoiser: Denoiser, gap: float) -> list[tuple[float, Tensor]]:
    """(probability of a cleaner input, what is said of the first token there), over all of them."""
    table = table_of(denoiser, 8 if denoiser.cost.fp else 0)
    shown = table[(MASK,) * LENGTH]
    found = []
    for tokens in product(range(NUM_SYMBOLS + 1), repeat=2):
        probability = 1.0
        for position, token in enumerate(tokens, start=1):
            probability *= 1 - gap if token == MASK else gap * float(shown[position, token])
        found.append((probability, table[(MASK, *tokens)][0]))
    return found


@BOTH
@pytest.mark.parametrize("gap", [1.0, 0.4])
def test_the_geometric_mean_is_that_over_all_cleaner_inputs(make: Callable[[], Denoiser], gap: float) -> None:
    denoiser = make()
    mean = torch.stack([probability * p.log() for probability, p in expected(denoiser, gap)]).sum(dim=0)
    found = means_of_one_step(denoiser, "geometric", gap)
    torch.testing.assert_close(found.mean(dim=0), mean.log_softmax(dim=-1), atol=0.08, rtol=0)
    assert (mean.exp() - expected(denoiser, 0.0)[-1][1]).abs().max() > 0.1  # it is not what the model says


@BOTH
def test_the_arithmetic_mean_is_that_over_all_cleaner_inputs(make: Callable[[], Denoiser]) -> None:
    denoiser = make()
    mean = torch.stack([probability * p for probability, p in expected(denoiser, 1.0)]).sum(dim=0)
    found = means_of_one_step(denoiser, "arithmetic", 1.0)
    torch.testing.assert_close(found.exp().mean(dim=0), mean, atol=0.03, rtol=0)


@BOTH
def test_a_foreseen_sample_keeps_what_is_given_and_leaves_no_mask_in_the_same_budget(
    make: Callable[[], Denoiser],
) -> None:
    denoiser = make()
    iterations = [2 if denoiser.cost.fp else 0] * 2
    z = torch.tensor([[1, MASK, MASK], [MASK, MASK, 2]])
    rules: dict[str, Any] = {"times": even_times(2), "iterations": iterations}
    foreseen = Foreseen(denoiser=denoiser, num_inputs=2)
    out = sample(denoiser, z, transition=foreseen, rng=Streams.of(0, range(2)), **rules)
    assert out.z[0, 0] == 1
    assert out.z[1, 2] == 2
    assert (out.z != MASK).all()
    plain = sample(denoiser, z, transition=Ancestral(), rng=Streams.of(0, range(2)), **rules)
    assert torch.equal(out.block_evals, plain.block_evals)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gap": 0.0}, "gap is 0.0; it must lie above 0"),
        ({"gap": 1.5}, "gap is 1.5; it must lie above 0"),
        ({"num_inputs": 0}, "num_inputs is 0; it must be 1 to 10000"),
        ({"num_iters": 0}, "num_iters is 0; it must be 1 to 10000"),
        ({"mean": "geo"}, "unknown mean 'geo'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Foreseen(denoiser=given_plain(), **settings)


def test_analyse_optimum_compares_a_model_with_its_optimum_and_with_itself_at_its_entropy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["analyse", "stories-fp", "optimum", "--num-samples", "2", "--num-inputs", "1", "--length", "16"]
    assert main([*command, "--budgets", "6", "--judge", "", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["drawn_from"] for row in rows[:2]] == ["the model", "the geometric mean"]
    target, found = (row["metrics"]["entropy"]["value"] for row in rows[1:])
    is_met = abs(target - found) <= 0.005
    assert rows[2]["drawn_from"] == f"the model, entropy {'matched' if is_met else 'nearly matched'}"
    assert [row["length"] for row in rows] == [16] * 3
    printed = capsys.readouterr().out
    assert "the geometric mean" in printed
    for row in rows:
        assert f"{row['metrics']['entropy']['value']:.3f}" in printed
    assert "| the geometric mean |" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", "999"], "length is 999; the model takes 1 to 256, or 0 for all"),
        (["--gap", "2"], "gap is 2.0"),
        (["--budgets", "1"], "budget"),
        (["--num-samples", "0"], "num_samples is 0"),
    ],
)
def test_analyse_optimum_refuses_what_cannot_be_sampled(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyse", "stories-fp", "optimum", *arguments]) == 2
    assert message in capsys.readouterr().err

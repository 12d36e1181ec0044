"""The source of `stories`, with small random weights in llama2.c's format, against a slow reference written here."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fpmgm.data.stories_sampler import Cache, Head, advance, sample_stories
from fpmgm.data.stories_source import BEGIN, Source, features, load_source, logits, read_source
from fpmgm.data.stories_tokenizer import SourceTokenizer, load_tokenizer, read_tokenizer
from tests.small_source import HEADS, LAYERS, POSITIONS, SYMBOLS, WIDTH, weights, write_source


@pytest.fixture
def source(tmp_path: Path) -> Source:
    write_source(tmp_path)
    return read_source(tmp_path / "model.bin")


@pytest.fixture
def tokenizer(tmp_path: Path) -> SourceTokenizer:
    write_source(tmp_path)
    return read_tokenizer(tmp_path / "tokenizer.bin")


def reference_logits(ids: list[int]) -> np.ndarray:
    """Llama 2 position by position and head by head, in float64; pairs are turned as complex numbers."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights().items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean() + 1e-5) * weight

    def turn(x: np.ndarray, position: int) -> np.ndarray:
        pairs = x.reshape(HEADS, -1, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * (w["cos"][position] + 1j * w["sin"][position])
        return np.stack([turned.real, turned.imag], axis=-1).reshape(HEADS, -1)

    states = [w["token_embedding"][index] for index in ids]
    for layer in range(LAYERS):
        normed = [norm(x, w["rms_att"][layer]) for x in states]
        queries = [turn(w["wq"][layer] @ x, position) for position, x in enumerate(normed)]
        keys = [turn(w["wk"][layer] @ x, position) for position, x in enumerate(normed)]
        values = [(w["wv"][layer] @ x).reshape(HEADS, -1) for x in normed]
        for position in range(len(ids)):
            mixed = []
            for head in range(HEADS):
                scores = np.array([queries[position][head] @ keys[past][head] for past in range(position + 1)])
                p = np.exp(scores / np.sqrt(WIDTH // HEADS))
                mixed.append(sum(p[past] * values[past][head] for past in range(position + 1)) / p.sum())
            states[position] = states[position] + w["wo"][layer] @ np.concatenate(mixed)
            x = norm(states[position], w["rms_ffn"][layer])
            gate = w["w1"][layer] @ x
            states[position] = states[position] + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ x))
    return np.stack([w["token_embedding"] @ norm(x, w["rms_final"]) for x in states])


def rows_of(num: int, length: int = POSITIONS) -> torch.Tensor:
    rows = torch.randint(0, SYMBOLS, (num, length), generator=torch.Generator().manual_seed(0))
    rows[:, 0] = BEGIN
    return rows


def test_logits_are_those_of_a_plain_reference(source: Source) -> None:
    rows = rows_of(2)
    found = logits(source, rows)
    for row, of_row in zip(rows.tolist(), found, strict=True):
        torch.testing.assert_close(of_row.double(), torch.from_numpy(reference_logits(row)), rtol=1e-5, atol=1e-5)


def test_cached_passes_equal_a_pass_over_the_whole_text(source: Source) -> None:
    rows = rows_of(3)
    cache = Cache(source, 3)
    by_position = [advance(source, cache, rows[:, position], position) for position in range(POSITIONS)]
    torch.testing.assert_close(torch.stack(by_position, dim=1), features(source, rows), rtol=1e-5, atol=1e-5)


def sampled(source: Source, batch_size: int) -> list[np.ndarray]:
    few = torch.tensor([BEGIN, *range(3, 30)])  # so that stories end at different positions
    batches = sample_stories(source, Head.of(source, few), seed=3, indices=range(40), batch_size=batch_size)
    return [story for batch in batches for story in batch]


def test_a_story_does_not_depend_on_its_batch(source: Source) -> None:
    together = sampled(source, batch_size=40)
    for batch_size in (1, 7):
        for story, alone in zip(together, sampled(source, batch_size=batch_size), strict=True):
            np.testing.assert_array_equal(story, alone)


def test_stories_end_with_the_first_begin_symbol_or_with_the_last_position(source: Source) -> None:
    likely = torch.tensor([BEGIN, 5, 6])  # few rows, so that many stories end early
    (stories,) = sample_stories(source, Head.of(source, likely), seed=0, indices=range(64))
    lengths = {len(story) for story in stories}
    assert len(lengths) > 3
    assert max(lengths) <= POSITIONS
    for story in stories:
        assert BEGIN not in story[:-1]
        assert story[-1] == BEGIN or len(story) == POSITIONS


def test_each_token_is_drawn_from_the_logits_of_the_uncached_pass(source: Source) -> None:
    """With the uniform numbers of its stream, the inverse of the cumulative distribution gives the story again."""
    from fpmgm.randomness import Streams

    likely = torch.tensor([BEGIN, *range(3, 40)])
    (stories,) = sample_stories(source, Head.of(source, likely), seed=5, indices=range(16))
    uniforms = Streams.of(5, range(16)).uniform(POSITIONS)
    for story, u in zip(stories, uniforms, strict=True):
        ids = torch.tensor([[BEGIN, *story[:-1].tolist()]])
        p = logits(source, ids)[0][:, likely].double().softmax(dim=-1)
        expected = likely[(p.cumsum(dim=-1) <= u[: len(story), None]).sum(dim=-1)]
        assert story.tolist() == expected.tolist()


def test_the_tally_adds_up_the_probabilities_of_every_token_drawn(source: Source) -> None:
    tally = torch.zeros(SYMBOLS, dtype=torch.float64)
    (stories,) = sample_stories(source, Head.of(source), seed=1, indices=range(6), tally=tally)
    expected = torch.zeros_like(tally)
    for story in stories:
        expected += logits(source, torch.tensor([[BEGIN, *story[:-1].tolist()]]))[0].double().softmax(-1).sum(0)
    torch.testing.assert_close(tally, expected, rtol=1e-4, atol=1e-6)
    assert tally.sum().item() == pytest.approx(sum(len(story) for story in stories), rel=1e-5)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    write_source(tmp_path)
    file = tmp_path / "model.bin"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match="its header asks for"):
        read_source(file)


def test_a_text_longer_than_the_source_reads_is_refused(source: Source) -> None:
    with pytest.raises(ValueError, match="the source reads at most 24"):
        features(source, rows_of(1, POSITIONS + 1))


def test_neighbours_are_merged_by_score_and_unknown_characters_become_bytes(tokenizer: SourceTokenizer) -> None:
    def spelled(text: str) -> list[str]:
        return [tokenizer.pieces[index].decode("utf-8", errors="replace") for index in tokenizer.encode(text)]

    assert spelled("abc") == [
        " a",
        "bc",
    ]  # by score; from left to right it would be " ab", "c"
    assert spelled("b  abé") == [" ", "b", " ", " ab", "é"]
    assert tokenizer.encode("z")[1:] == [3 + ord("z")]
    assert tokenizer.encode("") == []


@pytest.mark.parametrize("text", ["abc abc", " ab", "a  b", "é\n€ z", "🐕 a"])
def test_text_comes_back_from_its_ids(tokenizer: SourceTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_begin_symbol_is_no_text(tokenizer: SourceTokenizer) -> None:
    assert tokenizer.decode([*tokenizer.encode("ab"), BEGIN]) == "ab"


KNOWN_LINES = {
    "Hello world": [15043, 3186],
    "Once upon a time": [9038, 2501, 263, 931],
    "\n": [29871, 13],
}
"""Ids that Llama 2's tokenizer is known to give."""


@pytest.mark.network
def test_the_real_source_reads_and_writes_known_lines() -> None:
    tokenizer, source = load_tokenizer(), load_source()
    for text, ids in KNOWN_LINES.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
    ids = [BEGIN]
    while len(ids) < 24:  # the most probable tokens
        ids.append(int(logits(source, torch.tensor([ids]))[0, -1].argmax()))
    assert tokenizer.decode(ids).startswith("Once upon a time, there was a little girl named Lily. She loved to play")

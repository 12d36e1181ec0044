import pytest
import torch

from fpmgm.randomness import Streams, generator


def test_generators_depend_on_every_part_of_their_key() -> None:
    keys = [(0,), (1,), (0, 0), (0, 1), (1, 0)]
    first = [torch.rand(4, generator=generator(*key)) for key in keys]
    for i, a in enumerate(first):
        for b in first[i + 1 :]:
            assert not torch.equal(a, b)


def test_a_stream_depends_on_its_index_and_not_on_the_batch() -> None:
    together = Streams.of(3, range(7))
    alone = Streams.of(3, [4])
    for length in (5, 8):
        assert torch.equal(together.uniform(length)[4], alone.uniform(length)[0])


def test_streams_of_one_seed_are_independent() -> None:
    u = Streams.of(0, range(200)).uniform(200) - 0.5
    correlation = (u[:-1] * u[1:]).mean() * 12
    assert abs(correlation) < 0.02


def test_a_negative_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"keyed by \(-1, 0\); seeds and indices must be 0 or more"):
        generator(-1, 0)


def test_the_global_generator_is_not_touched() -> None:
    before = torch.random.get_rng_state()
    Streams.of(0, range(3)).uniform(10)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_fixed_number_of_a_stream_is_always_the_same_and_takes_nothing_from_it() -> None:
    asked, untouched = Streams.of(3, range(500)), Streams.of(3, range(500))
    first = asked.fixed
    assert torch.equal(asked.uniform(5), untouched.uniform(5))
    assert torch.equal(asked.fixed, first)
    assert torch.equal(Streams.of(3, [7, 11]).fixed, first[[7, 11]])
    assert len(set(first.tolist())) == 500
    assert 0.45 < float(first.mean()) < 0.55
    assert not torch.equal(first, Streams.of(4, range(500)).fixed)
    assert not torch.isin(first, Streams.of(3, range(500)).uniform(50)).any()

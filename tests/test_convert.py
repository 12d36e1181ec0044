from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fpmgm
from fpmgm.budget import Cost
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.data.tokenizing import train_bpe
from fpmgm.denoiser import Denoiser
from fpmgm.injection import InjectionName
from fpmgm.interop.conversion import to_fixed_point
from fpmgm.interop.layer_map import LayerMap
from fpmgm.types import Places
from tests.conftest import SMALL, Build

DEPTH = 12
PLAIN = replace(SMALL, num_pre=DEPTH, num_fp=0, num_post=0, time_conditioning=True)
EXACT = ["mlp", "linear", "add"]
MAPS = ["1/6/12", "1,2/6,7/11,12", "3/3/3", "/5/", "12/1/6"]
CODEC = TextCodec(train_bpe(iter(["the sea"]), 258).to_str())


@pytest.fixture
def plain(small_model: Build) -> Model:
    denoiser = small_model(num_pre=DEPTH, num_fp=0, num_post=0, time_conditioning=True)
    return Model(denoiser=denoiser, config=PLAIN, codec=CODEC, generation={"budgets": {}}, card="# source\n")


def tokens() -> tuple[Tensor, Tensor]:
    z = torch.randint(SMALL.vocab_size, (2, 16), generator=torch.Generator().manual_seed(3))
    return z, torch.tensor([0.3, 0.8])


def run_layers(denoiser: Denoiser, layers: Sequence[int], h: Tensor, cond: Any) -> Tensor:
    """Layers of a stack by hand, counted from 1."""
    for layer in layers:
        h = denoiser.backbone.run_block(layer - 1, h, cond)
    return h


@pytest.mark.parametrize("text", MAPS)
@pytest.mark.parametrize("injection", EXACT)
@pytest.mark.parametrize("num_iters", [1, 3])
@torch.no_grad()
def test_with_1_and_0_the_model_is_a_plain_loop_of_the_fixed_point_layers(
    plain: Model, text: str, injection: InjectionName, num_iters: int
) -> None:
    layer_map = LayerMap.parse(text)
    fp = to_fixed_point(plain, layer_map, a=1.0, b=0.0, injection=injection).denoiser
    z, t = tokens()
    source = plain.denoiser
    cond = source.condition(z, t)
    h = run_layers(source, layer_map.pre, source.backbone.embed(z), cond)
    ours = fp.condition(z, t)
    h_pre = fp.pre(z, ours)
    torch.testing.assert_close(h_pre, h, atol=1e-5, rtol=0)
    h = run_layers(source, layer_map.fp * num_iters, h, cond)
    found = fpmgm.picard(fp.fixed_point_map(h_pre, ours), h_pre, num_iters).h
    torch.testing.assert_close(found, h, atol=1e-5, rtol=1e-5)
    everywhere = torch.ones_like(z, dtype=torch.bool)
    h = run_layers(source, layer_map.post, h, cond)
    logits = source.head(source.backbone.finish(h[everywhere], cond, Places.of(everywhere)))
    torch.testing.assert_close(fp.head(fp.post(found, ours, everywhere)), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1.0, 0.0), (0.3, -2.0)])
@pytest.mark.parametrize("injection", EXACT)
@torch.no_grad()
def test_the_injection_of_a_converted_model_returns_a_h_plus_b_h_pre(
    plain: Model, a: float, b: float, injection: InjectionName
) -> None:
    fp = to_fixed_point(plain, LayerMap.parse("1/6/12"), a=a, b=b, injection=injection).denoiser
    h, h_pre = torch.randn(2, 2, 16, SMALL.width, generator=torch.Generator().manual_seed(0))
    assert fp.injection is not None
    found = fp.injection(h, fp.injection.constant(h_pre))
    torch.testing.assert_close(found, a * h + b * h_pre, atol=1e-5, rtol=0)
    z, t = tokens()
    cond = fp.condition(z, t)
    expected = run_layers(plain.denoiser, [6], a * h + b * h_pre, plain.denoiser.condition(z, t))
    torch.testing.assert_close(fp.fixed_point_map(h_pre, cond)(h), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_diagonal_injection_of_a_converted_model_starts_near_a_h_plus_b_h_pre(plain: Model) -> None:
    fp = to_fixed_point(plain, LayerMap.parse("1/6/12"), a=0.25, b=-0.5, injection="diagonal").denoiser
    z, t = tokens()
    h_pre = fp.pre(z, fp.condition(z, t))
    assert fp.injection is not None
    found = fp.injection(torch.ones_like(h_pre), fp.injection.constant(h_pre)) - 0.25
    cosine = torch.cosine_similarity(found, -h_pre, dim=-1)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    sizes = found.norm(dim=-1) / h_pre.norm(dim=-1)
    assert float(sizes.mean()) == pytest.approx(0.5, rel=0.1)


@torch.no_grad()
def test_a_map_of_all_layers_and_one_iteration_is_the_source(plain: Model) -> None:
    layer_map = LayerMap((1, 2, 3, 4, 5), (6,), (7, 8, 9, 10, 11, 12))
    fp = to_fixed_point(plain, layer_map, a=1.0, b=0.0).denoiser
    z, t = tokens()
    everywhere = torch.ones_like(z, dtype=torch.bool)
    expected = plain.denoiser.head(plain.denoiser(z, t, everywhere).features)
    torch.testing.assert_close(fp.head(fp(z, t, everywhere, num_grad=1).features), expected, atol=1e-5, rtol=0)


def test_a_converted_model_owns_its_weights_and_keeps_the_tokenizer(plain: Model) -> None:
    before = {name: tensor.clone() for name, tensor in plain.denoiser.state_dict().items()}
    fp = to_fixed_point(plain, LayerMap.parse("1/6/6"))
    assert fp.config.cost == Cost(1, 1, 1)
    assert fp.config == replace(PLAIN, num_pre=1, num_fp=1, num_post=1)
    assert (fp.codec, fp.generation, fp.card) == (CODEC, {}, "")
    assert not fp.denoiser.training
    with torch.no_grad():
        for parameter in fp.denoiser.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in plain.denoiser.state_dict().items())


def test_the_papers_map_of_mdlm_small_has_104_659_794_parameters() -> None:
    with torch.device("meta"):
        config = fpmgm.MDLMConfig()
        source = Model(denoiser=fpmgm.mdlm(config), config=config)
        fp = to_fixed_point(source, LayerMap.of_depth(config.num_pre)).denoiser
    assert sum(parameter.numel() for parameter in fp.parameters()) == 104_659_794


def test_what_cannot_be_cut_is_refused(plain: Model, small_model: Build) -> None:
    with pytest.raises(ValueError, match=r"names layer 13, but the source has layers 1 to 12"):
        to_fixed_point(plain, LayerMap.parse("1/6/13"))
    with pytest.raises(ValueError, match="the source has a fixed point already"):
        to_fixed_point(Model(denoiser=small_model(), config=SMALL), LayerMap.parse("1/1/1"))
    causal = replace(PLAIN, is_causal=True)
    with pytest.raises(ValueError, match="the source is a causal model"):
        to_fixed_point(replace(plain, config=causal), LayerMap.parse("1/1/1"))
    with pytest.raises(ValueError, match=r"\(a, b\) is \(nan, 0.5\); both must be finite"):
        to_fixed_point(plain, LayerMap.parse("1/1/1"), a=float("nan"))
    with pytest.raises(ValueError, match="a is 1, and the injection diagonal always shrinks h"):
        to_fixed_point(plain, LayerMap.parse("1/1/1"), a=1.0, injection="diagonal")
    with pytest.raises(ValueError, match="unknown injection 'mpl'; did you mean 'mlp'"):
        to_fixed_point(plain, LayerMap.parse("1/1/1"), injection="mpl")  # type: ignore[arg-type]

"""MDLM's network, against its published facts and against a slow reference written from them."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import fpmgm
from fpmgm.backbones.dit import DiT, MDLMConfig, mdlm
from fpmgm.budget import Cost
from fpmgm.denoiser import Denoiser
from fpmgm.injection import Injection
from fpmgm.randomness import generator
from fpmgm.types import Places
from tests.conftest import SMALL, Build


def count(config: MDLMConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in fpmgm.mdlm(config).parameters())


def test_mdlm_small_has_its_published_parameters() -> None:
    assert count(MDLMConfig()) == 169_627_218


def test_fp_mdlm_has_the_papers_parameters_with_and_without_g() -> None:
    fp = MDLMConfig(num_pre=1, num_fp=1, num_post=1)
    assert count(fp) == 104_659_794
    assert count(replace(fp, has_projection=False)) == 104_069_202


def test_the_tensors_of_mdlm_have_their_checkpoint_names_shapes_and_order() -> None:
    expected: list[tuple[str, tuple[int, ...]]] = [
        ("vocab_embed.embedding", (50258, 768)),
        ("sigma_map.mlp.0.weight", (128, 256)),
        ("sigma_map.mlp.0.bias", (128,)),
        ("sigma_map.mlp.2.weight", (128, 128)),
        ("sigma_map.mlp.2.bias", (128,)),
    ]
    for i in range(12):
        expected += [
            (f"blocks.{i}.norm1.weight", (768,)),
            (f"blocks.{i}.attn_qkv.weight", (2304, 768)),
            (f"blocks.{i}.attn_out.weight", (768, 768)),
            (f"blocks.{i}.norm2.weight", (768,)),
            (f"blocks.{i}.mlp.0.weight", (3072, 768)),
            (f"blocks.{i}.mlp.0.bias", (3072,)),
            (f"blocks.{i}.mlp.2.weight", (768, 3072)),
            (f"blocks.{i}.mlp.2.bias", (768,)),
            (f"blocks.{i}.adaLN_modulation.weight", (4608, 128)),
            (f"blocks.{i}.adaLN_modulation.bias", (4608,)),
        ]
    expected += [
        ("output_layer.norm_final.weight", (768,)),
        ("output_layer.linear.weight", (50258, 768)),
        ("output_layer.linear.bias", (50258,)),
        ("output_layer.adaLN_modulation.weight", (1536, 128)),
        ("output_layer.adaLN_modulation.bias", (1536,)),
    ]
    with torch.device("meta"):
        backbone = DiT(MDLMConfig())
    assert [(name, tuple(p.shape)) for name, p in backbone.named_parameters()] == expected
    assert len(expected) == 130


def test_fresh_weights_are_mdlms() -> None:
    backbone = DiT(replace(SMALL, width=64))
    bound = 1 / math.sqrt(64)
    embedding = backbone.vocab_embed.embedding
    assert embedding.abs().max() <= bound
    assert embedding.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for name, parameter in backbone.named_parameters():
        is_zero = "adaLN_modulation" in name or "output_layer.linear" in name
        assert bool((parameter == 0).all()) == is_zero, name


def test_embeddings_are_normal_with_a_fixed_point_or_on_request() -> None:
    plain = replace(SMALL, width=64, vocab_size=200, num_pre=1, num_fp=0, num_post=0)
    spreads = {
        (bool(config.num_fp), how): float(
            mdlm(replace(config, embedding_start=how)).backbone.embed(torch.arange(200)[None]).std().detach()
        )
        for config in (plain, replace(plain, num_fp=1, num_post=1))
        for how in ("auto", "uniform", "normal")
    }
    normal = {(True, "auto"), (True, "normal"), (False, "normal")}
    assert {key for key, spread in spreads.items() if 0.9 < spread < 1.1} == normal
    assert {key for key, spread in spreads.items() if spread < 0.1} == set(spreads) - normal


def test_a_fresh_network_predicts_uniformly_so_its_loss_is_log_50257() -> None:
    config = MDLMConfig(width=16, num_heads=2, num_pre=2, length=32, cond_width=8, dropout=0.0)
    denoiser = fpmgm.mdlm(config)
    x = torch.randint(0, 50257, (8, 32), generator=generator(0))
    t = torch.full((8,), 0.5)
    is_masked = torch.rand(8, 32, generator=generator(1)) < t[:, None]
    z = x.masked_fill(is_masked, config.mask_id)
    features, _ = denoiser(z, t, is_masked)
    logits = fpmgm.subs(denoiser.head(features)[None], z[is_masked][None], mask_id=config.mask_id)
    nll = -logits[0].gather(1, x[is_masked][:, None]).mean()
    assert nll.item() == pytest.approx(math.log(50257), abs=1e-4)
    assert math.log(50257) == pytest.approx(10.825, abs=1e-3)


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, second, other = fpmgm.mdlm(SMALL), fpmgm.mdlm(SMALL), fpmgm.mdlm(SMALL, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    name = "backbone.blocks.0.attn_qkv.weight"
    assert torch.equal(first.state_dict()[name], second.state_dict()[name])
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


class Reference:
    """The network again, from the description of its parts: one head, one position and one pair at a time."""

    def __init__(self, denoiser: Denoiser, num_heads: int) -> None:
        self.tensors = {k.removeprefix("backbone."): v.detach() for k, v in denoiser.state_dict().items()}
        self.num_heads = num_heads

    def norm(self, x: Tensor, name: str) -> Tensor:
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(var + 1e-5) * self.tensors[name]

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].mT + self.tensors.get(f"{name}.bias", torch.zeros(()))

    def condition(self, sigma: float) -> Tensor:
        frequencies = torch.tensor([10_000 ** (-i / 128) for i in range(128)]).double()
        sinusoids = torch.cat([torch.cos(sigma * frequencies), torch.sin(sigma * frequencies)])
        hidden = F.silu(self.linear(sinusoids, "sigma_map.mlp.0"))
        return F.silu(self.linear(hidden, "sigma_map.mlp.2"))

    def rotated(self, vector: Tensor, position: int) -> Tensor:
        half = len(vector) // 2
        out = vector.clone()
        for i in range(half):
            angle = position * 10_000 ** (-2 * i / len(vector))
            a, b = vector[i], vector[half + i]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[half + i] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def attention(self, x: Tensor, block: str) -> Tensor:
        length, width = x.shape
        head_width = width // self.num_heads
        q, k, v = self.linear(x, f"{block}.attn_qkv").reshape(length, 3, self.num_heads, head_width).unbind(1)
        out = torch.zeros_like(x)
        for head in range(self.num_heads):
            for i in range(length):
                query = self.rotated(q[i, head], i)
                scores = torch.stack([query @ self.rotated(k[j, head], j) for j in range(length)])
                mixed = (scores / math.sqrt(head_width)).softmax(0) @ v[:, head]
                out[i, head * head_width : (head + 1) * head_width] = mixed
        return self.linear(out, f"{block}.attn_out")

    def block(self, h: Tensor, index: int, c: Tensor) -> Tensor:
        block = f"blocks.{index}"
        shift1, scale1, gate1, shift2, scale2, gate2 = self.linear(c, f"{block}.adaLN_modulation").chunk(6)
        h = h + gate1 * self.attention(self.norm(h, f"{block}.norm1.weight") * (1 + scale1) + shift1, block)
        inner = self.linear(self.norm(h, f"{block}.norm2.weight") * (1 + scale2) + shift2, f"{block}.mlp.0")
        return h + gate2 * self.linear(F.gelu(inner, approximate="tanh"), f"{block}.mlp.2")

    def inject(self, h: Tensor, h_pre: Tensor) -> Tensor:
        u = self.linear(h_pre, "injection.project")
        hidden = F.gelu(self.linear(torch.cat([h, u], -1), "injection.mix.fc1"), approximate="tanh")
        return self.linear(hidden, "injection.mix.fc2")

    def logits(self, h: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.linear(c, "output_layer.adaLN_modulation").chunk(2)
        finished = self.norm(h, "output_layer.norm_final.weight") * (1 + scale) + shift
        return self.linear(finished, "output_layer.linear")

    def embed(self, z: Tensor) -> Tensor:
        return self.tensors["vocab_embed.embedding"][z]


@pytest.mark.parametrize("time_conditioning", [False, True])
def test_a_plain_stack_computes_mdlms_network(small_model: Build, time_conditioning: bool) -> None:
    denoiser = small_model(num_pre=3, num_fp=0, num_post=0, time_conditioning=time_conditioning, dtype=torch.float64)
    z, t = torch.tensor([[3, 11, 0, 7, 11], [11, 11, 2, 11, 5]]), torch.tensor([0.3, 0.8])
    logits = denoiser.head(denoiser(z, t, torch.ones_like(z, dtype=torch.bool)).features)
    reference = Reference(denoiser, SMALL.num_heads)
    expected = []
    for row, time in zip(z, t.tolist(), strict=True):
        sigma = -math.log(1 - (1 - 1e-3) * time) if time_conditioning else 0.0
        c = reference.condition(sigma)
        h = reference.embed(row)
        for index in range(3):
            h = reference.block(h, index, c)
        expected.append(reference.logits(h, c))
    torch.testing.assert_close(logits, torch.cat(expected), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("num_pre", "num_fp", "num_post"), [(2, 2, 2), (1, 1, 1), (1, 1, 0), (0, 2, 1)])
def test_a_fixed_point_denoiser_computes_equation_2(
    small_model: Build, num_pre: int, num_fp: int, num_post: int
) -> None:
    denoiser = small_model(num_pre=num_pre, num_fp=num_fp, num_post=num_post, dtype=torch.float64)
    z = torch.tensor([[3, 11, 0, 7, 11]])
    logits = denoiser.head(denoiser(z, 0.5, torch.ones_like(z, dtype=torch.bool), num_grad=3).features)
    reference = Reference(denoiser, SMALL.num_heads)
    c = reference.condition(0.0)
    h = reference.embed(z[0])
    for index in range(num_pre):
        h = reference.block(h, index, c)
    h_pre = h
    for _ in range(3):
        h = reference.inject(h, h_pre)
        for index in range(num_pre, num_pre + num_fp):
            h = reference.block(h, index, c)
    for index in range(num_pre + num_fp, num_pre + num_fp + num_post):
        h = reference.block(h, index, c)
    torch.testing.assert_close(logits, reference.logits(h, c), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("branch", ["attn", "mlp"])
@pytest.mark.parametrize("is_partial", [False, True])
def test_dropout_drops_its_share_of_each_branch_before_the_gate(
    small_model: Build, branch: str, is_partial: bool
) -> None:
    backbone = small_model(num_pre=1, num_fp=0, num_post=0, dropout=0.3).train().backbone
    z = torch.zeros(8, 16, dtype=torch.long) + torch.arange(16) % 11
    cond = backbone.condition(z, 0.5)
    other = "gate_mlp" if branch == "attn" else "gate_attn"
    cond = replace(cond, blocks=(cond.blocks[0]._replace(**{other: torch.zeros(1, 1, 32)}),))
    h = backbone.embed(z)
    everywhere = torch.ones_like(z, dtype=torch.bool)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        after = (
            backbone.run_block_at(0, h, cond, Places.of(everywhere)) if is_partial else backbone.run_block(0, h, cond)
        )
    dropped = (after.reshape(h.shape) == h).float().mean()
    assert dropped.item() == pytest.approx(0.3, abs=0.03)


def test_the_defaults_are_mdlm_smalls() -> None:
    config = MDLMConfig()
    assert (config.width, config.num_heads, config.num_pre, config.dropout) == (768, 12, 12, 0.1)
    assert (config.vocab_size, config.mask_id, config.length, config.cond_width) == (50258, 50257, 1024, 128)
    assert not (config.num_fp)
    assert not (config.time_conditioning)
    assert not (config.is_causal)


def test_configurations_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="mask_id is 12; it must be below vocab_size 12"):
        replace(SMALL, mask_id=12)
    with pytest.raises(ValueError, match="width 36 over 4 heads"):
        replace(SMALL, width=36)
    with pytest.raises(ValueError, match=r"dropout is 1\.0"):
        replace(SMALL, dropout=1.0)
    with pytest.raises(ValueError, match="1/0/2 blocks have no fixed point; write a plain stack as 3/0/0"):
        fpmgm.mdlm(replace(SMALL, num_fp=0, num_post=2))
    with pytest.raises(ValueError, match="1/1/0 blocks make 2, but the backbone has 3"):
        Denoiser(DiT(SMALL), Cost(1, 1, 0), injection=Injection("add", 32))
    with pytest.raises(ValueError, match="a fixed point needs an injection"):
        Denoiser(DiT(SMALL), Cost(1, 1, 1))

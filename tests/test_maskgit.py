"""Halton-MaskGIT's network as a backbone: its sizes, its classes and its register."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fpmgm.analysis.layers import layer_states
from fpmgm.backbones.lean import gated, modulated, unit
from fpmgm.backbones.maskgit import SIZES, MaskGIT, MaskGITConfig, MaskGITNetwork, maskgit
from fpmgm.backbones.network import Vocabulary
from fpmgm.checkpoint import Model, load_folder
from fpmgm.denoiser import Denoiser
from fpmgm.objectives import MaskedCrossEntropy
from fpmgm.randomness import Streams, generator
from fpmgm.reuse import ThreeStateReuse, full_reuse, no_reuse, three_state_reuse
from fpmgm.sampling import even_times, sample
from fpmgm.solvers import picard
from fpmgm.transitions import Ancestral
from fpmgm.types import Batch, Places, Solved
from tests.test_devices import CUDA, fake_cuda, waits_of

LITTLE = MaskGITConfig(
    vocab_size=13,
    mask_id=12,
    length=9,
    num_classes=3,
    width=32,
    num_heads=4,
    num_pre=1,
    num_fp=1,
    num_post=1,
    mlp_multiple=8,
    dropout=0.0,
)
PLAIN: dict[str, Any] = {"num_pre": 3, "num_fp": 0, "num_post": 0}
SPLITS: list[dict[str, Any]] = [
    PLAIN,
    {},
    {"num_pre": 2, "num_fp": 1, "num_post": 0},
    {"num_registers": 0},
    {"num_heads": 5},
]


def little(*, seed: int = 1, dtype: torch.dtype = torch.float32, **fields: Any) -> Denoiser:
    """A small denoiser with weights that are nowhere 0."""
    denoiser = maskgit(replace(LITTLE, **fields))
    rng = generator(seed)
    with torch.no_grad():
        for name, parameter in denoiser.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=rng))
            if "ln" in name or name.endswith("last_norm.weight"):
                parameter.add_(1)
    return denoiser.to(dtype).eval()


def tokens(batch: int = 4) -> Tensor:
    return torch.randint(0, 13, (batch, 9), generator=generator(0))


def positions(batch: int = 4) -> Tensor:
    chosen = torch.rand(batch, 9, generator=generator(1)) < 0.4
    chosen[0] = False
    chosen[1] = True
    return chosen


LABELS = torch.tensor([0, 2, -1, 1])


def iterations(denoiser: Denoiser) -> dict[str, int]:
    return {"num_no_grad": 1, "num_grad": 2} if denoiser.cost.fp else {}


def features(denoiser: Denoiser, z: Tensor, where: Tensor, label: Tensor | None = LABELS) -> Tensor:
    found: Tensor = denoiser(z, 0.5, where, label=label, **iterations(denoiser)).features
    return found


def count(config: MaskGITConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in maskgit(config).parameters())


def test_the_networks_of_the_paper_have_their_parameters() -> None:
    assert count(MaskGITConfig()) == 466_048_001
    assert count(MaskGITConfig(num_pre=12)) == 236_311_553
    fp = MaskGITConfig(num_pre=4, num_fp=1, num_post=4)
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in MaskGIT(fp).parameters()) == 178_877_441
    assert count(fp) == 186_221_569


def test_the_named_sizes_have_halton_maskgits_published_parameters() -> None:
    published = {("tiny", 256): 23.0, ("base", 256): 142.2, ("large", 576): 480.0}
    for (name, length), millions in published.items():
        vocabulary = Vocabulary(size=16385, mask_id=16384, length=length, num_classes=1000)
        assert count(SIZES[name].fit(vocabulary)) / 1e6 == pytest.approx(millions, abs=0.05)


def test_heads_that_do_not_divide_the_width_make_attention_narrower() -> None:
    small = SIZES["small"]
    assert (small.width, small.attention_width, small.mlp_width) == (512, 510, 1536)
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in MaskGIT(MaskGITConfig(**vars(small))).named_parameters()}
    assert shapes["blocks.0.wq.weight"] == (510, 512)
    assert shapes["blocks.0.wo.weight"] == (512, 510)


def test_fresh_weights_are_halton_maskgits() -> None:
    backbone = MaskGIT(replace(LITTLE, width=64, vocab_size=500, **PLAIN))
    for name in ("tok_emb", "cls_emb", "pos_emb", "reg_tokens"):
        assert getattr(backbone, name).weight.std().item() == pytest.approx(0.02, rel=0.3)
    z = tokens()
    h = backbone.embed(z)
    cond = backbone.condition(z, 0.5, LABELS)
    for index in range(3):
        assert torch.equal(backbone.run_block(index, h, cond), h)


@pytest.mark.parametrize("start", ["auto", "small", "normal"])
@pytest.mark.parametrize("num_fp", [0, 1])
def test_first_logits_are_small_however_embeddings_start(num_fp: int, start: Any) -> None:
    config = replace(LITTLE, width=64, vocab_size=500, num_fp=num_fp, num_post=num_fp, embedding_start=start)
    denoiser = maskgit(config)
    is_normal = start == "normal" or (start == "auto" and num_fp)
    assert denoiser.backbone.embed(tokens())[:, :9].std().item() == pytest.approx(1.4 if is_normal else 0.028, rel=0.1)
    logits = denoiser.head(features(denoiser, tokens(), torch.ones(4, 9, dtype=torch.bool)))
    assert 0.05 < logits.std().item() < 0.5


@pytest.mark.parametrize("split", SPLITS)
def test_features_and_gradients_at_some_places_equal_those_of_the_full_computation(split: dict[str, Any]) -> None:
    denoiser = little(dtype=torch.float64, **split)
    chosen = features(denoiser, tokens(), positions())
    full = features(denoiser, tokens(), torch.ones(4, 9, dtype=torch.bool))[positions().flatten()]
    torch.testing.assert_close(chosen, full, atol=1e-6, rtol=1e-5)
    weights = torch.randn(chosen.shape, generator=generator(2), dtype=torch.float64)
    parameters = list(denoiser.parameters())
    found, expected = (
        torch.autograd.grad((weights * each).sum(), parameters, allow_unused=True) for each in (chosen, full)
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fields", [{}, {"num_registers": 0}, {"num_heads": 5}])
def test_a_block_at_some_places_equals_the_whole_block_there(fields: dict[str, Any]) -> None:
    backbone = little(dtype=torch.float64, **fields).backbone
    z = tokens()
    for label in (LABELS, None):
        cond = backbone.condition(z, 0.5, label)
        h = backbone.embed(z)
        whole = backbone.run_block(0, h, cond)[:, :9][positions()]
        torch.testing.assert_close(backbone.run_block_at(0, h, cond, Places.of(positions())), whole)


def test_hidden_states_end_with_the_registers_and_the_head_never_sees_them() -> None:
    denoiser = little(num_registers=2)
    z = tokens()
    cond = denoiser.condition(z, 0.5)
    h = denoiser.pre(z, cond)
    assert h.shape == (4, 11, 32)
    everywhere = torch.ones(4, 9, dtype=torch.bool)
    assert denoiser.post(h, cond, everywhere).shape == (4 * 9, 32)
    assert torch.equal(Places.of(positions()).take(h), h[:, :9][positions()])
    assert all(state.shape == (4, 9, 32) for state in layer_states(denoiser, z, 0.5, num_iters=2))


def test_the_register_is_read_by_every_position_and_has_no_position_of_its_own() -> None:
    denoiser = little()
    backbone: Any = denoiser.backbone
    everywhere = torch.ones(4, 9, dtype=torch.bool)
    before = features(denoiser, tokens(), everywhere)
    assert torch.equal(backbone.embed(tokens())[:, 9], backbone.reg_tokens.weight.expand(4, -1))
    with torch.no_grad():
        backbone.reg_tokens.weight.add_(1)
    assert bool(((features(denoiser, tokens(), everywhere) - before).abs().amax(-1) > 1e-4).all())


def test_every_position_sees_every_other() -> None:
    denoiser = little(**PLAIN)
    everywhere = torch.ones(1, 9, dtype=torch.bool)
    z = tokens(1)
    before = features(denoiser, z, everywhere, None)
    for place in range(9):
        changed = z.clone()
        changed[0, place] = (z[0, place] + 1) % 13
        assert bool(((features(denoiser, changed, everywhere, None) - before).abs().amax(-1) > 1e-5).all())


def test_equal_tokens_are_told_apart_by_their_position_only() -> None:
    denoiser = little(**PLAIN)
    same = torch.full((1, 9), 12)
    everywhere = torch.ones(1, 9, dtype=torch.bool)
    assert not torch.allclose(*features(denoiser, same, everywhere, None)[:2])
    backbone: Any = denoiser.backbone
    with torch.no_grad():
        backbone.pos_emb.weight.zero_()
    torch.testing.assert_close(*features(denoiser, same, everywhere, None)[:2])


def test_no_class_is_minus_one_or_no_label_and_classes_differ() -> None:
    denoiser = little()
    z, everywhere = tokens(1).expand(4, -1), torch.ones(4, 9, dtype=torch.bool)
    by_class = features(denoiser, z, everywhere).unflatten(0, (4, 9))
    none = features(denoiser, z, everywhere, None).unflatten(0, (4, 9))
    torch.testing.assert_close(by_class[2], none[2])
    assert all((by_class[a] - by_class[b]).abs().max() > 1e-3 for a in range(4) for b in range(a))
    with torch.no_grad():
        denoiser.get_parameter("backbone.cls_emb.weight")[-1].add_(1)
    after = features(denoiser, z, everywhere).unflatten(0, (4, 9))
    torch.testing.assert_close(after[[0, 1, 3]], by_class[[0, 1, 3]])  # only the last row has moved


@pytest.mark.parametrize("label", [3, -2])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    with pytest.raises(ValueError, match="the network knows classes 0 to 2, and -1 for none"):
        little().condition(tokens(1), 0.5, torch.tensor([label]))
    with pytest.raises(ValueError, match="the network knows no classes; give -1 or no label"):
        little(num_classes=0).condition(tokens(1), 0.5, torch.tensor([label]))


def test_a_network_without_classes_is_told_none() -> None:
    network = MaskGITNetwork(width=32, num_heads=4, num_pre=1)
    config = network.fit(Vocabulary(size=13, mask_id=12, length=9))
    assert config.num_classes == 0
    denoiser = config.build().eval()
    none, minus_one = (features(denoiser, tokens(), positions(), label) for label in (None, torch.full((4,), -1)))
    torch.testing.assert_close(none, minus_one)


@pytest.mark.parametrize("split", SPLITS)
def test_a_sequence_does_not_depend_on_its_neighbours(split: dict[str, Any]) -> None:
    denoiser = little(**split)
    everywhere = torch.ones(4, 9, dtype=torch.bool)
    together = features(denoiser, tokens(), everywhere).unflatten(0, (4, 9))
    for row in range(4):
        part = slice(row, row + 1)
        alone = features(denoiser, tokens()[part], everywhere[part], LABELS[part])
        torch.testing.assert_close(alone, together[row], atol=1e-5, rtol=1e-5)


def test_reuse_trusts_a_register_as_it_trusts_a_visible_position() -> None:
    rule = ThreeStateReuse(visible=0.9)
    z = torch.tensor([[1, 12, 12], [1, 2, 12]])
    last = Solved(z=torch.tensor([[1, 2, 12], [1, 2, 12]]), h_star=torch.ones(2, 5, 2))
    gamma = rule(torch.zeros(2, 5, 2), z, last, mask_id=12)[..., 0]
    torch.testing.assert_close(gamma[:, 3:], torch.full((2, 2), 0.9))
    without = rule(torch.zeros(2, 3, 2), z, replace(last, h_star=torch.ones(2, 3, 2)), mask_id=12)[..., 0]
    assert torch.equal(gamma[:, :3], without)
    assert full_reuse(torch.zeros(2, 5, 2), z, last, mask_id=12).shape == (2, 5, 2)


@pytest.mark.parametrize("split", [PLAIN, {}])
def test_samples_hold_no_mask_and_are_the_same_in_any_batch(split: dict[str, Any]) -> None:
    denoiser = little(**split)

    def draw(rows: range) -> Tensor:
        return sample(
            denoiser,
            torch.full((len(rows), 9), 12),
            times=even_times(4),
            iterations=[2 if denoiser.cost.fp else 0] * 4,
            transition=Ancestral(),
            rng=Streams.of(0, rows),
            label=LABELS[rows.start : rows.stop],
            reuse=three_state_reuse if denoiser.cost.fp else no_reuse,
        ).z

    together = draw(range(4))
    assert int(together.max()) < 12
    assert torch.equal(torch.cat([draw(range(2)), draw(range(2, 4))]), together)


@contextmanager
def linears_run(denoiser: Denoiser, part: str) -> Iterator[list[str]]:
    called: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, module in denoiser.named_modules()
        if part in name and isinstance(module, nn.Linear)
    ]
    yield called
    for handle in handles:
        handle.remove()


def test_modulations_are_computed_once_per_step_whatever_the_iterations() -> None:
    denoiser = little()
    with linears_run(denoiser, "mlp") as called:
        denoiser(tokens(), 0.5, positions(), label=LABELS, num_grad=6)
    assert len(called) == len(set(called)) == 4  # three blocks and the final norm


def test_the_fixed_point_map_of_some_rows_is_that_of_the_batch_at_those_rows() -> None:
    denoiser = little(dropout=0.3, frozen_dropout=True).train()
    rows = torch.tensor([3, 1])
    for label in (LABELS, None):
        cond = denoiser.condition(tokens(), 0.5, label)
        h = denoiser.pre(tokens(), cond)
        f = denoiser.fixed_point_map(h, cond)
        torch.testing.assert_close(f(h[rows], rows), f(h)[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("drops_attention", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_dropout_shares_one_pattern_over_the_iterations_of_a_solve(frozen: bool, drops_attention: bool) -> None:
    denoiser = little(dropout=0.5, frozen_dropout=frozen, drops_attention=drops_attention).train()
    cond = denoiser.condition(tokens(), 0.5, LABELS)
    h = denoiser.pre(tokens(), cond)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        f, other = denoiser.fixed_point_map(h, cond), denoiser.fixed_point_map(h, cond)
        assert torch.equal(f(h), f(h)) == frozen
        assert not torch.equal(f(h), other(h))


def test_frozen_dropout_has_the_mean_of_a_pass_without_dropout() -> None:
    denoiser = little(dropout=0.2, frozen_dropout=True, dtype=torch.float64)
    cond = denoiser.condition(tokens(), 0.5, LABELS)
    h = denoiser.pre(tokens(), cond)
    block: Any = denoiser.backbone.blocks[1]
    training = denoiser.train().condition(tokens(), 0.5, LABELS)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        block.w2.weight.zero_()  # what is left is linear in every pattern: attention's branch alone
        exact = denoiser.backbone.run_block(1, h, cond)
        passes = [denoiser.backbone.run_block(1, h, training.freeze_dropout(h, range(1, 2))) for _ in range(400)]
    torch.testing.assert_close(torch.stack(passes).mean(0), exact, atol=0.1, rtol=0.1)


def test_frozen_patterns_multiply_attentions_weights_and_the_hidden_product() -> None:
    denoiser = little(dropout=0.5, frozen_dropout=True).train()
    cond = denoiser.condition(tokens(), 0.5, LABELS)
    h = denoiser.pre(tokens(), cond)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        frozen = cond.freeze_dropout(h, range(1, 2))
    drops = frozen.frozen[1]
    for kept in (drops.kept_weights, drops.kept_hidden):
        assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert bool((frozen.blocks[1].gate_attn == 0).any())
    nothing = drops._replace(
        kept_weights=torch.zeros_like(drops.kept_weights), kept_hidden=torch.zeros_like(drops.kept_hidden)
    )
    run = denoiser.backbone.run_block
    assert torch.equal(run(1, h, replace(frozen, frozen={1: nothing})), h)
    for part in ("kept_weights", "kept_hidden"):
        half = drops._replace(**{part: getattr(nothing, part)})
        assert not torch.allclose(run(1, h, replace(frozen, frozen={1: half})), run(1, h, frozen))


def test_dropout_drops_attention_weights_its_output_and_the_hidden_product() -> None:
    def spread(**fields: Any) -> float:
        denoiser = little(dropout=0.4, **fields, **PLAIN).train()
        cond = denoiser.condition(tokens(), 0.5, LABELS)
        h = denoiser.backbone.embed(tokens())
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            block: Any = denoiser.backbone.blocks[0]
            block.w2.weight.zero_()
            return float(torch.stack([denoiser.backbone.run_block(0, h, cond) for _ in range(50)]).var(0).sum())

    assert spread() > 1.2 * spread(drops_attention=False) > 0
    denoiser = little(dropout=0.4, **PLAIN)
    first, second = (features(denoiser, tokens(), positions()) for _ in range(2))
    assert torch.equal(first, second)  # none in evaluation


def on_fake_cuda(config: MaskGITConfig) -> Denoiser:
    with torch.device("meta"):
        denoiser = maskgit(config)
    for module in denoiser.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape, device=CUDA), requires_grad=False))
    return denoiser.eval()


@pytest.mark.parametrize("has_labels", [False, True])
def test_a_denoising_step_runs_whole_on_the_device_of_its_weights(has_labels: bool) -> None:
    with fake_cuda(), torch.no_grad():
        denoiser = on_fake_cuda(LITTLE)
        z = torch.zeros(3, 9, dtype=torch.long, device=CUDA)
        label = torch.zeros(3, dtype=torch.long, device=CUDA) if has_labels else None
        cond = denoiser.condition(z, 0.5, label)
        h_pre = denoiser.pre(z, cond)
        last = Solved(z=z, h_star=torch.zeros(3, 10, 32, device=CUDA))
        h = three_state_reuse(h_pre, z, last, mask_id=12)
        solution = picard(denoiser.fixed_point_map(h_pre, cond), h, 3)
        every = torch.arange(27, device=CUDA)
        places = Places(flat=every, by_row=every.view(3, 9) % 9, slots=every, counts=(9, 9, 9), length=9)
        logits = denoiser.head(denoiser.post(solution.h, cond, places))
        assert {t.device.type for t in (h_pre, h, solution.h, logits)} == {"cuda"}


@pytest.mark.parametrize("split", SPLITS)
def test_an_update_follows_the_device_of_the_batch(split: dict[str, Any]) -> None:
    with torch.device("meta"):
        denoiser = maskgit(replace(LITTLE, dropout=0.1, **split))
    objective = MaskedCrossEntropy(weighting="masked", schedule="arccos")
    batch = Batch(x=tokens() % 12, label=LABELS)
    losses = objective.loss(denoiser, batch.x.to("meta"), objective.draw(denoiser, batch, rng=generator(1)))
    losses.total.backward()
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in denoiser.backbone.blocks.parameters())


def test_a_pass_never_waits_for_the_device() -> None:
    denoiser = little()
    places = Places.of(positions())

    def run() -> None:
        cond = denoiser.condition(tokens(), 0.5)
        h_pre = denoiser.pre(tokens(), cond)
        denoiser.post(picard(denoiser.fixed_point_map(h_pre, cond), h_pre, 2).h, cond, places)

    assert waits_of(run) == []


@pytest.mark.parametrize(
    "fields",
    [*SPLITS, {"injection": "linear"}, {"injection": "add", "has_projection": False}, {"injection": "diagonal"}],
)
@pytest.mark.parametrize("num_positions", [1, 9])
def test_multiply_adds_are_those_that_torch_counts(fields: dict[str, Any], num_positions: int) -> None:
    config = replace(LITTLE, **fields)
    denoiser = maskgit(config).eval()
    num_iters = 3 if config.num_fp else 0
    places = Places.of((torch.arange(9) < num_positions)[None])

    def step() -> None:
        cond = denoiser.condition(tokens(1), 0.5)
        h_pre = denoiser.pre(tokens(1), cond)
        h = picard(denoiser.fixed_point_map(h_pre, cond), h_pre, num_iters).h if num_iters else h_pre
        denoiser.head(denoiser.post(h, cond, places))

    folded = denoiser.injection.folded() if denoiser.injection else nullcontext()
    with folded, FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        step()
    told = config.multiply_adds(num_iters=num_iters, num_positions=num_positions)
    assert told == counter.get_total_flops() // 2


def test_a_model_folder_keeps_the_network(tmp_path: Path) -> None:
    denoiser = little()
    Model(denoiser=denoiser, config=LITTLE).save(tmp_path / "model")
    loaded = load_folder(tmp_path / "model")
    assert loaded.config == LITTLE
    assert loaded.config.kind == "FP-MaskGIT"
    torch.testing.assert_close(
        features(loaded.denoiser, tokens(), positions()), features(denoiser, tokens(), positions())
    )
    sizes: list[dict[str, Any]] = [
        {"num_classes": 4},
        {"length": 16},
        {"num_registers": 2},
        {"mlp_multiple": 256},
        {"num_pre": 2},
    ]
    for wrong in sizes:
        Model(denoiser=denoiser, config=replace(LITTLE, **wrong)).save(tmp_path / "model")
        with pytest.raises(ValueError, match=r"does not fit its config\.json"):
            load_folder(tmp_path / "model")


def test_bf16_comes_close_as_autocast_and_as_weights() -> None:
    denoiser = little()
    exact = features(denoiser, tokens(), positions())
    with torch.autocast("cpu", torch.bfloat16):
        mixed = features(denoiser, tokens(), positions())
        mixed.square().sum().backward()
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, atol=0.15, rtol=0.15)
    rounded = features(little(dtype=torch.bfloat16), tokens(), positions())
    torch.testing.assert_close(rounded.float(), exact, atol=0.3, rtol=0.3)


def test_an_update_trains_every_weight_but_the_classes_that_are_not_there() -> None:
    denoiser = little().train()
    batch = Batch(x=tokens() % 12, label=torch.tensor([0, 0, -1, 1]))
    MaskedCrossEntropy(weighting="masked", schedule="arccos")(denoiser, batch, rng=generator(0)).total.backward()
    gradients = {name: p.grad for name, p in denoiser.named_parameters()}
    assert all(g is not None and bool(g.abs().sum() > 0) for g in gradients.values())
    of_classes = gradients["backbone.cls_emb.weight"]
    assert of_classes is not None
    assert (of_classes.abs().sum(1) > 0).tolist() == [True, True, False, True]


LEAN: list[tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = [
    (unit, lambda x: F.rms_norm(x, (6,), eps=1e-5), ((2, 3, 6),)),
    (modulated, lambda x, s, g: F.rms_norm(x, (6,), eps=1e-5) * g + s, ((2, 3, 6), (2, 1, 6), (1, 1, 6))),
    (modulated, lambda x, s, g: F.rms_norm(x, (6,), eps=1e-5) * g + s, ((5, 6), (1, 6), (5, 6))),
    (gated, lambda g, x: F.silu(g) * x, ((2, 3, 6), (2, 3, 6))),
]


@pytest.mark.parametrize(("lean", "plain", "shapes"), LEAN)
def test_lean_functions_equal_the_plain_ones_with_and_without_gradients(lean: Any, plain: Any, shapes: Any) -> None:
    rng = generator(0)
    given = [torch.randn(shape, generator=rng, dtype=torch.float64, requires_grad=True) for shape in shapes]
    torch.testing.assert_close(lean(*given), plain(*given))
    with torch.no_grad():
        torch.testing.assert_close(lean(*given), plain(*given))
    assert torch.autograd.gradcheck(lean, given)


def test_configurations_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="mask_id is 13; it must be below vocab_size 13"):
        replace(LITTLE, mask_id=13)
    with pytest.raises(ValueError, match="40 heads of a network 32 wide"):
        replace(LITTLE, num_heads=40)
    with pytest.raises(ValueError, match=r"dropout is 1\.0"):
        replace(LITTLE, dropout=1.0)
    with pytest.raises(ValueError, match="num_classes is -1"):
        replace(LITTLE, num_classes=-1)
    with pytest.raises(ValueError, match="unknown injection"):
        replace(LITTLE, injection="sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sequences of 12 tokens; the model takes at most 9"):
        little().backbone.embed(torch.zeros(1, 12, dtype=torch.long))

"""A model that knows a joint distribution by heart: its likelihoods can be enumerated."""

import torch
from torch import Tensor, nn

from fpmgm.backbones.dit import MDLMConfig
from fpmgm.budget import Cost
from fpmgm.checkpoint import Model
from fpmgm.codecs import TextCodec
from fpmgm.denoiser import Denoiser
from fpmgm.randomness import generator
from tests.given import PassingBackbone

LENGTH = 5
WORDS = ("<|endoftext|>", "a", "b", "c")
MASK = len(WORDS)


class JointBackbone(PassingBackbone):
    """Hidden states are log p(x_i | what is visible). What lies beyond a shorter sequence is summed over.

    Because all its conditionals come from one distribution, every order of revealing gives the same likelihood, so the
    bound that masked models are scored by is exact in the mean.
    """

    mask_id = MASK
    vocab_size = MASK + 1
    max_length = LENGTH

    def __init__(self, *, is_causal: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.blocks = nn.ModuleList([nn.Identity()])
        shape = (MASK,) * LENGTH
        drawn = 1.5 * torch.randn(shape, generator=generator(seed), dtype=torch.float64)
        self.joint = drawn.flatten().softmax(dim=0).view(shape)

    def visible(self, z: tuple[int, ...]) -> Tensor:
        """The joint distribution where all that does not fit the visible tokens has no probability."""
        found = self.joint
        for place, token in enumerate(z):
            if token != MASK:
                shape = [1] * LENGTH
                shape[place] = MASK
                found = found * torch.eye(MASK, dtype=torch.float64)[token].view(shape)
        return found

    def log_p(self, z: tuple[int, ...]) -> float:
        """The log-probability of what is visible."""
        return float(self.visible(z).sum().log())

    def _row(self, z: list[int]) -> Tensor:
        rows = []
        for place in range(len(z)):
            known = z[: place + 1] if self.is_causal else z
            asked = place + 1 if self.is_causal else place  # a causal model says what comes next
            p = self.visible(tuple(known))
            others = [axis for axis in range(LENGTH) if axis != min(asked, LENGTH - 1)]
            rows.append((p.sum(dim=others) / p.sum()).clamp_min(1e-30).log())
        mask = torch.full((len(z), 1), -1e30 if self.is_causal else 3.0)
        return torch.cat([torch.stack(rows).float(), mask], dim=-1)

    def embed(self, z: Tensor) -> Tensor:
        return torch.stack([self._row(row) for row in z.tolist()])


def joint_denoiser(*, is_causal: bool = False) -> tuple[Denoiser, JointBackbone]:
    backbone = JointBackbone(is_causal=is_causal)
    return Denoiser(backbone, Cost(1, 0, 0)), backbone


def joint_model(*, is_causal: bool = False) -> tuple[Model, JointBackbone]:
    """The model with a tokenizer of words, so that the harness can ask it texts."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    denoiser, backbone = joint_denoiser(is_causal=is_causal)
    config = MDLMConfig(vocab_size=MASK + 1, mask_id=MASK, length=LENGTH, num_pre=1, is_causal=is_causal)
    return Model(denoiser=denoiser, config=config, codec=TextCodec(tokenizer.to_str())), backbone

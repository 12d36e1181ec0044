"""An objective of your own: masked cross entropy that counts tokens more that the model finds hard."""

from dataclasses import dataclass
from typing import Literal

import torch

import fpmgm
from fpmgm.objectives import MaskedCrossEntropy, Noise, Scalar, token_nll
from fpmgm.types import Features, Places, Tokens


@dataclass(frozen=True, kw_only=True)
class Focal(MaskedCrossEntropy):
    """The mean of (1 - p)^gamma * -log p over masked tokens. With gamma 0 it is plain cross entropy."""

    weighting: Literal["bound", "masked", "all"] = "masked"
    gamma: float = 1.0
    """How much less an easy token counts."""

    def score(self, denoiser: fpmgm.Denoiser, features: Features, x: Tokens, places: Places, noise: Noise) -> Scalar:
        nll = token_nll(denoiser, features, places.take(x))
        return ((1 - (-nll).exp()) ** self.gamma * nll).sum() / max(noise.num_masked, 1)


shape = fpmgm.MDLMConfig(vocab_size=12, mask_id=11, length=12, width=32, num_heads=2, num_pre=1, num_fp=1, num_post=1)
model = fpmgm.mdlm(shape, seed=0)
x = torch.arange(12).remainder(4).expand(16, -1)  # 0 1 2 3 0 1 2 3 ...

plain, even = MaskedCrossEntropy(weighting="masked"), Focal(gamma=0.0)
same = [objective(model, x, rng=fpmgm.generator(0)).total for objective in (plain, even)]
torch.testing.assert_close(*same)

optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for update in range(14):
    loss = Focal()(model, x, rng=fpmgm.generator(0, update)).total
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(float(loss.detach()))
assert sum(losses[-3:]) < 0.7 * sum(losses[:3])

"""MAUVE (Pillutla et al., 2021): how close the distribution of sampled texts is to that of real ones.

Features are a judge's, so a score means something beside others of the same judge only. The paper's is GPT-2 Large.
"""

import numpy as np
from jaxtyping import Float

from fpmgm.data.text import PackedText

TextFeatures = Float[np.ndarray, "_ D"]


def mauve_score(sampled: TextFeatures, real: TextFeatures, *, seed: int = 0) -> float:
    """Between 0 (nothing in common) and 1 (the same), with the package's own settings."""
    import mauve

    if min(len(sampled), len(real)) < 8:
        raise ValueError(f"{len(sampled)} sampled and {len(real)} real texts; MAUVE needs at least 8 of each")
    found = mauve.compute_mauve(p_features=real, q_features=sampled, device_id=-1, seed=seed + 1, verbose=False)
    return float(found.mauve)


def reference_texts(text: PackedText, num: int, *, seed: int = 0) -> list[str]:
    """Held-out sequences as text, drawn once and without replacement."""
    if num > len(text.validation):
        raise ValueError(f"{num} reference texts asked for; {len(text.validation)} sequences are held out")
    rows = np.random.default_rng(seed).choice(text.validation, num, replace=False)
    return [text.tokenizer.decode(text.rows[row].tolist()) for row in rows]

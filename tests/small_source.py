"""A small source of stories with random weights, written in llama2.c's two binary formats."""

import struct
from pathlib import Path

import numpy as np

WIDTH, HIDDEN, LAYERS, HEADS, POSITIONS = 16, 24, 2, 2, 24
PIECES = [" ", "a", "b", "c", " a", "ab", " ab", "bc", "abc", "  ", "é"]
SCORES = [-100.0, -101.0, -102.0, -103.0, -1.0, -2.0, -4.0, -3.0, -5.0, -6.0, -104.0]
SYMBOLS = 259 + len(PIECES)


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor by llama2.c's name, in the order of its file."""
    rng = np.random.default_rng(seed)
    half = WIDTH // HEADS // 2
    shapes = {
        "token_embedding": (SYMBOLS, WIDTH),
        "rms_att": (LAYERS, WIDTH),
        "wq": (LAYERS, WIDTH, WIDTH),
        "wk": (LAYERS, WIDTH, WIDTH),
        "wv": (LAYERS, WIDTH, WIDTH),
        "wo": (LAYERS, WIDTH, WIDTH),
        "rms_ffn": (LAYERS, WIDTH),
        "w1": (LAYERS, HIDDEN, WIDTH),
        "w2": (LAYERS, WIDTH, HIDDEN),
        "w3": (LAYERS, HIDDEN, WIDTH),
        "rms_final": (WIDTH,),
    }
    found = {name: (0.4 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    angles = np.arange(POSITIONS)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return {**found, "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def write_source(folder: Path, seed: int = 0, *, begin: float = 1.0) -> None:
    """`model.bin` and `tokenizer.bin`, as the asset has them; a larger `begin` lets more stories end."""
    tensors = weights(seed)
    tensors["token_embedding"][1] *= begin
    header = struct.pack("<7i", WIDTH, HIDDEN, LAYERS, HEADS, HEADS, SYMBOLS, POSITIONS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(header + b"".join(tensor.tobytes() for tensor in tensors.values()))
    special = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = [piece.encode() for piece in [*special, *PIECES]]
    scores = [0.0] * len(special) + SCORES
    entries = [struct.pack("<fi", score, len(piece)) + piece for score, piece in zip(scores, pieces, strict=True)]
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", max(map(len, pieces))) + b"".join(entries))

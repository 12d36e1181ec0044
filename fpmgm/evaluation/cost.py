"""Cost: multiply-adds of a network, counted by formula (and checked against torch's own counter in the tests)."""

from fpmgm.backbones.dit import MDLMConfig

INJECTION_ONCE = {"mlp": 2, "linear": 1, "add": 0}  # G, folded into it, adds nothing
INJECTION_PER_ITERATION = {"mlp": 4, "linear": 1, "add": 0}


def multiply_adds(config: MDLMConfig, *, num_iters: int, num_positions: int, length: int | None = None) -> int:
    """Of one step of the sampler for one sequence, with logits at `num_positions` of its `length` positions."""
    length = length or config.length
    square = config.width**2
    block = length * (12 * square + 2 * length * config.width)
    last = 2 * length * square + num_positions * (10 * square + 2 * length * config.width)
    num_blocks = config.num_pre + config.num_fp + config.num_post
    if config.num_fp and not config.num_post:
        last, num_full = 0, config.num_pre + num_iters * config.num_fp
    else:
        num_full = num_blocks - config.num_fp - 1 + num_iters * config.num_fp
    injection = 0
    if config.num_fp:
        once = INJECTION_ONCE[config.injection] or int(config.has_projection)
        injection = length * square * (once + num_iters * INJECTION_PER_ITERATION[config.injection])
    modulations = config.cond_width * (256 + config.cond_width + config.width * (6 * num_blocks + 2))
    head = num_positions * config.width * config.vocab_size
    return num_full * block + last + injection + modulations + head

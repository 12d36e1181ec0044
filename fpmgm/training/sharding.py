"""Weights, their moving average and the optimiser in shards, one for each process of a run (FSDP2).

All parameters are one group: they are put together for the passes of an update and lie in shards otherwise. Blocks are
no groups of their own: a fixed point runs one block many times in a pass, and runs parts of it by themselves. Teachers
are whole in every process. What goes to disk is whole, in the one format there is, so that any number of processes
reads it.
"""

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager

from accelerate import Accelerator
from accelerate.state import AcceleratorState, is_initialized
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from fpmgm.devices import device_named, has_fast_bfloat16
from fpmgm.training.config import FSDP, Training


def accelerator_for(config: Training) -> Accelerator:
    """accelerate keeps one precision for a whole Python process; the next run in it may have another."""
    if is_initialized():
        AcceleratorState._reset_state()
    atexit.register(_leave_group)
    return Accelerator(mixed_precision=mixed_precision(config), cpu=config.device == "cpu")


def mixed_precision(config: Training) -> str:
    """`no` or `bf16`, as the run asks or its device is fast at."""
    if config.mixed_precision != "auto":
        return config.mixed_precision
    return "bf16" if has_fast_bfloat16(device_named(config.device)) else "no"


def _leave_group() -> None:
    """End what gloo or NCCL runs in the background; a thread that outlives Python would abort the process."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def check_sharding(config: Training, num_processes: int) -> None:
    """A ValueError if the run cannot be sharded as it asks, or accelerate was told to do so by itself."""
    if config.sharding != FSDP:
        if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
            raise ValueError(
                "accelerate's configuration asks for FSDP, which this loop does itself; launch with --multi_gpu or "
                "--multi_cpu, and give --sharding fsdp"
            )
        return
    if num_processes == 1:
        raise ValueError(
            "sharding is fsdp, and there is one process; start several, as in torchrun --nproc-per-node 2 -m fpmgm "
            "train RECIPE --sharding fsdp, or leave --sharding out"
        )


def cut(average: nn.Module, network: nn.Module) -> None:
    """Cut the average of a network as the network is."""
    shards = dict(network.named_parameters())
    for name, parameter in list(average.named_parameters()):
        owner, _, own = name.rpartition(".")
        part = nn.Parameter(placed(parameter.detach(), shards[name]), requires_grad=parameter.requires_grad)
        setattr(average.get_submodule(owner), own, part)


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together from its shards, which all processes must ask for; another one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, on the device of another, and cut as that is."""
    tensor = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module, put together."""
    return {name: whole(tensor) for name, tensor in module.state_dict().items()}


def gather(module: nn.Module, into: nn.Module | None) -> None:
    """Put a module together in the processes that have another to put it into; all processes are needed."""
    own = None if into is None else into.state_dict()
    for name, tensor in module.state_dict().items():
        found = whole(tensor)
        if own is not None:
            own[name].copy_(found)


def load_whole(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Take over whole tensors, each process its shards of them."""
    own = module.state_dict()
    module.load_state_dict({name: placed(tensor, own[name]) for name, tensor in tensors.items()})


@contextmanager
def without_sync(accelerator: Accelerator, learner: nn.Module) -> Iterator[None]:
    """While the block runs, gradients stay in their process: those of all but the last pass of an update."""
    if not isinstance(learner, FSDPModule):
        with accelerator.no_sync(learner):
            yield
        return
    learner.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        learner.set_requires_gradient_sync(True)

"""A network that learns beside the one that a run is about: the fake of distribution matching."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fpmgm.backbones import NetworkConfig
from fpmgm.data import Dataset
from fpmgm.denoiser import Denoiser
from fpmgm.post_training.consistency import INIT
from fpmgm.post_training.matching import TEACHER, Matching
from fpmgm.training.config import FSDP, Training
from fpmgm.training.optim import moving_average, optimiser_of, set_learning_rate
from fpmgm.training.sharding import cut, gather
from fpmgm.training.start import frozen_model
from fpmgm.training.state import TrainState


class Companion:
    """A network with its optimiser and, if it is asked for, its moving average."""

    def __init__(self, network: Denoiser, config: Training, objective: Matching) -> None:
        self.network, self.objective, self.config = network, objective, config
        self.ema: AveragedModel = moving_average(network, objective.fake_ema)
        self.plain_optimiser: torch.optim.Optimizer = optimiser_of(network, config.optim)
        self.optimiser = self.plain_optimiser  # accelerate may wrap it
        self.ratio = objective.fake_lr / config.optim.lr
        module: Any = self.ema.module
        is_sharded = config.sharding == FSDP
        self.averaged: Denoiser | None = None
        """The moving average, if the student is compared with that; of a sharded run a whole copy of it."""
        if objective.fake_ema:
            self.averaged = copy.deepcopy(network).eval() if is_sharded else module.eval()

    def shard(self) -> None:
        """Once the network is cut: its average too, and an optimiser of the shards."""
        cut(self.ema.module, self.network)
        self.plain_optimiser = self.optimiser = optimiser_of(self.network, self.config.optim)

    @property
    def state(self) -> TrainState:
        return TrainState(model=self.network, ema=self.ema, optimiser=self.plain_optimiser)

    def begin(self, lr: float) -> None:
        """Before the gradients of an update, whose learning rate is `lr` for the network that the run is about."""
        set_learning_rate(self.optimiser, lr * self.ratio)
        self.optimiser.zero_grad()
        if self.averaged is not None and self.averaged is not self.ema.module:
            gather(self.ema.module, self.averaged)

    def parameters(self) -> Iterable[Tensor]:
        return self.network.parameters()

    def average(self) -> None:
        """After an update; nothing reads an average without a decay."""
        if self.objective.fake_ema:
            self.ema.update_parameters(self.network)


def companion_of(
    config: Training, network: NetworkConfig, data: Dataset, teacher: nn.Module | None, device: torch.device
) -> Companion | None:
    """What learns beside the network of a run: nothing, or the fake."""
    objective = config.objective
    if not isinstance(objective, Matching):
        return None
    name = fake_name(config)
    found = (
        copy.deepcopy(teacher) if name == teacher_name(config) else frozen_model(f"fake {name}", name, network, data)
    )
    assert isinstance(found, Denoiser)
    return Companion(found.to(device).requires_grad_(True), config, objective)


def teacher_name(config: Training) -> str:
    """The model that the teacher of a matching is."""
    assert isinstance(config.objective, Matching)
    return config.source if config.objective.teacher == INIT else config.objective.teacher


def fake_name(config: Training) -> str:
    """The model that the fake of a matching starts from."""
    assert isinstance(config.objective, Matching)
    fake = config.objective.fake
    return teacher_name(config) if fake == TEACHER else config.source if fake == INIT else fake

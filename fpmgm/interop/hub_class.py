"""Our text models as classes of transformers: `AutoModelForMaskedLM` loads model folders without remote code."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from fpmgm.backbones import MODEL_TYPES
from fpmgm.backbones.dit import DiT, MDLMConfig
from fpmgm.checkpoint import read_generation
from fpmgm.denoiser import Denoiser
from fpmgm.files import write_json
from fpmgm.generation import Sampling
from fpmgm.interop.filled import fill_in
from fpmgm.interop.hub_tokenizer import FpmgmTokenizer, hub_file
from fpmgm.masking import without_mask
from fpmgm.names import check_names
from fpmgm.schema import MAX_SAMPLES, read_object, require

NUM_ITERS = 6
"""Solver iterations of a forward pass, as in validation."""
IGNORED = -100
"""The label of a position that has no part in the loss."""


class FpmgmConfig(PreTrainedConfig):
    """The config.json of a model folder: the fields of `MDLMConfig`, by the same names."""

    model_type = MDLMConfig.model_type
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_attention_heads": "num_heads",
        "max_position_embeddings": "length",
        "mask_token_id": "mask_id",
    }

    def __init__(self, **settings: Any) -> None:
        for field in fields(MDLMConfig):
            setattr(self, field.name, settings.pop(field.name, field.default))
        self.data = settings.pop("data", None)
        super().__init__(**settings)
        self.dtype = self.dtype or torch.float32  # files may hold float16, which the CPU is slow with
        assert self.network

    @property
    def network(self) -> MDLMConfig:
        """The network; a ValueError if settings make no sense."""
        settings = {field.name: getattr(self, field.name) for field in fields(MDLMConfig)}
        return read_object(MDLMConfig, settings, self._name_or_path or "the config")

    @property
    def num_hidden_layers(self) -> int:
        """Blocks that have weights of their own."""
        cost = self.network.cost
        return cost.pre + cost.fp + cost.post

    def to_diff_dict(self) -> dict[str, Any]:
        """What config.json holds: all settings of the network, and nothing else, so that `fpmgm.load` reads it."""
        data = {} if self.data is None else {"data": self.data}
        return {"model_type": self.model_type, **asdict(self.network), **data}


class FpmgmForMaskedLM(PreTrainedModel):
    """An MDLM or FP-MDLM with the interface of transformers. Its weights have the names of our model folders."""

    config_class = FpmgmConfig
    main_input_name = "input_ids"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: FpmgmConfig) -> None:
        super().__init__(config)
        if config.is_causal:
            raise ValueError("this model is causal, made to judge text; AutoModelForMaskedLM is for masked models")
        built = config.network.build()
        self.backbone: Any = built.backbone
        self.injection = built.injection
        self.generation: dict[str, Any] = {}
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """Fresh weights are drawn where the network is built."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *arguments: Any, output_loading_info: bool = False, **settings: Any
    ) -> Any:
        """The model of a folder or a repository, in float32 unless a dtype is given; weights must fit its config."""
        loaded: Any = super().from_pretrained(
            pretrained_model_name_or_path, *arguments, output_loading_info=True, **settings
        )
        model, info = loaded
        wrong = sorted({*map(str, info["missing_keys"]), *map(str, info["unexpected_keys"])})
        if wrong:
            raise ValueError(
                f"the weights of {pretrained_model_name_or_path} do not fit its config.json: {len(wrong)} tensors are "
                f"missing or extra, such as {wrong[0]}"
            )
        file = hub_file(str(pretrained_model_name_or_path), "generation_config.json", settings)
        model.generation = read_generation(file.parent) if file else {}
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: Any, *arguments: Any, **settings: Any) -> None:
        """Write a model folder that `fpmgm.load` reads too. The tokenizer has a `save_pretrained` of its own."""
        folder = Path(save_directory)
        if self.generation and not folder.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "generation_config.json", self.generation)
        super().save_pretrained(save_directory, *arguments, **settings)

    @property
    def denoiser(self) -> Denoiser:
        """The same modules as `fpmgm.load` has them."""
        network = self.config.network
        found = Denoiser(self.backbone, network.cost, injection=self.injection, frozen_dropout=network.frozen_dropout)
        found.training = self.training
        return found

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        timesteps: Tensor | None = None,
        num_iters: int | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Logits of every position, in which the mask is never predicted, and the loss if there are labels.

        Where `attention_mask` is 0 there is padding: no position sees it, and its own logits mean nothing. Positions
        count from the first real token unless `position_ids` are given. `timesteps` are those of networks that see the
        time, between 0 and 1; without them each sequence has the share of its tokens that is masked.
        """
        seen = _seen(input_ids, attention_mask)
        if position_ids is None and seen is not None:
            position_ids = seen.cumsum(dim=1).sub(1).clamp_min(0)
        elif position_ids is not None:
            position_ids = position_ids.expand(input_ids.shape)
        _check_length(input_ids, self.config.length)
        t = self._masked_share(input_ids, seen) if timesteps is None else timesteps.float()
        denoiser = self.denoiser
        cond = self._dit.condition(input_ids, t, attention_mask=seen, position_ids=position_ids)
        everywhere = torch.ones_like(input_ids, dtype=torch.bool)
        found = denoiser(input_ids, t, everywhere, cond=cond, num_grad=self._iterations(num_iters))
        logits = without_mask(denoiser.head(found.features), mask_id=self.config.mask_id)
        loss: Any = None if labels is None else self._loss(logits, labels)
        by_position: Any = logits.view(*input_ids.shape, -1)
        if return_dict is False:
            return (by_position,) if loss is None else (loss, by_position)
        return MaskedLMOutput(loss=loss, logits=by_position)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        num_return_sequences: int = 1,
        pad_token_id: int | None = None,
        **settings: Any,
    ) -> Tensor:
        """Sequences that our sampler fills in: masks among `input_ids`, and masks that are put after them.

        Each row is continued by `max_new_tokens` masks, or up to `max_length` tokens. If neither is given, a row with
        masks in it is only filled in, and another is continued to the model's length. Other settings are the fields of
        `fpmgm.generation.Sampling`, such as budget, steps, temperature, top_p and seed. Padding is left out; rows that
        come out shorter than the longest end in `pad_token_id`, which is the mask if it is not given.
        """
        check_names("setting", settings, Sampling)
        require("num_return_sequences", num_return_sequences, 1, MAX_SAMPLES)
        if max_length is not None and max_new_tokens is not None:
            raise ValueError(f"max_length {max_length} and max_new_tokens {max_new_tokens} are both set; give one")
        starts = [self._start(row, max_length, max_new_tokens) for row in _real_tokens(input_ids, attention_mask)]
        repeated = [start for start in starts for _ in range(num_return_sequences)]
        rows = fill_in(self.denoiser, repeated, Sampling(**settings), self.generation)
        longest, pad = max(map(len, rows)), self.config.mask_id if pad_token_id is None else pad_token_id
        return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=self.device)

    def _start(self, row: list[int], max_length: int | None, max_new_tokens: int | None) -> list[int]:
        """A row with masks after it, as many as are asked for."""
        limit = self.config.length
        length = max_length if max_new_tokens is None else len(row) + max_new_tokens
        if length is None:
            length = len(row) if self.config.mask_id in row else limit
        if not max(len(row), 1) <= length <= limit:
            raise ValueError(f"{len(row)} tokens are to become {length}; the model writes at most {limit}")
        return [*row, *[self.config.mask_id] * (length - len(row))]

    @property
    def _dit(self) -> DiT:
        assert isinstance(self.backbone, DiT)
        return self.backbone

    def _masked_share(self, input_ids: Tensor, seen: Tensor | None) -> Tensor:
        """The share of the real tokens of each sequence that is masked."""
        real = torch.ones_like(input_ids, dtype=torch.bool) if seen is None else seen
        masked = (input_ids == self.config.mask_id) & real
        return masked.sum(dim=1).float() / real.sum(dim=1)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean of -log p over the labels that count."""
        if bool((labels == self.config.mask_id).any()):
            raise ValueError(
                f"labels hold the mask, {self.config.mask_id}, which is never predicted; give the masked token, "
                f"or {IGNORED} where there is none"
            )
        return F.cross_entropy(logits.float(), labels.flatten(), ignore_index=IGNORED)

    def _iterations(self, num_iters: int | None) -> int:
        if num_iters is None:
            return NUM_ITERS if self.config.num_fp else 0
        if bool(self.config.num_fp) != (num_iters > 0):
            needs = "at least 1" if self.config.num_fp else "0, as there is nothing to solve"
            raise ValueError(f"num_iters is {num_iters}; this network takes {needs}")
        return num_iters


def _seen(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
    """Which tokens are real; None if all are."""
    if attention_mask is None:
        return None
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and input_ids {tuple(input_ids.shape)}; give a "
            "mask with a 0 or 1 for every token"
        )
    seen = attention_mask.bool()
    if not bool(seen.any(dim=1).all()):
        raise ValueError("attention_mask hides every token of a sequence; leave that sequence out")
    return None if bool(seen.all()) else seen


def _check_length(input_ids: Tensor, limit: int) -> None:
    if input_ids.shape[1] > limit:
        raise ValueError(f"sequences of {input_ids.shape[1]} tokens; the model takes at most {limit}")


def _real_tokens(input_ids: Tensor | None, attention_mask: Tensor | None) -> list[list[int]]:
    """The tokens of each row without padding; one empty row if there are none."""
    if input_ids is None:
        return [[]]
    seen = _seen(input_ids, attention_mask)
    if seen is None:
        return input_ids.tolist()
    return [row[keep].tolist() for row, keep in zip(input_ids, seen, strict=True)]


class _NoText(PreTrainedModel):
    """A model of ours that writes no text, which the classes of transformers for text refuse."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **settings: Any) -> Any:
        kind: Any = cls.config_class
        raise ValueError(
            f"{pretrained_model_name_or_path} is a {kind.model_type}, which writes no text, and "
            "transformers has no class for it; load it with fpmgm.load"
        )


def register() -> None:
    """Make transformers know our models and tokenizers."""
    AutoConfig.register(FpmgmConfig.model_type, FpmgmConfig, exist_ok=True)
    AutoModelForMaskedLM.register(FpmgmConfig, FpmgmForMaskedLM, exist_ok=True)
    AutoTokenizer.register(FpmgmConfig, tokenizer_class=FpmgmTokenizer, exist_ok=True)
    for name in MODEL_TYPES:
        if name != FpmgmConfig.model_type:
            config = type("FpmgmImageConfig", (PreTrainedConfig,), {"model_type": name, "__module__": __name__})
            AutoConfig.register(name, config, exist_ok=True)
            AutoModelForMaskedLM.register(
                config, type("FpmgmImageModel", (_NoText,), {"config_class": config, "__module__": __name__})
            )
            AutoTokenizer.register(config, tokenizer_class=FpmgmTokenizer, exist_ok=True)

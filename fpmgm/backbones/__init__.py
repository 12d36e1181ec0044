"""Published architectures: each is a config that builds its denoiser, and is found by its `model_type`."""

from fpmgm.backbones.dit import MDLMConfig, Network
from fpmgm.backbones.network import NetworkConfig

AnyNetwork = Network
"""The shapes of network that a recipe may have."""
MODEL_TYPES: dict[str, type[NetworkConfig]] = {MDLMConfig.model_type: MDLMConfig}
"""Networks by the `model_type` of a model folder's config.json."""

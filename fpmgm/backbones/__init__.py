"""Published architectures: each is a config that builds its denoiser, and is found by its `model_type`."""

from fpmgm.backbones.classifier import ClassifierConfig, ClassifierNetwork
from fpmgm.backbones.dit import MDLMConfig, Network
from fpmgm.backbones.maskgit import MaskGITConfig, MaskGITNetwork
from fpmgm.backbones.network import NetworkConfig
from fpmgm.backbones.vq import VQConfig, VQNetwork

AnyNetwork = Network | MaskGITNetwork | VQNetwork | ClassifierNetwork
"""The shapes of network that a recipe may have."""
MODEL_TYPES: dict[str, type[NetworkConfig]] = {
    config.model_type: config for config in (MDLMConfig, MaskGITConfig, VQConfig, ClassifierConfig)
}
"""Networks by the `model_type` of a model folder's config.json."""

"""What models learn from: a data config loads a `Dataset`."""

from collections.abc import Mapping
from typing import Any

from fpmgm.data.dataset import DataConfig, Dataset
from fpmgm.names import choose
from fpmgm.schema import field_value, read_object

__all__ = ["DataConfig", "Dataset", "data_config"]


def data_config(settings: Mapping[str, Any], where: str) -> DataConfig:
    """The data config that these settings of a model's config.json describe; known by its `data_type`."""
    from fpmgm.data.images import ImagesConfig
    from fpmgm.data.pixels import PixelsConfig
    from fpmgm.data.stories_text import StoriesConfig
    from fpmgm.data.text import TextConfig

    known = (TextConfig, StoriesConfig, ImagesConfig, PixelsConfig)
    kinds: dict[str, type[DataConfig]] = {kind.data_type: kind for kind in known}
    kind = field_value(settings.get("data_type"), str, f"{where}: data_type")
    own = {name: value for name, value in settings.items() if name != "data_type"}
    return read_object(choose("data_type", kind, kinds), own, where)

"""The way in from transformers: after `import fpmgm.hf`, its Auto classes load our model folders.

Nothing else in the package imports transformers when it is imported itself.
"""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("fpmgm.hf needs transformers; install it with: pip install 'fpmgm[eval]'") from error

from fpmgm.interop.hub_class import FpmgmConfig, FpmgmForMaskedLM, register
from fpmgm.interop.hub_tokenizer import FpmgmTokenizer

__all__ = ["FpmgmConfig", "FpmgmForMaskedLM", "FpmgmTokenizer"]

register()

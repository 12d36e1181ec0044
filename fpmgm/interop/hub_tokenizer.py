"""Our tokenizers as transformers knows them, so that `AutoTokenizer` loads them out of a model folder."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.utils import cached_file

from fpmgm.schema import read_json
from fpmgm.symbols import END_OF_TEXT, read_tokenizer

MASK = "[MASK]"
HUB_SETTINGS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
"""Settings of `from_pretrained` that say where files are looked for."""


class FpmgmTokenizer(PreTrainedTokenizerFast):
    """The tokenizer.json of a model folder, with the mask as a token of it.

    A text begins with the token that every sequence of the model begins with. `[MASK]` in a text is a masked token; it
    takes the space before it, because tokens carry the space before them.
    """

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *inputs: Any, **settings: Any) -> Any:
        """The tokenizer of a model folder or a repository; a ValueError if there is none, or if it cannot be made."""
        place = str(pretrained_model_name_or_path)
        file = hub_file(place, "tokenizer.json", settings)
        if file is None:
            raise ValueError(
                f"{place} has no tokenizer.json, and no other form of a tokenizer can be read; "
                "a model that draws images has none"
            )
        told = {**_named_tokens(read_tokenizer(file)), **_length(place, settings), **settings}
        return super().from_pretrained(pretrained_model_name_or_path, *inputs, **told)


def hub_file(place: str, name: str, settings: dict[str, Any]) -> Path | None:
    """A file of a folder or of a repository on the hub; None if it has no such file."""
    where = {key: settings[key] for key in HUB_SETTINGS if key in settings}
    found = cached_file(place, name, _raise_exceptions_for_missing_entries=False, **where)
    return None if found is None else Path(found)


def _named_tokens(tokenizer: Any) -> dict[str, Any]:
    """The special tokens by the names that transformers has for them.

    Padding is an end of text if the tokenizer has no token for it: the attention mask tells the two apart.
    """
    known = tokenizer.get_added_tokens_decoder()
    mask_id, pad_id = tokenizer.token_to_id(MASK), tokenizer.token_to_id("[PAD]")
    mask = known.get(mask_id, AddedToken(MASK, lstrip=True, special=True, normalized=False))
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        return {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": mask, "pad_token": "[PAD]"}
    pad = END_OF_TEXT if pad_id is None else "[PAD]"
    ends = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": pad}
    return {**ends, "mask_token": mask, "add_bos_token": True}


def _length(place: str, settings: dict[str, Any]) -> dict[str, int]:
    """The longest sequence that the model of the same folder reads, if it says so."""
    file = hub_file(place, "config.json", settings)
    length = read_json(file).get("length") if file else None
    return {"model_max_length": length} if isinstance(length, int) else {}

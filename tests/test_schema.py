import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from fpmgm.backbones.dit import as_mdlm
from fpmgm.checkpoint import Model, load
from fpmgm.schema import field_value, parse_json, read_json, read_object, require


@dataclass(frozen=True, kw_only=True)
class Settings:
    width: int
    rate: float = 0.5
    name: str = ""
    is_new: bool = False
    limit: int | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    several: tuple[int, ...] = ()
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        require("width", self.width, 1, 1000)


def test_settings_of_the_right_types_are_taken_lists_as_tuples_and_whole_numbers_as_fractions() -> None:
    given = {"width": 8, "rate": 1, "pair": [0, 0.5], "several": [1, 2], "limit": None, "kind": "b"}
    found = read_object(Settings, given, "s.json")
    assert found == Settings(width=8, rate=1.0, pair=(0.0, 0.5), several=(1, 2), kind="b")
    assert type(found.rate) is float


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": None}, "s.json: width is None; it must be a whole number"),
        ({"width": True}, "s.json: width is True; it must be a whole number"),
        ({"width": 8.0}, "s.json: width is 8.0; it must be a whole number"),
        ({"width": [8]}, r"s.json: width is \[8\]; it must be a whole number"),
        ({"width": 0}, "s.json: width is 0; it must be 1 to 1000"),
        ({"width": 10**400}, r"s.json: width is 10+\.\.\.; it must be 1 to 1000"),
        ({"rate": "fast"}, "s.json: rate is 'fast'; it must be a finite number"),
        ({"rate": 10**400}, r"s.json: rate is 10+\.\.\.; it must be a finite number"),
        ({"name": 3}, "s.json: name is 3; it must be a text"),
        ({"name": "\ud800"}, r"s.json: name is '\\ud800'; it must be a text"),
        ({"is_new": 1}, "s.json: is_new is 1; it must be true or false"),
        ({"limit": "none"}, "s.json: limit is 'none'; it must be a whole number"),
        ({"pair": [1]}, r"s.json: pair is \[1\]; it must be a list of 2"),
        ({"several": ["1"]}, "s.json: several is '1'; it must be a whole number"),
        ({"kind": "c"}, "s.json: kind is 'c'; it must be one of 'a', 'b'"),
        ({"wdith": 1}, "s.json has unknown settings: 'wdith'"),
    ],
)
def test_a_setting_of_another_kind_is_refused_by_name_with_what_would_work(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        read_object(Settings, {"width": 8} | changes, "s.json")


def test_a_setting_without_a_default_must_be_there() -> None:
    with pytest.raises(ValueError, match="lacks settings: width"):
        read_object(Settings, {"rate": 1}, "s.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff{}", "is not UTF-8 text: invalid start byte at byte 0"),
        (b"[1]", r"must hold a JSON object, and it holds \[1\]"),
        (b'{"a":' * 20_000, "is nested too deeply"),
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is no number of JSON"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b'{"a": ' + b"1" * 5000 + b"}", "is not JSON"),
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "s.json")


def test_results_may_hold_nan_where_they_are_not_read_strictly() -> None:
    assert parse_json('{"a": NaN}', "a row", is_strict=False)["a"] != 0
    with pytest.raises(ValueError, match="a row is not JSON"):
        parse_json("{", "a row", is_strict=False)


def test_a_range_names_its_ends_and_refuses_nan() -> None:
    require("num", 3, 1)
    with pytest.raises(ValueError, match="num is nan; it must be at least 1"):
        require("num", float("nan"), 1)


def test_a_value_is_checked_by_the_type_it_should_have() -> None:
    assert field_value({"a": 1}, dict, "x") == {"a": 1}
    with pytest.raises(ValueError, match="x is None; it must be an object"):
        field_value(None, dict, "x")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 0, "config.json: width is 0; it must be 2 to 65536"),
        ("width", 10**12, "config.json: width is 1000000000000; it must be 2 to 65536"),
        ("num_heads", 0, "config.json: num_heads is 0; it must be 1 to 4096"),
        ("num_pre", -1, "config.json: num_pre is -1; it must be 0 to 1000"),
        ("length", 1e308, "config.json: length is 1e\\+308; it must be a whole number"),
        ("vocab_size", None, "config.json: vocab_size is None; it must be a whole number"),
        ("dropout", "half", "config.json: dropout is 'half'; it must be a finite number"),
        ("injection", ["mlp"], r"config.json: injection is \['mlp'\]; it must be one of 'mlp', 'linear', 'add'"),
    ],
)
def test_a_model_folder_with_a_wrong_config_is_refused(
    text_model: Model, tmp_path: Path, name: str, value: object, message: str
) -> None:
    text_model.save(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {name: value}))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budgets": []}, r"budgets is \[\]; it must be an object"),
        ({"budgets": {"9": None}}, "budgets: '9' is None; it must be an object"),
        ({"budgets": {"9": {"steps": 2}}}, "budgets: '9' lacks settings: allocation"),
        ({"budgets": {"9": {"steps": 0, "allocation": "fixed"}}}, "steps is 0; it must be 1 to 1000000"),
        ({"budgets": {"9": {"steps": 2, "allocation": "fxed"}}}, "unknown allocation 'fxed'; did you mean 'fixed'"),
    ],
)
def test_a_model_folder_with_wrong_generation_settings_is_refused(
    text_model: Model, tmp_path: Path, settings: object, message: str
) -> None:
    text_model.save(tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "model")


def test_networks_beyond_reason_are_refused_before_they_are_built(text_model: Model) -> None:
    from dataclasses import replace

    with pytest.raises(
        ValueError, match=r"1000 blocks, 65536 wide, have 51539607552000 parameters; at most 100000000000"
    ):
        replace(as_mdlm(text_model.config), num_pre=998, width=65536)

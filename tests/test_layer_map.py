import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmgm.interop.layer_map import LayerMap

layers = st.lists(st.integers(1, 99), max_size=4).map(tuple)


@given(layers, layers.filter(len), layers)
def test_a_map_that_is_written_and_read_is_the_same(
    pre: tuple[int, ...], fp: tuple[int, ...], post: tuple[int, ...]
) -> None:
    layer_map = LayerMap(pre, fp, post)
    assert LayerMap.parse(str(layer_map)) == layer_map
    assert layer_map.layers == pre + fp + post


@pytest.mark.parametrize("text", ["", "6", "1/6", "1//12", "1/6/12/13", "1/6;7/12", "1/6,/12", "-1/6/12", "a/b/c", " "])
def test_what_is_no_map_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"as in 1/6/12 or 1,2/6,7/11,12"):
        LayerMap.parse(text)


def test_layer_0_and_a_map_without_a_fixed_point_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1/0/2 names layer 0; layers count from 1"):
        LayerMap.parse("1/0/2")
    with pytest.raises(ValueError, match="has no fixed-point layer"):
        LayerMap((1,), (), (2,))


def test_layers_that_the_source_lacks_are_named() -> None:
    LayerMap.parse("1/6/12").check_depth(12)
    with pytest.raises(ValueError, match=r"map 1/6,13/14 names layer 13, 14, but the source has layers 1 to 12"):
        LayerMap.parse("1/6,13/14").check_depth(12)


def test_the_default_of_12_layers_is_the_papers() -> None:
    assert str(LayerMap.of_depth(12)) == "1/6/12"
    for depth in range(1, 30):
        LayerMap.of_depth(depth).check_depth(depth)

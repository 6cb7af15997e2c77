"""Values that pass come out as they went in. All others are refused."""

from __future__ import annotations

import datetime
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, ProtocolError
from jsclient.protocol.topics.value_codec import JsonCodec, codec_name

CODEC = JsonCodec()
TEXT = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def shape(value):
    """With the types: 1, 1.0 and True are three things."""
    match value:
        case list():
            return [shape(part) for part in value]
        case dict():
            return {key: shape(part) for key, part in value.items()}
        case _:
            return type(value).__name__, repr(value)


@given(VALUES)
def test_passes_comes_out_as_went_in(value):
    data = CODEC.encode(value)
    assert shape(CODEC.decode(data)) == shape(value)
    assert json.loads(data) == value


def test_a_tuple_becomes_a_list():
    assert CODEC.decode(CODEC.encode({"a": (1, (2,))})) == {"a": [1, [2]]}


@pytest.mark.covers("A68")
@pytest.mark.parametrize(
    ("value", "what"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (2**64, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "the key"),
        ({1: 2}, "the key 1"),
        (b"x", "bytes"),
        ({1, 2}, "set"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "datetime"),
        (object(), "object"),
        ({"a": [0, {"b": object()}]}, r"object at \['a'\]\[1\]\['b'\]"),
    ],
)
def test_lossy_value_refused(value, what):
    with pytest.raises(ConfigError, match=what):
        CODEC.encode(value)


def test_deep_or_cyclic_refused():
    endless: list = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="nested"):
        CODEC.encode(endless)


@pytest.mark.parametrize("data", [b"", b"{", b"nan", b"\xff", b'"\xff"', b"[" * 100_000])
def test_what_is_no_json_is_reported(data):
    with pytest.raises(ProtocolError):
        CODEC.decode(data)


class Point(msgspec.Struct):
    x: int
    y: int = 0


def test_json_of_a_type():
    codec = JsonCodec(Point)
    assert codec.encode(Point(1)) == b'{"x":1,"y":0}'
    assert codec.decode(b'{"x":1}') == Point(1)
    assert codec_name(codec) == "json"
    for bad in (b'{"x":"1"}', b"[]", b"\xff", b""):
        with pytest.raises(ProtocolError, match="is not JSON"):
            codec.decode(bad)
    for value in ([1], None, object(), Point("1"), b"x"):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="cannot be encoded as Point"):
            codec.encode(value)
    assert JsonCodec(dict[str, int]).decode(b'{"a":1}') == {"a": 1}
    with pytest.raises(ConfigError, match="cannot represent"):
        JsonCodec(int | Point | dict[str, int])

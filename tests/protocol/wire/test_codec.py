"""JSON and models: the values that a user may give, the values of an answer, and that both survive the conversion."""

from __future__ import annotations

import copy
import math
import pickle
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, ProtocolError
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.wire.codec import (
    Model,
    Seconds,
    SettableTime,
    Time,
    _kind,
    decode,
    encode,
    from_wire,
    to_wire,
)
from tests.support.calls import Calls


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(Model, frozen=True, kw_only=True):
    label: str | None = None
    wait: Seconds | None = None


class Whole(Model, frozen=True, kw_only=True):
    always_sent: ClassVar = {"colour": Colour.RED}
    required: ClassVar = frozenset({"name"})
    envelope: ClassVar = frozenset({"type"})

    name: str = ""
    number: int | None = None
    count: int = 0
    flag: bool | None = None
    colour: Colour | str | None = None
    wait: Seconds | None = None
    waits: list[Seconds] | None = None
    seen: Time | None = None
    start: SettableTime | None = None
    words: list[str] | None = None
    texts: dict[str, str] | None = None
    numbers: dict[str, int] | None = None
    part: Part | None = None
    parts: list[Part] | None = None
    named: dict[str, Part] | None = None
    anything: Any = None


NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
FULL = Whole(
    name="n",
    number=2**64 - 1,
    count=3,
    flag=False,
    colour=Colour.BLUE,
    wait=1.5,
    waits=[1, 0.25],
    seen=NOON,
    start="2030-01-31T12:00:00.123456789Z",
    words=["a"],
    texts={"a": "b"},
    numbers={"a": 1},
    part=Part(label="p", wait=2),
    parts=[Part(), Part(label="q")],
    named={"x": Part(wait=1)},
    anything={"deep": [1, None]},
    extra={"new": {"a": [1]}},
)
WIRE = {
    "new": {"a": [1]},
    "name": "n",
    "number": 2**64 - 1,
    "count": 3,
    "flag": False,
    "colour": "blue",
    "wait": 1_500_000_000,
    "waits": [1_000_000_000, 250_000_000],
    "seen": "2030-01-31T12:00:00Z",
    "start": "2030-01-31T12:00:00.123456789Z",
    "words": ["a"],
    "texts": {"a": "b"},
    "numbers": {"a": 1},
    "part": {"label": "p", "wait": 2_000_000_000},
    "parts": [{}, {"label": "q"}],
    "named": {"x": {"wait": 1_000_000_000}},
    "anything": {"deep": [1, None]},
}

# --- to the wire -----------------------------------------------------------------------------------------


def test_every_kind_of_field_on_wire():
    assert to_wire(FULL) == WIRE
    assert from_wire(Whole, WIRE) == FULL
    assert from_wire(Whole, decode(encode(FULL))) == FULL


def test_what_is_not_set_is_not_sent():
    assert to_wire(Part()) == {}
    assert to_wire(Whole(name="n")) == {"name": "n", "count": 0, "colour": "red"}
    assert to_wire(Whole(name="n", flag=False, words=[], number=0)) == {
        "name": "n",
        "count": 0,
        "colour": "red",
        "flag": False,
        "words": [],
        "number": 0,
    }


def test_not_set_not_shown():
    assert repr(Part(label="x")) == "Part(label='x')"


# --- from a user -----------------------------------------------------------------------------------------

TAKEN = [
    ("colour", "blue", Colour.BLUE),
    ("colour", Colour.RED, Colour.RED),
    ("wait", 30, 30.0),
    ("wait", timedelta(milliseconds=1500), 1.5),
    ("wait", -1, -1.0),
    ("waits", (1, timedelta(seconds=2)), [1.0, 2.0]),
    ("number", 7.0, 7),
    ("number", -(2**63), -(2**63)),
    ("start", NOON, NOON),
    ("start", "2030-01-31T12:00:00+01:00", "2030-01-31T12:00:00+01:00"),
    ("seen", "2030-01-31T14:00:00+02:00", NOON),
    ("seen", NOON.astimezone(timezone(timedelta(hours=5))), NOON),
    ("words", ("a", "b"), ["a", "b"]),
    ("part", {"label": "x", "wait": 1}, Part(label="x", wait=1.0)),
    ("parts", [{"label": "x"}, Part()], [Part(label="x"), Part()]),
]


@pytest.mark.parametrize(("field", "value", "expected"), TAKEN)
def test_values_brought_to_one_form(field, value, expected):
    for model in (Whole(**{field: value}), Whole().replace(**{field: value})):
        actual = getattr(model, field)
        assert actual == expected
        assert type(actual) is type(expected)


REFUSED = [
    ("name", 7, "a str is needed, not int"),
    ("name", b"n", "a str"),
    ("name", "\ud800", "surrogate"),
    ("number", True, "an integer is needed, not bool"),
    ("number", 1.5, "an integer"),
    ("number", math.nan, "an integer"),
    ("number", "1", "an integer"),
    ("number", 2**64, "64 bits"),
    ("number", -(2**63) - 1, "64 bits"),
    ("number", Decimal(1), "an integer"),
    ("flag", 1, "true or false"),
    ("flag", "true", "true or false"),
    ("colour", "green", "'green' is none of 'red', 'blue'"),
    ("colour", "Red", "none of"),
    ("colour", 7, "none of"),
    ("colour", ["red"], "none of"),
    ("wait", True, "seconds"),
    ("wait", "30s", "seconds"),
    ("wait", math.nan, "seconds"),
    ("wait", math.inf, "seconds"),
    ("wait", 10**400, "seconds"),
    ("waits", 1.0, "a list"),
    ("waits", [1, "2"], r"waits\[1\]"),
    ("seen", 7, "datetime"),
    ("start", datetime(2030, 1, 1), "time zone"),  # noqa: DTZ001
    ("start", "tomorrow", "RFC 3339"),
    ("start", 7, "datetime"),
    ("words", "orders.>", "a list is needed, not str"),
    ("words", {"a"}, "a list"),
    ("words", [1], r"words\[0\]: a str"),
    ("texts", {"a": 1}, r"texts\['a'\]"),
    ("texts", {1: "a"}, "a str"),
    ("texts", [("a", "b")], "a map"),
    ("part", 7, "a Part is needed"),
    ("part", {"labels": "x"}, "labels"),
    ("part", {"wait": "x"}, "Part.wait"),
    ("part", {7: "x"}, "part"),
    ("parts", [Part(), 7], r"parts\[1\]"),
    ("extra", 7, "a dict"),
    ("extra", {7: 1}, "a dict"),
    ("extra", {"name": "n"}, "name is a declared field"),
]


@pytest.mark.parametrize(("field", "value", "reason"), REFUSED)
def test_what_a_user_may_not_give(field, value, reason):
    with pytest.raises(ConfigError, match=reason) as created:
        Whole(**{field: value})
    with pytest.raises(ConfigError) as replaced:
        Whole().replace(**{field: value})
    assert str(created.value) == str(replaced.value)
    assert str(created.value).startswith(f"Whole.{field}")


def test_unknown_field_type_error():
    with pytest.raises(TypeError, match="nope"):
        Whole(nope=1)
    with pytest.raises(TypeError, match="nope"):
        Whole().replace(nope=1)


def test_model_shares_no_list_with_maker():
    words, texts, extra = ["a"], {"a": "b"}, {"x": 1}
    model = Whole(words=words, texts=texts, extra=extra)
    words.append("b")
    texts["c"] = "d"
    extra["y"] = 2
    assert (model.words, model.texts, model.extra) == (["a"], {"a": "b"}, {"x": 1})


def test_a_model_does_not_change():
    with pytest.raises(AttributeError):
        FULL.name = "other"  # type: ignore[misc]


# --- replace ---------------------------------------------------------------------------------------------


def test_replace_changes_a_copy():
    changed = FULL.replace(name="m", wait=timedelta(seconds=3), extra={"z": 1})
    assert (changed.name, changed.wait, changed.extra) == ("m", 3.0, {"z": 1})
    assert (FULL.name, FULL.wait, FULL.extra) == ("n", 1.5, {"new": {"a": [1]}})
    assert FULL.replace() == FULL
    assert FULL.replace().extra is not FULL.extra


def test_none_unsets():
    assert FULL.replace(wait=None, count=None) == from_wire(
        Whole, {name: value for name, value in WIRE.items() if name not in ("wait", "count")}
    )


# --- from the wire ---------------------------------------------------------------------------------------


def test_unknown_survives_read_modify_write():
    wire = {
        "name": "n",
        "colour": "mauve",
        "count": 0,
        "future": {"x": [1, {"y": None}]},
        "extra": 1,
        "nothing": None,
    }
    model = from_wire(Whole, wire)
    assert model.colour == "mauve"
    assert model.extra == {"future": {"x": [1, {"y": None}]}, "extra": 1, "nothing": None}
    assert to_wire(model) == wire
    assert to_wire(model.replace(number=1)) == wire | {"number": 1}
    for duplicate in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert duplicate == model
        assert to_wire(duplicate) == wire


def test_time_goes_back_to_nanosecond():
    wire = {"name": "n", "count": 0, "colour": "red", "start": "2030-01-31T12:00:00.123456789+02:00"}
    assert to_wire(from_wire(Whole, wire).replace(number=None)) == wire


def test_null_and_zero_time_not_set():
    wire = dict.fromkeys(WIRE) | {"name": "n"}
    del wire["new"]
    assert from_wire(Whole, wire) == Whole(name="n")
    assert from_wire(Whole, {"name": "n", "seen": "0001-01-01T00:00:00Z"}).seen is None


def test_envelope_not_part_of_model():
    assert from_wire(Whole, {"type": "io.nats.x", "name": "n"}).extra == {}
    assert from_wire(Part, {"type": "io.nats.x"}).extra == {"type": "io.nats.x"}


BROKEN = [
    ({}, "Whole.name: it is missing"),
    ({"name": None}, "Whole.name: it is missing"),
    ({"name": 7}, "Whole.name: a str"),
    ({"number": 1.0}, "Whole.number: an integer"),
    ({"number": True}, "Whole.number"),
    ({"number": "1"}, "Whole.number"),
    ({"number": 10**400}, "Whole.number: the number"),
    ({"flag": 0}, "Whole.flag"),
    ({"colour": 7}, "Whole.colour"),
    ({"wait": 1.5}, "Whole.wait: whole nanoseconds"),
    ({"wait": 10**400}, "Whole.wait"),
    ({"wait": "30s"}, "Whole.wait"),
    ({"waits": [1, None]}, r"Whole.waits\[1\]"),
    ({"seen": "yesterday"}, "Whole.seen"),
    ({"seen": 7}, "Whole.seen"),
    ({"start": "2030-01-31"}, "Whole.start"),
    ({"words": "a"}, "Whole.words: a list"),
    ({"words": [7]}, r"Whole.words\[0\]"),
    ({"texts": {"a": 7}}, r"Whole.texts\['a'\]"),
    ({"part": []}, "Whole.part: an object"),
    ({"part": {"wait": "x"}}, "Whole.part.wait"),
    ({"parts": [{}, {"label": 7}]}, r"Whole.parts\[1\].label"),
    ({"named": {"x": {"wait": []}}}, r"Whole.named\['x'\].wait"),
    ({7: 1}, "must be str"),
    ([], "Whole: an object is needed, not list"),
    (None, "Whole: an object"),
    ("x", "Whole: an object"),
]


@pytest.mark.parametrize(("data", "reason"), BROKEN)
def test_broken_answer_names_field(data, reason):
    with pytest.raises(ProtocolError, match=reason):
        from_wire(Whole, data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*WIRE, "extra", "type", "other"]), JSON))
def test_any_answer_model_or_protocol_error(data):
    try:
        model = from_wire(Whole, {"name": "n"} | data)
    except ProtocolError:
        return
    again = from_wire(Whole, decode(encode(model)))
    assert again.replace(start=None) == model.replace(colour=model.colour or "red", start=None)


MODELS = st.builds(
    Whole,
    name=st.text(),
    number=st.none() | st.integers(-(2**63), 2**64 - 1),
    flag=st.none() | st.booleans(),
    colour=st.sampled_from(Colour),
    wait=st.none() | st.integers(0, 2**23 * 10**9).map(lambda ns: ns / 10**9),
    waits=st.none() | st.lists(st.floats(0, 1e6).map(lambda seconds: round(seconds, 9))),
    seen=st.none() | st.datetimes(min_value=datetime(1, 1, 2), timezones=st.just(UTC)),  # noqa: DTZ001
    words=st.none() | st.lists(st.text()),
    texts=st.none() | st.dictionaries(st.text(), st.text()),
    parts=st.none() | st.lists(st.builds(Part, label=st.none() | st.text())),
    extra=st.dictionaries(st.text().filter(lambda name: name not in (*WIRE, "type")), JSON),
)


@given(MODELS)
def test_a_model_comes_back(model):
    assert from_wire(Whole, decode(encode(model))) == model
    assert pickle.loads(pickle.dumps(model)) == model


# --- JSON ------------------------------------------------------------------------------------------------


def test_models_written_wherever_they():
    request = {
        "stream_name": "S",
        "config": Part(label="x"),
        "list": (Part(wait=1), None, Colour.RED, 1, 1.5, True),
    }
    assert decode(encode(request)) == {
        "stream_name": "S",
        "config": {"label": "x"},
        "list": [{"wait": 1_000_000_000}, None, "red", 1, 1.5, True],
    }
    assert encode({}) == b"{}"


def nested(depth: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for _ in range(depth):
        results = {"a": results}
    return results


@pytest.mark.parametrize(
    "value",
    [
        b"x",
        timedelta(seconds=1),
        NOON,
        math.nan,
        math.inf,
        "\ud800",
        {"\ud800": 1},
        {7: 1},
        {1, 2},
        object(),
        Decimal(1),
        nested(100_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_no_word_for_refused(value):
    with pytest.raises(ConfigError):
        encode({"value": value})
    with pytest.raises(ConfigError):
        encode(Part(extra={"value": value}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b"{}x",
        b"-ERR 'x'",
        b"+OK",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":01}',
        b'{"a":"\\ud800"}',
        b'{"\xff":1}',
        b"\xef\xbb\xbf{}",
        b"\xff",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"a":' + b"9" * 10_000 + b"}",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_no_json_object(data):
    with pytest.raises(ProtocolError):
        decode(data)


@given(st.binary() | st.binary().map(b'{"a":'.__add__))
def test_any_bytes_object_or_protocol_error(data):
    try:
        assert isinstance(decode(data), dict)
    except ProtocolError:
        pass


@given(st.dictionaries(st.text(), JSON))
def test_json_comes_back(data):
    assert decode(encode(data)) == data


# --- mistakes in a model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("annotation", [bytes, object, set[str], tuple[int, ...]])
def test_field_without_kind_mistake_in_model(annotation):
    with pytest.raises(TypeError, match="no kind"):
        _kind(annotation)


def test_plain_values_are_read_without_a_call():
    """A reader that opens, and each poll of Spark, reads the info of a stream, which has 60 of them."""
    config = {"name": "S", "subjects": ["a", "b"], "max_msgs": -1, "num_replicas": 3, "sealed": False}
    state = {"messages": 2, "bytes": 80, "first_seq": 1, "last_seq": 2**63, "consumer_count": 0}
    answer = {"config": config, "state": state}
    info = from_wire(StreamInfo, answer)
    with Calls() as calls:
        assert from_wire(StreamInfo, answer) == info
    assert calls.by_name.total() <= 8, calls
    assert info.state.last_seq == 2**63
    words = {"retention": "limits", "storage": "file", "compression": "none", "metadata": {"a": "b"}}
    with Calls() as calls:
        from_wire(StreamInfo, {"config": {**config, **words}, "state": state})
    assert calls.by_name.total() <= 11, calls
    for wrong in (
        {"max_msgs": True},
        {"max_msgs": 2**64},
        {"sealed": 1},
        {"name": "\ud800"},
        {"subjects": [1]},
    ):
        with pytest.raises(ProtocolError, match=next(iter(wrong))):
            from_wire(StreamInfo, {"config": wrong, "state": state})

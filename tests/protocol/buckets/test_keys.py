from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, InvalidNameError, ReadOnlyError
from jsclient.protocol.buckets.keys import (
    KeySpace,
    bucket_of,
    check_bucket,
    check_filters,
    check_key,
    stream_of,
)
from jsclient.protocol.models.stream_config import ExternalStream, StreamConfig, StreamSource
from jsclient.protocol.wire.names import subject_matches

TOKENS = st.text("abAB01-_/=", min_size=1, max_size=4)
KEYS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
FILTERS = st.lists(st.one_of(TOKENS, st.just("*")), min_size=1, max_size=3).map(".".join)


@given(KEYS)
def test_keys(key):
    assert check_key(key) == key
    assert check_filters([key]) == [key]


@pytest.mark.parametrize(
    "key",
    ["_kv", "_kv.a", "", ".", ".a", "a.", "a..b", "a b", "a*", ">", "$a", "a:b", "a@b", "é", "a\n", None, 1],
)
def test_bad_keys(key):
    with pytest.raises(InvalidNameError) as caught:
        check_key(key)
    assert caught.value.kind == "key"


@pytest.mark.parametrize("pattern", ["", "a*", "*a", ">.a", "a.>.b", "a>", "a b", ".", "a..b", None])
def test_bad_filters(pattern):
    with pytest.raises(InvalidNameError):
        check_filters([pattern])


def test_no_filter_is_all():
    assert check_filters([]) == [">"]


@pytest.mark.parametrize(
    ("filters", "remaining"),
    [
        (["a", "a"], ["a"]),
        (["a.*", "a.b", "c"], ["a.*", "c"]),
        (["a.b", ">"], [">"]),
        (["a.>", "a.*", "a.b.c"], ["a.>"]),
        (["a.b", "a.c"], ["a.b", "a.c"]),
    ],
)
def test_redundant_filters_are_removed(filters, remaining):
    assert check_filters(filters) == remaining


def test_many_plain_keys():
    keys = [f"a.{number}" for number in range(1000)]
    assert check_filters(iter(keys)) == keys
    assert check_filters([*keys, *keys]) == keys


@pytest.mark.parametrize("bad", ["", ".a", "a.", "a..b", "a b", "a ", " a", "a\n", "é", None, 1])
def test_one_bad_filter_of_many(bad):
    """Also if the others, joined with it, look like keys."""
    for filters in (["a", bad], [bad, "a"], ["a", bad, "b"], [bad, "a b"], [bad, ""]):
        with pytest.raises(InvalidNameError):
            check_filters(filters)


def test_overlapping_filters():
    with pytest.raises(ConfigError, match="same keys"):
        check_filters(["a.*.c", "a.b.*"])


@given(st.lists(FILTERS, max_size=5), KEYS)
def test_filters_match_the_same_keys(filters, key):
    try:
        remaining = check_filters(filters)
    except ConfigError:
        return
    matches = not filters or any(subject_matches(pattern, key) for pattern in filters)
    assert any(subject_matches(pattern, key) for pattern in remaining) == matches
    assert sum(subject_matches(pattern, key) for pattern in remaining) <= 1


def test_names_of_streams():
    assert check_bucket("a-B_0") == "a-B_0"
    assert stream_of("cfg") == "KV_cfg"
    assert bucket_of("KV_cfg") == "cfg"
    assert [bucket_of(stream) for stream in ("cfg", "KV_", "KV_a.b", "OBJ_cfg")] == [None] * 4
    with pytest.raises(InvalidNameError):
        stream_of("a.b")


def test_subjects():
    keys = KeySpace.of("cfg", None, "$JS.API", validates=True)
    assert keys.subject("a.b") == keys.target("a.b") == "$KV.cfg.a.b"
    assert keys.key("$KV.cfg.a.b") == "a.b"
    assert keys.subjects(["a.*", "c"]) == ["$KV.cfg.a.*", "$KV.cfg.c"]


def test_other_prefix():
    """The API of the other domain or account takes what is written."""
    keys = KeySpace.of("cfg", None, "$JS.hub.API", validates=True)
    assert (keys.subject("a"), keys.target("a")) == ("$KV.cfg.a", "$JS.hub.API.$KV.cfg.a")


@pytest.mark.parametrize(
    ("external", "target"),
    [(None, "$KV.cfg.a"), (ExternalStream(api="$JS.hub.API"), "$JS.hub.API.$KV.cfg.a")],
)
def test_mirror(external, target):
    """Its stream has the subjects of its origin, to which keys are written."""
    config = StreamConfig(name="KV_copy", mirror=StreamSource(name="KV_cfg", external=external))
    keys = KeySpace.of("copy", config, "$JS.API", validates=True)
    assert (keys.bucket, keys.subject("a"), keys.target("a")) == ("copy", "$KV.cfg.a", target)


def test_without_validation():
    keys = KeySpace.of("cfg", None, "$JS.API", validates=False)
    assert keys.subject("é:x") == "$KV.cfg.é:x"
    for bad in ("a b", "a.*", "", None):
        with pytest.raises(InvalidNameError):
            keys.subject(bad)


def test_handle_that_reads_only():
    keys = KeySpace.of("b", None, "$JS.API", validates=True, writable=False)
    assert keys.subject("a") == "$KV.b.a"
    with pytest.raises(ReadOnlyError) as caught:
        keys.target("a")
    assert caught.value.bucket == "b"


@pytest.mark.parametrize(
    ("headers", "is_stray"),
    [
        ({}, True),
        ({"X": "1"}, True),
        ({"Nats-Msg-Id": "1"}, False),
        ({"Jsc-Own": "1"}, False),
        ({"Nats-Marker-Reason": "MaxAge"}, False),
        ({"Nats-Msg-Id": "1", "Nats-Sequence": "7"}, True),
        ({"Nats-Marker-Reason": "MaxAge", "Nats-Sequence": "7"}, True),
    ],
)
def test_stray_messages(headers, is_stray):
    """A stored answer to a direct get copies the headers of a value, and has a sequence."""
    own, plain = KeySpace("b", "$KV.b.", "", own=True), KeySpace("b", "$KV.b.", "")
    assert own.is_stray(headers) == is_stray
    assert not plain.is_stray(headers)
    if is_stray:
        assert own.operation(headers) == "DEL"
    assert plain.operation({"X": "1"}) == "PUT"


def test_codecs_of_a_key_space():
    from jsclient.protocol.buckets.key_codecs import Base64Keys
    from jsclient.protocol.topics.value_codec import JsonCodec

    keys = KeySpace("b", "$KV.b.", "$KV.b.", codec=JsonCodec(), key_codec=Base64Keys())
    assert keys.checked("a b") == "a b"
    assert keys.subject("a b") == keys.target("a b") == "$KV.b.YSBi"
    assert keys.key("$KV.b.YSBi") == "a b"
    assert keys.subjects(["a b.*"]) == ["$KV.b.YSBi.*"]
    assert keys.encoded("a", [1]) == b"[1]"
    assert keys.decoding.decode_once(b"[1]") == [1]
    plain = KeySpace("b", "$KV.b.", "$KV.b.")
    assert (plain.encoded("a", b"x"), plain.decoding) == (b"x", None)

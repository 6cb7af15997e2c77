"""Values by codecs, and what happens when a codec fails."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from jsclient.errors import ConfigError, ValueInvalidError
from jsclient.protocol.buckets.entry import KeyValueEntry
from jsclient.protocol.buckets.values import DecodedValue, check_codec, encoded_value
from jsclient.protocol.topics.value_codec import JsonCodec


class Counting:
    """Decodes to a new list each time."""

    calls = 0

    def encode(self, value: Any) -> bytes:
        return value.encode("ascii")  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> Any:
        self.calls += 1
        return [data.decode("ascii")]


def entry(codec: Any, raw: bytes, **fields: Any) -> KeyValueEntry[Any]:
    decoded = None if codec is None else DecodedValue(codec)
    return KeyValueEntry(bucket="b", key="k", raw=raw, revision=3, created_ns=0, decoded=decoded, **fields)


def test_value_is_decoded_once_and_when_it_is_read() -> None:
    codec = Counting()
    one = entry(codec, b"x")
    assert codec.calls == 0
    assert one.value == ["x"]
    assert one.value is one.value
    assert codec.calls == 1
    assert entry(None, b"x").value == b"x"
    assert one == entry(codec, b"x") != entry(Counting(), b"x")
    assert len({hash(DecodedValue(codec)), hash(DecodedValue(codec))}) == 1


def test_a_value_that_cannot_be_decoded() -> None:
    one = entry(Counting(), b"\xff")
    for _ in range(2):
        with pytest.raises(ValueInvalidError) as caught:
            _ = one.value
    error = caught.value
    assert (error.bucket, error.key, error.revision, error.entry) == ("b", "k", 3, one)
    assert error.entry.raw == b"\xff"
    assert "at revision 3 cannot be decoded" in str(error)
    assert isinstance(error.__cause__, UnicodeDecodeError)


def test_entry_that_cannot_be_decoded_is_freed() -> None:
    codec = Counting()
    one = entry(codec, b"\xff")
    freed = weakref.ref(codec)
    with pytest.raises(ValueInvalidError):
        _ = one.value
    del one, codec
    gc.collect()
    assert freed() is None


def test_entries_without_a_value() -> None:
    assert entry(JsonCodec(), b"", operation="DEL").value is None
    assert entry(JsonCodec(), b"", size=7).value is None  # of a watch with meta_only
    assert entry(None, b"", operation="DEL").value == b""
    with pytest.raises(ValueInvalidError):
        _ = entry(JsonCodec(), b"").value


def test_encoding() -> None:
    assert encoded_value(JsonCodec(), "k", {"a": 1}) == b'{"a":1}'
    with pytest.raises(ConfigError, match="JSON"):
        encoded_value(JsonCodec(), "k", object())
    with pytest.raises(ConfigError, match="'k'"):
        encoded_value(Counting(), "k", "é")

    class Text:
        def encode(self, value: Any) -> Any:
            return value

        decode = encode

    with pytest.raises(ConfigError, match="str, not bytes"):
        encoded_value(Text(), "k", "x")


def test_check_codec() -> None:
    check_codec("codec", None, ("encode",))
    check_codec("codec", JsonCodec(), ("encode", "decode"))
    with pytest.raises(ConfigError, match="instance"):
        check_codec("codec", JsonCodec, ("encode",))
    with pytest.raises(ConfigError, match=r"no method encode\(\)"):
        check_codec("codec", 7, ("encode",))

"""The keys that a codec encodes, and the keys that it refuses."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.buckets.key_codecs import (
    Base64Keys,
    ChainedKeys,
    PathKeys,
    decoded_key,
    encoded_filter,
    encoded_key,
)
from jsclient.protocol.buckets.keys import check_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(TEXT.filter(lambda token: "." not in token), min_size=1))
def test_base64_has_any_character(tokens: list[str]) -> None:
    key = ".".join(tokens)
    stored = Base64Keys().encode(key)
    assert check_key(stored) == stored
    assert Base64Keys().decode(stored) == key


def test_base64_as_other_clients_write_it() -> None:
    """ADR-54 has this key. Each token is encoded alone, so that filters match."""
    assert Base64Keys().encode("Acme Inc.contact") == "QWNtZSBJbmM=.Y29udGFjdA=="
    assert Base64Keys().encode_filter("Acme Inc.*") == "QWNtZSBJbmM=.*"
    assert Base64Keys().encode_filter("Acme Inc.>") == "QWNtZSBJbmM=.>"
    assert Base64Keys().decode("QWNtZSBJbmM.Y29udGFjdA") == "Acme Inc.contact"
    for text in ("??>>~~", "\xff\xfe"):
        assert Base64Keys().decode(base64.b64encode(text.encode()).decode()) == text


@pytest.mark.parametrize("stored", ["a", "====a", "gICA", "ab_1x"])
def test_what_is_no_base64(stored: str) -> None:
    with pytest.raises(ValueError, match=r"base64|decode"):
        Base64Keys().decode(stored)
    assert decoded_key(Base64Keys(), stored) == stored


@pytest.mark.parametrize(
    ("path", "stored"),
    [
        ("/config/app", "_root_.config.app"),
        ("config/app", "config.app"),
        ("a", "a"),
        ("/a", "_root_.a"),
        ("/", "_root_"),
    ],
)
def test_paths(path: str, stored: str) -> None:
    assert PathKeys().encode(path) == stored
    assert PathKeys().decode(stored) == path
    assert check_key(stored) == stored


def test_slash_at_the_end_and_filters() -> None:
    assert PathKeys().encode("/a/b/") == "_root_.a.b"
    assert PathKeys().encode_filter("/a/*") == "_root_.a.*"
    assert PathKeys().encode_filter("/a/>") == "_root_.a.>"
    assert PathKeys().encode_filter(">") == ">"
    for bad, problem in (
        ("a.b", "dots"),
        ("/etc/app.yaml", "dots"),
        ("a//b", "empty"),
        ("_root_/a", "slash"),
    ):
        with pytest.raises(InvalidNameError, match=problem):
            PathKeys().encode(bad)


def test_chain() -> None:
    chain = ChainedKeys(PathKeys(), Base64Keys())
    stored = chain.encode("/Acme Inc/contact")
    assert stored == Base64Keys().encode("_root_.Acme Inc.contact")
    assert chain.decode(stored) == "/Acme Inc/contact"
    assert chain.encode_filter("/Acme Inc/*") == Base64Keys().encode_filter("_root_.Acme Inc.*")
    with pytest.raises(ConfigError, match="no codec"):
        ChainedKeys()


class Broken:
    def encode(self, key: str) -> str:
        raise LookupError(key)

    decode = encode_filter = encode


def test_whatever_a_codec_raises() -> None:
    for encode in (encoded_key, encoded_filter):
        with pytest.raises(InvalidNameError, match="codec"):
            encode(Broken(), "a")
        with pytest.raises(InvalidNameError, match="str is needed"):
            encode(Base64Keys(), 7)  # type: ignore[arg-type]
        with pytest.raises(InvalidNameError, match="UTF-8"):
            encode(Base64Keys(), "\ud800")
    assert decoded_key(Broken(), "a") == "a"

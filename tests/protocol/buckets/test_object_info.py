"""The description of an object is read from what any client stores, and written so that any client reads it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient import ConfigError, ObjectInfo, ObjectInfoError
from jsclient.buckets import ObjectLink
from jsclient.protocol.buckets.object_info import check_headers, check_metadata, encode_info, read_info


def read(body, **options):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_info(data, **{"bucket": "b", "name": "n", "revision": 7, "time_ns": 5, **options})


def test_full_info():
    info = ObjectInfo(
        bucket="b",
        name="n",
        size=5,
        digest="SHA-256=x",
        revision=7,
        modified_ns=1_700_000_000_123_456_789,
        description="text",
        headers={"h": ["1", "2"]},
        metadata={"m": "1"},
        chunks=2,
        max_chunk_size=4,
        nuid="u",
        extra={"more": 1},
    )
    assert read(encode_info(info), time_ns=1_700_000_000_123_456_789) == info
    assert info.modified == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    assert not info.is_link


@pytest.mark.parametrize("link", [ObjectLink("c", "o"), ObjectLink("c")], ids=["object", "bucket"])
def test_links(link):
    info = ObjectInfo(bucket="b", name="n", link=link, revision=7, modified_ns=5)
    assert read(encode_info(info)) == info
    assert info.is_link


def test_deletion():
    info = ObjectInfo(bucket="b", name="n", is_deleted=True, revision=7, modified_ns=5)
    assert json.loads(encode_info(info))["deleted"] is True
    assert read(encode_info(info)) == info


def test_what_is_empty_is_left_out():
    fields = {"name": "n", "bucket": "b", "nuid": "", "size": 0, "chunks": 0, "digest": ""}
    assert json.loads(encode_info(ObjectInfo(bucket="b", name="n"))) == fields


def test_infos_of_others():
    """A link of JavaScript, and an object of Go."""
    link = read({"name": "l", "bucket": "b", "options": {"link": {"bucket": "c", "name": "o"}}})
    assert (link.link, link.nuid, link.is_counted) == (ObjectLink("c", "o"), "", False)
    body = {
        "name": "g", "bucket": "b", "nuid": "u", "size": 3, "mtime": "0001-01-01T00:00:00Z", "chunks": 1,
        "digest": "SHA-256=x", "options": {"max_chunk_size": 131072}, "revision": 3, "colour": "red",
    }  # fmt: skip
    info = read(body)
    assert (info.name, info.size, info.max_chunk_size, info.revision) == ("g", 3, 131072, 7)
    assert info.extra == {"colour": "red"}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"5", b"null"])
def test_no_info(body):
    with pytest.raises(ObjectInfoError, match="'n' in bucket 'b'"):
        read(body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = (
    "name", "bucket", "nuid", "size", "chunks", "digest", "deleted", "options", "headers", "metadata", "mtime", "link",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_values(body):
    """Odd values have their defaults, and what was read can be written."""
    info = read(body)
    assert info.size >= 0
    assert info.chunks >= 0
    assert isinstance(info.name, str)
    encode_info(info)


def test_arguments():
    assert check_headers({"a": "1", "b": ["2", "3"]}) == {"a": ["1"], "b": ["2", "3"]}
    assert (check_headers(None), check_metadata(None)) == ({}, {})
    assert check_metadata({"a": "b"}) == {"a": "b"}
    for headers in ({"a": 1}, {1: "a"}, {"a": [1]}, ["a"], {"a": None}):
        with pytest.raises(ConfigError, match="headers"):
            check_headers(headers)
    for metadata in ({"a": 1}, {1: "a"}, ["a"]):
        with pytest.raises(ConfigError, match="metadata"):
            check_metadata(metadata)

"""The token of an upload, and which of the stored chunks the next attempt keeps."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.buckets.upload_token import UploadToken, has_mark, mark_of_chunk, split_stored

TOKEN = UploadToken("b", "naïve\n", "x5", 10)


class Chunk(NamedTuple):
    seq: int
    size: int
    msg_id: str


def test_text_of_token():
    assert json.loads(TOKEN.text) == {"bucket": "b", "name": "naïve\n", "nuid": "x5", "chunk_size": 10}
    assert UploadToken.of_text(TOKEN.text) == TOKEN


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x",
        "[]",
        "{}",
        None,
        5,
        TOKEN.text[:-1],
        TOKEN.text.replace("x5", "x.5"),
        TOKEN.text.replace("10", "0"),
    ],
)
def test_texts_that_are_refused(bad):
    with pytest.raises(ConfigError, match="upload_token"):
        UploadToken.of_text(bad)


def test_marks():
    one, two = (hashlib.sha256(data).digest() for data in (b"1", b"2"))
    msg_id = f"NUID-a.5{mark_of_chunk(12, one)}"
    assert has_mark(msg_id, mark_of_chunk(12, one))
    assert not has_mark(msg_id, mark_of_chunk(2, one))
    assert not has_mark(msg_id, mark_of_chunk(12, two))
    assert not has_mark("", mark_of_chunk(12, one))


def numbered(*chunks):
    return [Chunk(seq, size, f"n-a.{seq}:{number}:digest") for seq, (number, size) in enumerate(chunks, 1)]


@pytest.mark.parametrize(
    ("chunks", "kept"),
    [
        ([], []),
        ([(1, 10), (2, 10), (3, 5)], [1, 2, 3]),
        ([(1, 10), (3, 10), (2, 10)], [1, 3]),
        ([(2, 10), (1, 10)], [2]),
        ([(1, 10), (1, 10), (2, 10), (2, 10)], [1, 3]),
        ([(1, 10), (2, 5), (3, 10)], [1, 2]),
        ([(1, 11), (1, 10)], [2]),
        ([(0, 0)], []),
    ],
    ids=str,
)
def test_chunks_that_are_kept(chunks, kept):
    """Those in order, each of the full size except the last."""
    stored = numbered(*chunks)
    first, surplus = split_stored(stored, 10)
    assert [chunk.seq for chunk in first] == kept
    assert sorted(first + surplus) == stored


def test_chunks_of_others():
    assert split_stored([Chunk(1, 10, ""), Chunk(2, 10, "n-1")], 10)[0] == []

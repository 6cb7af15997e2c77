"""Content is cut into chunks of one size, however it comes, and checked when it is read."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient import DigestMismatchError, ObjectIncompleteError, ObjectInfo
from jsclient.protocol.buckets.object_content import ChunkSplitter, ContentCheck
from jsclient.protocol.buckets.object_digest import digest_text

PIECES = st.lists(st.binary(max_size=40), max_size=8)


def split(pieces, size):
    splitter = ChunkSplitter(size)
    chunks = [chunk for piece in pieces for chunk in splitter.add(piece)]
    return splitter, [*chunks, *splitter.finish()]


@given(PIECES, st.integers(1, 30), st.sampled_from([bytes, bytearray, memoryview]))
def test_split(pieces, size, kind):
    splitter, chunks = split([kind(piece) for piece in pieces], size)
    content = b"".join(pieces)
    assert b"".join(chunks) == content
    assert all(type(chunk) is bytes for chunk in chunks)
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert len(chunks) == -(-len(content) // size) == splitter.chunks
    assert splitter.size == len(content)
    assert splitter.digest == digest_text(hashlib.sha256(content).digest())


def test_split_views():
    """A view may have items larger than a byte, or gaps."""
    view = memoryview(bytes(range(80)))
    for piece in (view.cast("I"), view[::2]):
        _, chunks = split([piece], 7)
        assert b"".join(chunks) == piece.tobytes()


def info_of(content, chunks, **changes):
    fields = {"size": len(content), "chunks": chunks, "digest": digest_text(hashlib.sha256(content).digest())}
    return ObjectInfo(bucket="b", name="n", nuid="u", **{**fields, **changes})


def check(info, chunks):
    checker = ContentCheck(info)
    for number, chunk in enumerate(chunks):
        assert not checker.is_complete
        checker.add(chunk, len(chunks) - number - 1)
    return checker


@given(st.binary(min_size=1, max_size=100), st.integers(1, 30))
def test_right_content(content, size):
    _, chunks = split([content], size)
    assert check(info_of(content, len(chunks)), chunks).is_complete
    assert check(info_of(content, len(chunks), digest=""), chunks).is_complete
    uncounted = info_of(content, 0, size=0, is_counted=False)
    assert check(uncounted, chunks).is_complete


@given(st.binary(min_size=1, max_size=100), st.integers(1, 30), st.data())
def test_wrong_content(content, size, data):
    """Whatever is changed, the last chunk is not accepted."""
    _, chunks = split([content], size)
    info = info_of(content, len(chunks))
    which = data.draw(st.integers(0, len(chunks) - 1))
    change = data.draw(st.sampled_from(["flip", "shorter", "longer", "missing", "twice"]))
    chunk = chunks[which]
    chunks[which : which + 1] = {
        "flip": [bytes([chunk[0] ^ 1]) + chunk[1:]],
        "shorter": [chunk[1:]],
        "longer": [chunk + b"x"],
        "missing": [],
        "twice": [chunk, chunk],
    }[change]
    checker = ContentCheck(info)
    try:
        for number, one in enumerate(chunks):
            checker.add(one, len(chunks) - number - 1)
            if checker.is_complete:
                break
    except (DigestMismatchError, ObjectIncompleteError):
        pass
    taken = b"".join(chunks[: checker.chunks])
    assert not checker.is_complete or taken == content


def test_empty_object():
    assert ContentCheck(info_of(b"", 0)).is_complete
    with pytest.raises(DigestMismatchError):
        ContentCheck(info_of(b"x", 0, size=0))
    assert not ContentCheck(info_of(b"", 0, is_counted=False)).is_complete


def test_error_has_numbers():
    checker = ContentCheck(info_of(b"12345", 2))
    checker.add(b"123", 1)
    error = checker.incomplete()
    assert (error.size, error.received) == (5, 3)
    with pytest.raises(ObjectIncompleteError):
        checker.add(b"456", 0)


def add_all(check, positions, data):
    for start, end in positions:
        check.add_at(start, data[start:end])


def test_pieces_from_any_position():
    """The digest is checked when they have covered all of it in order."""
    data = bytes(range(100))
    good = ObjectInfo(
        bucket="b", name="n", size=100, chunks=10, digest=digest_text(hashlib.sha256(data).digest())
    )
    bad = msgspec.structs.replace(good, digest=digest_text(hashlib.sha256(b"").digest()))
    for positions in ([(0, 100)], [(50, 60), (0, 40), (90, 100), (40, 100)], [(0, 10), (0, 50), (50, 100)]):
        check = ContentCheck(good)
        add_all(check, positions, data)
        assert check.is_complete
        check = ContentCheck(bad)
        with pytest.raises(DigestMismatchError):
            add_all(check, positions, data)
    check = ContentCheck(bad)
    add_all(check, [(10, 100), (0, 50), (60, 100)], data)
    assert not check.is_complete

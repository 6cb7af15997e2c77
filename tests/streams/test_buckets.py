"""The create race of a bucket: who is second learns what the first one stored; deletions and strangers are replaced."""

from __future__ import annotations

import pytest

from jsclient.errors import WrongLastSequenceError
from jsclient.streams.buckets import Bucket, ConflictError, Entry
from tests.support.virtual import virtual


class Raced(Bucket):
    """``found``: what the key holds at each look, which others change meanwhile; the last one stays."""

    def __init__(self, *found: Entry) -> None:
        self.found = list(found)
        self.stored: list[tuple[bytes, int | None]] = []

    async def get(self, key):
        return self.found.pop(0) if len(self.found) > 1 else self.found[0]

    async def _store(self, key, value, expected):
        if expected != self.found[0].revision:
            raise WrongLastSequenceError(400, 10071, "wrong last sequence")
        self.stored.append((value, expected))
        return 100


def entry(revision: int, value: bytes | None = None, *, foreign: bool = False) -> Entry:
    return Entry("k", value, revision, foreign=foreign)


@virtual
async def test_second_creator_learns_of_first():
    bucket = Raced(entry(7, b"the first one's"))
    with pytest.raises(ConflictError) as caught:
        await bucket.update("k", b"mine", 0)
    assert caught.value.found == entry(7, b"the first one's")
    assert bucket.stored == []


@pytest.mark.parametrize("found", [entry(7), entry(7, foreign=True)], ids=["deletion", "foreign"])
@virtual
async def test_created_over_what_is_no_value(found):
    bucket = Raced(found)
    assert await bucket.update("k", b"mine", 0) == 100
    assert bucket.stored == [(b"mine", 7)]


@virtual
async def test_updated_over_foreign_message_only():
    bucket = Raced(entry(9, foreign=True))
    assert await bucket.update("k", b"mine", 7) == 100
    assert bucket.stored == [(b"mine", 9)]
    deleted = Raced(entry(9))
    with pytest.raises(ConflictError) as caught:
        await deleted.update("k", b"mine", 7)
    assert (caught.value.found, deleted.stored) == (entry(9), [])


@virtual
async def test_race_that_never_ends_is_a_conflict():
    bucket = Raced(*(entry(7 + number, foreign=True) for number in range(50)))
    with pytest.raises(ConflictError):
        await bucket.update("k", b"mine", 0)
    assert bucket.stored == []
    assert len(bucket.found) == 45, "five looks"

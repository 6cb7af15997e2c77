"""The race to create a key: who is second learns what the first stored. Deletions and stray messages are replaced."""

from __future__ import annotations

import pytest

from jsclient.buckets.state import StateConflictError, StateEntry, StoredState
from jsclient.errors import WrongLastSequenceError
from tests.support.virtual import virtual


class Raced(StoredState):
    """``stored_entry``: the entry of the key at each read. The last value repeats."""

    def __init__(self, *stored_entry: StateEntry) -> None:
        self.stored_entry = list(stored_entry)
        self.stored: list[tuple[bytes, int | None]] = []

    async def get(self, key):
        return self.stored_entry.pop(0) if len(self.stored_entry) > 1 else self.stored_entry[0]

    async def _store(self, key, value, expected, **options):
        if expected != self.stored_entry[0].revision:
            raise WrongLastSequenceError(400, 10071, "wrong last sequence")
        self.stored.append((value, expected))
        return 100


def entry(revision: int, value: bytes | None = None, *, is_stray: bool = False) -> StateEntry:
    return StateEntry("k", value, revision, is_stray=is_stray)


@virtual
async def test_second_creator_learns_of_first():
    bucket = Raced(entry(7, b"the first one's"))
    with pytest.raises(StateConflictError) as caught:
        await bucket.update("k", b"mine", 0)
    assert caught.value.stored_entry == entry(7, b"the first one's")
    assert bucket.stored == []


@pytest.mark.parametrize("stored_entry", [entry(7), entry(7, is_stray=True)], ids=["deletion", "stray"])
@virtual
async def test_created_over_what_is_no_value(stored_entry):
    bucket = Raced(stored_entry)
    assert await bucket.update("k", b"mine", 0) == 100
    assert bucket.stored == [(b"mine", 7)]


@virtual
async def test_updated_over_stray_message_only():
    bucket = Raced(entry(9, is_stray=True))
    assert await bucket.update("k", b"mine", 7) == 100
    assert bucket.stored == [(b"mine", 9)]
    deleted = Raced(entry(9))
    with pytest.raises(StateConflictError) as caught:
        await deleted.update("k", b"mine", 7)
    assert (caught.value.stored_entry, deleted.stored) == (entry(9), [])


@virtual
async def test_race_that_never_ends_is_a_conflict():
    bucket = Raced(*(entry(7 + number, is_stray=True) for number in range(50)))
    with pytest.raises(StateConflictError):
        await bucket.update("k", b"mine", 0)
    assert bucket.stored == []
    assert len(bucket.stored_entry) == 45, "five looks"

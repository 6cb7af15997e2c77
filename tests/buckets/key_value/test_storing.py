"""Which revision a value expects after a conflict, and when the conflict is the caller's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jsclient.buckets.key_value.storing import has_value, store_after, store_new
from jsclient.errors import KeyExistsError, RevisionMismatchError, WrongLastSequenceError
from jsclient.protocol.buckets.keys import KeySpace
from tests.support.virtual import virtual

OWN = {"Nats-Msg-Id": "x"}


class Bucket:
    """``newest``: the newest message of the key at each request. The last value repeats."""

    bucket = "b"

    def __init__(self, *newest: Any, own: bool = True) -> None:
        self._keys = KeySpace("b", "$KV.b.", "$KV.b.", own=own)
        self.newest = list(newest)
        self.stored: list[int | None] = []

    async def _stored(self, body: Any) -> Any:
        return self.newest.pop(0) if len(self.newest) > 1 else self.newest[0]

    async def _write(self, key: str, value: bytes, *, expected: int | None) -> int:
        newest = self.newest[0]
        if expected is not None and expected != (0 if newest is None else newest.seq):
            raise WrongLastSequenceError(400, 10071, "wrong last sequence")
        self.stored.append(expected)
        return 100

    def _entry(self, key: str, message: Any) -> Any:
        return SimpleNamespace(is_deleted=not has_value(self, message))  # type: ignore[arg-type]


def message(seq: int, headers: Any = None) -> Any:
    return SimpleNamespace(seq=seq, headers=OWN if headers is None else headers, subject="$KV.b.k")


@virtual
async def test_created() -> None:
    for newest in (None, message(7, {}), message(7, {**OWN, "KV-Operation": "DEL"})):
        bucket: Any = Bucket(newest)
        assert await store_new(bucket, "k", b"") == 100
    with pytest.raises(KeyExistsError) as caught:
        await store_new(Bucket(message(7)), "k", b"")  # type: ignore[arg-type]
    assert caught.value.revision == 7
    with pytest.raises(KeyExistsError):
        await store_new(Bucket(message(7, {}), message(8)), "k", b"")  # type: ignore[arg-type]


@virtual
async def test_stored_after_stray_messages_only() -> None:
    bucket: Any = Bucket(message(9, {}))
    assert await store_after(bucket, "k", b"", 7) == 100
    assert bucket.stored == [9]
    for newest, own in ((message(9), True), (None, True), (message(9, {}), False)):
        other: Any = Bucket(newest, own=own)
        with pytest.raises(RevisionMismatchError) as caught:
            await store_after(other, "k", b"", 7)
        assert caught.value.expected == 7
        assert other.stored == []


@virtual
async def test_race_that_never_ends_is_a_conflict() -> None:
    bucket: Any = Bucket(*(message(9 + number, {}) for number in range(50)))
    with pytest.raises(RevisionMismatchError):
        await store_after(bucket, "k", b"", 7)
    assert bucket.stored == []

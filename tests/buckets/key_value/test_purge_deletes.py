"""Which deletions are removed, and up to which revision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jsclient.buckets.key_value.purge_deletes import purge_deletes
from jsclient.errors import ConfigError, ReadOnlyError
from jsclient.protocol.buckets.entry import KeyValueEntry
from jsclient.protocol.buckets.key_codecs import Base64Keys
from jsclient.protocol.buckets.keys import KeySpace
from tests.support.virtual import virtual


class BucketWithDeletes:
    def __init__(self, *entries: KeyValueEntry, writes: str = "$KV.b.", now: float = 100.0) -> None:
        self._keys = KeySpace("b", "$KV.b.", writes, key_codec=Base64Keys())
        self.entries, self.now = entries, now
        self.purged: list[tuple[str, int]] = []

    def _reader(self, filters: Any, *, headers_only: bool, keys: KeySpace) -> Any:
        assert headers_only
        assert keys.key_codec is None

        async def initial() -> Any:
            for entry in self.entries:
                yield entry

        return SimpleNamespace(initial=initial)

    async def _renewed(self) -> Any:
        return SimpleNamespace(ts=SimpleNamespace(timestamp=lambda: self.now))

    async def _purge(self, subject: str, what: str, *, below: int) -> None:
        self.purged.append((subject, below))


def entry(key: str, revision: int, at: float, operation: Any = "DEL") -> KeyValueEntry:
    return KeyValueEntry(
        bucket="b", key=key, raw=b"", revision=revision, created_ns=int(at * 1e9), operation=operation
    )


@virtual
async def test_old_deletions_go_and_young_ones_lose_their_history() -> None:
    entries = [
        entry("old", 5, 10.0),
        entry("value", 6, 10.0, "PUT"),
        entry("young", 7, 95.0),
        entry("x", 1, 99.0),
    ]
    bucket: Any = BucketWithDeletes(*entries)
    assert await purge_deletes(bucket, 60.0) == 1
    assert bucket.purged == [("$KV.b.old", 6), ("$KV.b.young", 7)]
    assert await purge_deletes(bucket, 0) == 3


@virtual
async def test_bad_arguments() -> None:
    with pytest.raises(ConfigError):
        await purge_deletes(BucketWithDeletes(), -1)  # type: ignore[arg-type]
    with pytest.raises(ReadOnlyError):
        await purge_deletes(BucketWithDeletes(writes=""), 0)  # type: ignore[arg-type]

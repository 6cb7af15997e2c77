"""The newest entries of several keys as of one revision: `KeyValue.get_many`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic

from ...protocol.buckets.entry import KeyValueEntry, ValueT
from ...protocol.buckets.keys import KeySpace
from ...protocol.models.stream import StreamInfo
from ...protocol.topics.record import Record
from ...streams.stream import Stream
from .entries import recorded_entry

__all__ = ["KeyValueSnapshot", "take_snapshot"]

_MOST_SUBJECTS: Final = 1000  # keys in one request. The server allows 1,024


class KeyValueSnapshot(dict[str, KeyValueEntry[ValueT]], Generic[ValueT]):
    """The entry of each key that has a value, as of one revision of the bucket. Created by `KeyValue.get_many`.

    Attributes:
        revision: The revision of the snapshot. A watch with ``after=snapshot.revision`` returns every later change.
    """

    revision: int = 0


async def take_snapshot(
    stream: Stream,
    keys: KeySpace,
    filters: list[str],
    renewed: Callable[[], Awaitable[StreamInfo]],
    report_stray: Callable[[str, int], None],
) -> KeyValueSnapshot[Any]:
    """Read the newest entries of keys that match filters. ``renewed`` requests the current state of the stream."""
    snapshot = KeyValueSnapshot[Any]()

    def add(record: Record, remaining: int) -> None:
        if keys.own and keys.is_stray(record.headers):
            report_stray(record.subject, record.seq)
            return
        entry = recorded_entry(keys, record, remaining)
        if not entry.is_deleted:
            snapshot[entry.key] = entry

    for first in range(0, len(filters), _MOST_SUBJECTS):
        subjects = [keys.reads + pattern for pattern in filters[first : first + _MOST_SUBJECTS]]
        # The first request determines the revision. A key of a later request may have been put since, and then the
        # bucket need not have its earlier value any more. So later requests read the newest values.
        if snapshot.revision:
            await _read(stream, subjects, None, add)
            continue
        revision = await _read(stream, subjects, None, add)
        if not revision:
            # No key has an entry, so the revision is unknown. Read the keys again, because a key may have been put
            # meanwhile.
            revision = (await renewed()).state.last_seq
            await _read(stream, subjects, revision or None, add)
        snapshot.revision = revision
    return snapshot


async def _read(
    stream: Stream, subjects: list[str], up_to: int | None, add: Callable[[Record, int], None]
) -> int:
    """Add the newest entries of these subjects. Returns the revision as of which they were read, or 0."""
    batch = stream.get_last_messages(subjects, up_to_seq=up_to)
    records: list[Record] = []
    async for some in batch.records(linked=False):
        records += some
    remaining = len(records)
    for record in records:
        remaining -= 1
        add(record, remaining)
    return up_to or batch.up_to_seq

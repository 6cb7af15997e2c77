"""The newest entries of several keys as of one revision: `KeyValue.get_many`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import compress
from operator import not_
from typing import Any, Final, Generic

from ...protocol.buckets.entry import KeyValueEntry, ValueT
from ...protocol.buckets.keys import KeySpace
from ...protocol.models.stream import StreamInfo
from ...protocol.topics.record import Record
from ...streams.stream import Stream
from .entries import recorded_entries

__all__ = ["KeyValueSnapshot", "take_snapshot"]

_MOST_SUBJECTS: Final = 1000  # maximum number of keys in one request. The server allows 1,024


class KeyValueSnapshot(dict[str, KeyValueEntry[ValueT]], Generic[ValueT]):
    """A mapping from keys to their entries, as of one revision of the bucket. Returned by `KeyValue.get_many`.

    Attributes:
        revision: Revision of the snapshot. To follow the bucket after the snapshot, open a watch with
            ``after=snapshot.revision``, which returns every later change. If more than 1,000 keys or filters were
            requested, some entries may be newer than this revision, and the watch returns these entries again.
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

    def add(records: list[Record]) -> None:
        deltas: Sequence[int] = range(len(records) - 1, -1, -1)
        # Drop stray messages only after computing the deltas, because the deltas count them too.
        if keys.own:
            own = [not keys.is_stray(record.headers) for record in records]
            for record in compress(records, map(not_, own)):
                report_stray(record.subject, record.seq)
            records, deltas = [*compress(records, own)], [*compress(deltas, own)]
        entries = recorded_entries(keys, records, deltas)
        snapshot.update([(entry.key, entry) for entry in entries if entry.operation == "PUT"])

    for first in range(0, len(filters), _MOST_SUBJECTS):
        subjects = [keys.reads + pattern for pattern in filters[first : first + _MOST_SUBJECTS]]
        revision = await _read(stream, subjects, add)
        # Read the later groups of keys in their current state, because values that they had at the first revision may
        # have been removed since.
        if first:
            continue
        if not revision:
            # No key has an entry, so the revision is unknown. Request it, then read the keys again, because a key may
            # have been stored in between.
            revision = (await renewed()).state.last_seq
            await _read(stream, subjects, add)
        snapshot.revision = revision
    return snapshot


async def _read(stream: Stream, subjects: list[str], add: Callable[[list[Record]], None]) -> int:
    """Read the newest entries of these subjects. Return the revision as of which they were read, or 0 if unknown."""
    batch = stream.get_last_messages(subjects)
    records: list[Record] = []
    async for some in batch.records(linked=False):
        records += some
    add(records)
    return batch.up_to_seq

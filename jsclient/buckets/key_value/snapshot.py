"""The newest entries of several keys as of one revision: `KeyValue.get_many`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeAlias

from ...protocol.buckets.entry import KeyValueEntry, ValueT
from ...protocol.buckets.keys import KeySpace
from ...protocol.models.message import StoredMessage
from ...protocol.models.stream import StreamInfo
from ...streams.stream import Stream

__all__ = ["KeyValueSnapshot", "take_snapshot"]

_MOST_SUBJECTS: Final = 1000  # keys in one request. The server allows 1,024


EntryOf: TypeAlias = Callable[[str, StoredMessage, int], KeyValueEntry[Any]]
"""Returns the entry of a key in a message, after which so many others follow."""


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
    entry_of: EntryOf,
) -> KeyValueSnapshot[Any]:
    """Read the newest entries of keys that match filters. ``renewed`` requests the current state of the
    stream."""
    snapshot = KeyValueSnapshot[Any]()

    def add(message: StoredMessage) -> None:
        key = keys.key(message.subject)
        entry = entry_of(key, message, message.num_pending or 0)
        if not entry.is_deleted:
            snapshot[key] = entry

    for first in range(0, len(filters), _MOST_SUBJECTS):
        subjects = [keys.reads + pattern for pattern in filters[first : first + _MOST_SUBJECTS]]
        # The first request determines the revision, and all later requests read as of that revision.
        revision = await _read(stream, subjects, snapshot.revision or None, add)
        if not revision:
            # No key has an entry, so the revision is unknown. Read the keys again, because a key may have been put
            # meanwhile.
            revision = (await renewed()).state.last_seq
            await _read(stream, subjects, revision or None, add)
        snapshot.revision = revision
    return snapshot


async def _read(
    stream: Stream, subjects: list[str], up_to: int | None, add: Callable[[StoredMessage], None]
) -> int:
    """Add the newest entries of these subjects. Returns the revision as of which they were read, or 0."""
    batch = stream.get_last_messages(subjects, up_to_seq=up_to)
    async for message in batch:
        add(message)
    return up_to or batch.up_to_seq

"""Keys and values in a stream: the newest message of each subject is the value of a key. Source: ADR-8."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from .._runtime.context import Context
from .._runtime.publish import publish
from ..errors import ApiError, MessageNotFoundError, ProtocolError, WrongLastSequenceError
from ..protocol.consumers.status import Ending
from ..protocol.events import RecordSkipped
from ..protocol.models.consumer import ConsumerConfig
from ..protocol.models.message import read_stored_message
from ..protocol.wire.header_names import MSG_ID, SEQUENCE
from ..protocol.wire.headers import Headers

__all__ = ["Bucket", "ConflictError", "Entry"]

_PAGE: Final = 500
_RACES: Final = 5  # attempts to store a value after a deletion or a foreign message


class Entry(NamedTuple):
    """The value of a key, None if it has none, and the revision that the next update has to name.

    ``foreign``: the newest message of the key was not written by a `Bucket`. Its payload is not a value.
    """

    key: str
    value: bytes | None
    revision: int
    foreign: bool = False


class ConflictError(Exception):
    """The key has another revision. ``found`` is its entry."""

    def __init__(self, found: Entry) -> None:
        super().__init__(found.key, found.revision)
        self.found = found


class Bucket:
    """The keys of a stream whose subjects start with a prefix. The stream has ``max_msgs_per_subject`` 1.

    A revision is a stream sequence. An empty message is a deletion. It is removed at once, so that deletions do not
    pile up; if the process ends in between, it counts as a missing entry, and the next update replaces it.

    Args:
        stream: The name of the stream.
        prefix: What the subjects start with, such as ``"$KV.cfg."``; the rest is the key.
        own: Only values that a `Bucket` has written count. Other clients can store messages under the subjects: those
            that may publish there, and those that may request anything, as NATS does not check reply subjects.
    """

    def __init__(self, context: Context, stream: str, prefix: str, *, own: bool = False) -> None:
        self._context = context
        self._stream = stream
        self._prefix = prefix
        self._own = own
        self._skipped = self._skipped_seq = 0  # foreign messages so far, and the newest of them

    async def get(self, key: str) -> Entry:
        """The entry of a key, from the stream's leader. Raises `StreamNotFoundError`, and those of any request."""
        body = {"last_by_subj": self._prefix + key}
        try:
            answer = await self._context.call(
                self._context.api.stream_msg_get(self._stream), body, what=f"get key {key!r}"
            )
        except MessageNotFoundError:
            return Entry(key, None, 0)
        message = read_stored_message(answer)
        return self._entry(key, message.data, message.seq, message.headers)

    def _entry(self, key: str, data: bytes, seq: int, headers: Headers) -> Entry:
        if self._own and (
            MSG_ID not in headers or SEQUENCE in headers
        ):  # the latter: a stored answer to a direct get
            self._report(key, seq)
            return Entry(key, None, seq, foreign=True)
        return Entry(key, data or None, seq)

    def _report(self, key: str, seq: int) -> None:
        """Report a foreign message: the first one, and then at each doubling."""
        if seq <= self._skipped_seq:
            return
        self._skipped, self._skipped_seq = self._skipped + 1, seq
        if self._skipped & (self._skipped - 1) == 0:
            subject = self._prefix + key
            error = ProtocolError(f"message {seq} on {subject!r} was not written by a bucket")
            self._context.emit(
                RecordSkipped(
                    stream=self._stream, subject=subject, stream_seq=seq, count=self._skipped, error=error
                )
            )

    async def put(self, key: str, value: bytes) -> int:
        """Set a value, whatever the key's revision. Returns the new revision. Raises those of any publish."""
        return await self._store(key, value, None)

    async def update(self, key: str, value: bytes | None, revision: int) -> int:
        """Set a value if the key's revision is ``revision``, 0 if it has none; None deletes it.

        Returns the new revision, 0 after a deletion.

        Raises:
            ConflictError: The key has another revision; nothing was stored.
            MaxPayloadError: The value is too large; nothing was stored.
            JetStreamError: The outcome is unknown.
        """
        seq = await self._store_after(key, value or b"", revision)
        if value is not None:
            return seq
        try:
            await self._context.call(
                self._context.api.stream_msg_delete(self._stream),
                {"seq": seq, "no_erase": True},
                what=f"remove deleted key {key!r}",
            )
        except ApiError:
            pass  # it is gone, or may not be removed: an empty message counts as a missing entry
        return 0

    async def _store_after(self, key: str, value: bytes, revision: int) -> int:
        found = Entry(key, None, revision)
        for _ in range(_RACES):
            try:
                return await self._store(key, value, found.revision)
            except WrongLastSequenceError:
                found = await self.get(key)
                # Otherwise it exists as a deletion, or a foreign message has replaced it.
                if found.value is not None or (revision and not found.foreign):
                    break
        raise ConflictError(found)

    async def _store(self, key: str, value: bytes, expected: int | None) -> int:
        ack = await publish(
            self._context,
            self._prefix + key,
            value,
            msg_id=secrets.token_hex(11),  # an attempt whose answer is lost is repeated, and stored once
            expected_stream=self._stream,
            expected_last_subject_seq=expected,
        )
        return ack.seq

    async def entries(self, after: int = 0) -> list[Entry]:
        """The entries stored after a revision, deletions among them; 0: all. Raises those of any request."""
        from ..consumers.ordered.consumer import ordered_consumer  # as all handles: imported when one is made

        if after and (await self.get(">")).revision <= after:
            return []
        config = ConsumerConfig(filter_subject=f"{self._prefix}>", opt_start_seq=after + 1)
        found: dict[str, Entry] = {}
        async with ordered_consumer(
            self._context, self._stream, config, name_prefix=None, max_reset_attempts=None
        ) as consumer:
            while True:
                batch = await consumer.fetch(_PAGE, no_wait=True)
                for message in batch:
                    key = message.subject.removeprefix(self._prefix)
                    # Of a key that is updated meanwhile the newest comes last.
                    found[key] = self._entry(key, message.data, message.metadata.stream_seq, message.headers)
                if batch.error is not None:
                    raise batch.error
                if batch.ending is Ending.NO_MESSAGES or not batch:
                    return list(found.values())

    async def purge(self) -> None:
        """Remove all keys. Raises those of any request."""
        await self._context.call(
            self._context.api.stream_purge(self._stream), {"filter": f"{self._prefix}>"}, what="purge"
        )

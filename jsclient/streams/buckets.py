"""Keys and values in a stream: the newest message of each subject is the value of a key. Source: ADR-8."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

from .._runtime.context import Context
from .._runtime.publish import publish
from ..errors import ApiError, MessageNotFoundError, ProtocolError, WrongLastSequenceError
from ..protocol.consumers.status import Ending
from ..protocol.events import RecordSkipped
from ..protocol.models.consumer import ConsumerConfig
from ..protocol.models.message import read_stored_message
from ..protocol.wire.header_names import MSG_ID, SEQUENCE

__all__ = ["Bucket", "BucketEntry", "ConflictError"]

_PAGE: Final = 500
_RACES: Final = 5  # attempts to store a value after a deletion or a message of another client


class BucketEntry(NamedTuple):
    """The value of a key, or None without a value, and the revision that the next update must name.

    If ``foreign`` is true, the newest message of the key was not written by a `Bucket`, so its payload is not a value.
    """

    key: str
    value: bytes | None
    revision: int
    foreign: bool = False


class ConflictError(Exception):
    """Raised when a key has another revision. ``stored_entry`` is its entry."""

    def __init__(self, stored_entry: BucketEntry) -> None:
        super().__init__(stored_entry.key, stored_entry.revision)
        self.stored_entry = stored_entry


class Bucket:
    """The keys of a stream whose subjects start with a prefix. The stream has ``max_msgs_per_subject`` 1.

    A revision is a stream sequence. An empty message is a deletion. It is removed at once, so that deletions do not
    pile up. If the process ends before that, the message counts as a missing entry, and the next update replaces it.

    Args:
        stream: The name of the stream.
        prefix: The start of all subjects, such as ``"$KV.cfg."``. The remainder of a subject is the key.
        own: Count only values that a `Bucket` has written. Other clients can store messages under the subjects:
            clients that may publish there, and clients that may send any request, because NATS does not check reply
            subjects.
    """

    def __init__(self, context: Context, stream: str, prefix: str, *, own: bool = False) -> None:
        self._context = context
        self._stream = stream
        self._prefix = prefix
        self._own = own
        self._skipped = self._skipped_seq = 0  # number of foreign messages so far, and sequence of the newest

    async def get(self, key: str) -> BucketEntry:
        """Return the entry of a key from the stream's leader. Raises `StreamNotFoundError` or any API request error."""
        body = {"last_by_subj": self._prefix + key}
        try:
            answer = await self._context.call(
                self._context.api.stream_msg_get(self._stream), body, what=f"get key {key!r}"
            )
        except MessageNotFoundError:
            return BucketEntry(key, None, 0)
        message = read_stored_message(answer)
        return self._entry(key, message.data, message.seq, message.headers)

    def _entry(self, key: str, data: bytes, seq: int, headers: Mapping[str, str]) -> BucketEntry:
        # A bucket sets a message id. A stored answer to a direct get may copy it, but has a sequence header too.
        if self._own and (MSG_ID not in headers or SEQUENCE in headers):
            self._report(key, seq)
            return BucketEntry(key, None, seq, foreign=True)
        return BucketEntry(key, data or None, seq)

    def _report(self, key: str, seq: int) -> None:
        """Count a foreign message. Report the first, and then each time the count has doubled."""
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
        """Set a value at any revision of the key, and return the new revision. Raises the errors of any publish."""
        return await self._store(key, value, None)

    async def update(self, key: str, value: bytes | None, revision: int) -> int:
        """Set a value if the key has this revision, 0 for a new key. The value None deletes the key.

        Returns the new revision, or 0 after a deletion.

        Raises:
            ConflictError: The key has another revision. Nothing was stored.
            MaxPayloadError: The value is too large. Nothing was stored.
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
            pass  # already removed, or this client may not remove it: an empty message counts as a missing entry
        return 0

    async def _store_after(self, key: str, value: bytes, revision: int) -> int:
        entry = BucketEntry(key, None, revision)
        for _ in range(_RACES):
            try:
                return await self._store(key, value, entry.revision)
            except WrongLastSequenceError:
                entry = await self.get(key)
                # The key has no value, only a deletion or a foreign message: try again with the revision of that.
                if entry.value is not None or (revision and not entry.foreign):
                    break
        raise ConflictError(entry)

    async def _store(self, key: str, value: bytes, expected: int | None) -> int:
        ack = await publish(
            self._context,
            self._prefix + key,
            value,
            msg_id=secrets.token_hex(11),  # an attempt whose answer is lost is repeated, but stored once
            expected_stream=self._stream,
            expected_last_subject_seq=expected,
        )
        return ack.seq

    async def entries(self, after: int = 0) -> list[BucketEntry]:
        """Return the entries stored after a revision, deletions included. 0 means all. Raises any API request error."""
        # like all handles, it is imported when the first is created
        from ..consumers.ordered.consumer import ordered_consumer

        if after and (await self.get(">")).revision <= after:
            return []
        config = ConsumerConfig(filter_subject=f"{self._prefix}>", opt_start_seq=after + 1)
        entries: dict[str, BucketEntry] = {}
        async with ordered_consumer(
            self._context, self._stream, config, name_prefix=None, max_reset_attempts=None
        ) as consumer:
            while True:
                batch = await consumer.fetch(_PAGE, no_wait=True)
                for message in batch:
                    key = message.subject.removeprefix(self._prefix)
                    # A key that is updated meanwhile is delivered again. Its newest entry comes last.
                    entries[key] = self._entry(
                        key, message.data, message.metadata.stream_seq, message.headers
                    )
                if batch.error is not None:
                    raise batch.error
                if batch.ending is Ending.NO_MESSAGES or not batch:
                    return list(entries.values())

    async def purge(self) -> None:
        """Remove all keys. Raises the errors of any API request."""
        await self._context.call(
            self._context.api.stream_purge(self._stream), {"filter": f"{self._prefix}>"}, what="purge"
        )

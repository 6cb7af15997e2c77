"""State that jsclient stores for its own use in a few keys, such as the state of peers or the ledgers of Spark's sink.

The state is a `KeyValue` on any stream with ``max_msgs_per_subject`` 1. Values are written with a message id, and read
from the stream's leader. Deletions are removed, so that they don't accumulate.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .._runtime.context import Context
from ..errors import ApiError, BucketNotFoundError, StreamNotFoundError
from ..protocol.buckets.entry import DELETE, OPERATION
from ..protocol.buckets.keys import KeySpace
from ..protocol.wire.frames import Frame
from ..protocol.wire.message_headers import MessageHeaders

if TYPE_CHECKING:
    from ..protocol.models.message import StoredMessage
    from .key_value.key_value import KeyValue

__all__ = ["StateConflictError", "StateEntry", "StoredState", "open_state"]


class StateEntry(NamedTuple):
    """The value of a key (None if there is no value), and the revision that the next update must expect.

    ``is_stray`` is True if the newest message of the key was not written by `StoredState`, so that its payload is not a
    value.
    """

    key: str
    value: bytes | None
    revision: int
    is_stray: bool = False


class StateConflictError(Exception):
    """Raised when a key has a different revision than expected. ``stored_entry`` is the current entry of the key."""

    def __init__(self, stored_entry: StateEntry) -> None:
        super().__init__(stored_entry.key, stored_entry.revision)
        self.stored_entry = stored_entry


def open_state(context: Context, stream: str, prefix: str, *, own: bool = False) -> StoredState:
    """Return the state stored under the subjects of a stream that start with a prefix, such as ``"$KV.cfg."``.

    If ``own`` is True, messages that were not written by `StoredState` are ignored. No request is sent.
    """
    from .key_value.key_value import KeyValue  # imported only when it is needed

    keys = KeySpace(stream, prefix, prefix, validates=False, own=own)
    return StoredState(KeyValue(context, stream, keys, None))


@contextmanager
def _about_the_stream() -> Iterator[None]:
    """Raise `StreamNotFoundError` instead of `BucketNotFoundError`, because the stream isn't a bucket of the user."""
    try:
        yield
    except BucketNotFoundError as error:
        raise StreamNotFoundError(
            error.code, error.err_code, error.description, error.stream, error.consumer
        ) from None


class StoredState:
    """A few keys with internal state. Returned by `open_state`.

    A revision is a stream sequence. If the process ends before a deletion has been removed, the deletion is treated as
    a missing entry, and the next update replaces it. Earlier versions stored an empty message to delete a key.
    """

    def __init__(self, kv: KeyValue[bytes]) -> None:
        self._kv = kv

    async def get(self, key: str) -> StateEntry:
        """Return the entry of a key from the stream's leader. Raises `StreamNotFoundError` or any API request error."""
        with _about_the_stream():
            message = await self._kv._stored({"last_by_subj": self._kv._keys.subject(key)})  # noqa: SLF001
        return StateEntry(key, None, 0) if message is None else self._entry(key, message)

    def _entry(self, key: str, message: StoredMessage) -> StateEntry:
        entry = self._kv._entry(key, message)  # noqa: SLF001  reports a stray message
        is_stray = self._kv._keys.is_stray(message.headers)  # noqa: SLF001
        return StateEntry(key, None if entry.is_deleted else entry.raw or None, entry.revision, is_stray)

    async def put(self, key: str, value: bytes) -> int:
        """Set a value without checking the revision of the key. Return the new revision.

        May raise any error that publishing can raise.
        """
        return await self._store(key, value, None)

    async def update(self, key: str, value: bytes | None, revision: int) -> int:
        """Set or delete a value if the key still has this revision. Return the new revision, or 0 after a deletion.

        Args:
            key: The key.
            value: The new value. None deletes the key.
            revision: The revision that the key must have. 0 means that the key must not exist.

        Raises:
            StateConflictError: The key has a different revision. Nothing was stored.
            MaxPayloadError: The value is too large. Nothing was stored.
            JetStreamError: The value may or may not be stored.
        """
        headers = {} if value is not None else {"headers": {OPERATION: DELETE}}
        seq = await self._store_after(key, value or b"", revision, headers)
        if value is None:
            try:
                await self._kv._remove(seq)  # noqa: SLF001  same package
            except ApiError:
                pass  # the deletion has already been removed, or can't be. It counts as no entry in any case
        return 0 if value is None else seq

    async def _store_after(self, key: str, value: bytes, revision: int, headers: dict[str, Any]) -> int:
        from .key_value.storing import store_past

        stored = StateEntry(key, None, revision)

        async def write(expected: int) -> int:
            return await self._store(key, value, expected, **headers)

        async def past_no_value() -> int | None:
            nonlocal stored
            stored = await self.get(key)
            # A deletion or a stray message doesn't count as a value, so create the key on top of its revision.
            counts = stored.value is not None or (revision and not stored.is_stray)
            return None if counts else stored.revision

        seq = await store_past(write, revision, past_no_value)
        if seq is None:
            raise StateConflictError(stored)
        return seq

    async def _store(self, key: str, value: bytes, expected: int | None, **options: Any) -> int:
        return await self._kv._write(  # noqa: SLF001  same package
            key,
            value,
            expected=expected,
            # If the reply is lost, the value is sent again but stored only once.
            msg_id=secrets.token_hex(11),
            expected_stream=self._kv.stream,
            stream_exists=False,
            **options,
        )

    async def entries(self, after: int = 0) -> list[StateEntry]:
        """Return the newest entry of each key, including deletions, if it was stored after a revision. 0 means all.

        May raise any error of an API request.
        """
        from .reading import BucketReader, each_by, reader_config

        kv = self._kv
        subject = f"{kv._keys.reads}>"  # noqa: SLF001  same package
        with _about_the_stream():
            if after:
                newest = await kv._stored({"last_by_subj": subject})  # noqa: SLF001
                if newest is None or newest.seq <= after:
                    return []
            reader = BucketReader(
                kv._context,  # noqa: SLF001
                kv.stream,
                reader_config([subject], after=after or None),
                each_by(self._delivered),
                kv._create,  # noqa: SLF001
            )
            # If a key is updated while reading, its newest entry is delivered again at the end, and replaces the
            # earlier one.
            return list({entry.key: entry async for entry in reader.initial()}.values())

    def _delivered(
        self, frame: Frame, revision: int, time_ns: int, pending: int, *, is_initial: bool
    ) -> StateEntry:
        kv, subject = self._kv, frame[0].decode("utf-8", "surrogateescape")
        key, headers = kv._keys.key(subject), MessageHeaders(frame[2])  # noqa: SLF001  same package
        if kv._keys.is_stray(headers):  # noqa: SLF001
            kv._strays.report_message(subject, revision)  # noqa: SLF001
            return StateEntry(key, None, revision, is_stray=True)
        is_value = kv._keys.operation(headers) == "PUT"  # noqa: SLF001
        return StateEntry(key, (frame[3] or None) if is_value else None, revision)

    async def purge(self) -> None:
        """Remove all keys. May raise any error of an API request."""
        with _about_the_stream():
            await self._kv._purge(f"{self._kv._keys.reads}>", "purge")  # noqa: SLF001  same package

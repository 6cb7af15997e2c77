"""Requests, stores and removes the messages of an object store, which are descriptions and chunks."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..._runtime.context import Context
from ..._runtime.publish import publish
from ...errors import (
    ApiError,
    ConfigError,
    DisconnectedError,
    JetStreamError,
    MessageNotFoundError,
    ObjectChangedError,
    ObjectInfoError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from ...protocol.buckets.object_info import ObjectInfo, encode_info, read_info
from ...protocol.buckets.object_names import ObjectSpace, object_stream_of
from ...protocol.buckets.rights import BucketRights, local_info
from ...protocol.events import ErrorRaised
from ...protocol.models.message import StoredMessage
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.api import DEFAULT_PREFIX, Api
from ...protocol.wire.codec import from_wire
from ...streams.stream import Stream
from ..bucket_handle import BucketHandle
from .upload import named_refusal

__all__ = ["ObjectChunks", "ObjectSite"]

_ATTEMPTS: Final = 100  # attempts to change a description while other clients change it
_PAUSE: Final = 0.002  # seconds. The maximum pause between attempts grows by this amount with each attempt
_LOCAL: Final = 1.0  # timeout for the request that looks for a stream in the client's own domain, in seconds


class ObjectSite(BucketHandle):
    """The stream of an object store, with the requests that operations on objects need."""

    _create = "create_object_store"

    def __init__(self, context: Context, space: ObjectSpace, info: StreamInfo | None) -> None:
        super().__init__(context, space.bucket, object_stream_of(space.bucket), info)
        self.context: Context = context
        self.space: ObjectSpace = space
        self._is_unambiguous = context.api.prefix == DEFAULT_PREFIX

    @property
    def rights(self) -> BucketRights:
        """The permissions that users of the object store need."""
        space, api = self.space, self._context.api
        stored = (f"{space.start}C.>", f"{space.start}M.>")
        return BucketRights(
            api=api,
            stream=self.stream,
            stored=stored,
            written=() if space.is_copy else stored,
            removes=True,
            asks=local_info(api, self.stream),
        )

    async def current(self, name: str, *, replacing: bool = False) -> ObjectInfo | None:
        """Request the current description of an object from the stream's leader. Return None if there is none.

        A deleted object has a description too. If ``replacing`` is True, an invalid description doesn't raise an error.
        Instead, a description that has only the name and the revision is returned, so that it can be replaced.

        Raises:
            ObjectInfoError: The description is invalid.
            InvalidNameError: The name is invalid.
            BucketNotFoundError: The bucket does not exist.

        May also raise any error of an API request.
        """
        message = await self._stored({"last_by_subj": self.space.info_subject(name)})
        if message is None:
            return None
        try:
            return read_info(
                message.data, bucket=self.bucket, name=name, revision=message.seq, time_ns=message.time_ns
            )
        except ObjectInfoError:
            if not replacing:
                raise
            return ObjectInfo(bucket=self.bucket, name=name, revision=message.seq, is_counted=False)

    async def last_chunk(self, nuid: str) -> StoredMessage | None:
        """Return the last chunk of an object from the stream's leader, or None if the bucket has none."""
        return await self._stored({"last_by_subj": self.space.chunk_subject(nuid)})

    async def newest_info_seq(self) -> int:
        """Request the sequence of the newest description from the stream's leader. Return 0 if there is none."""
        message = await self._stored({"last_by_subj": self.space.infos})
        return 0 if message is None else message.seq

    async def stream_handle(self) -> Stream:
        """Return a handle for the stream. The state of the stream is requested if it isn't known yet."""
        return Stream(self._context, await self._known())

    async def state(self) -> StreamInfo:
        """Request the state of the stream."""
        return await self._renewed()

    async def update(self, config: dict[str, Any]) -> None:
        """Change the configuration of the stream."""
        await self._call(self._context.api.stream_update(self.stream), config, "change the configuration")

    async def change(
        self,
        name: str,
        make: Callable[[ObjectInfo | None], ObjectInfo | None],
        *,
        read: tuple[ObjectInfo | None] | None = None,
        replacing: bool = False,
    ) -> tuple[ObjectInfo | None, ObjectInfo | None]:
        """Replace the description of an object. Retry if another client changes it first.

        Args:
            name: Name of the object.
            make: Called with the current description. It returns the new description, or None to keep the current one.
                If the change isn't possible, it raises an error.
            read: A tuple with the current description, if it has been read already.
            replacing: See `current`.

        Returns: the descriptions before and after the change.
        """
        attempt = 0
        while True:
            before = read[0] if read is not None else await self.current(name, replacing=replacing)
            read = None
            after = make(before)
            if after is None:
                return before, before
            try:
                return before, await self.write(after, 0 if before is None else before.revision)
            except WrongLastSequenceError:
                # Another client has stored a description in the meantime, so `make` must decide again.
                attempt += 1
                if attempt == _ATTEMPTS:
                    revision = 0 if before is None else before.revision
                    raise ObjectChangedError(self.bucket, name, revision, None) from None
                await asyncio.sleep(random.uniform(0, _PAUSE * attempt))  # noqa: S311  not for secrets

    async def write(self, info: ObjectInfo, expected: int) -> ObjectInfo:
        """Store a description if the previous one still has the revision ``expected``. 0 means that there is none.

        Raises `WrongLastSequenceError` if the revision differs, and any error that publishing can raise. After
        `RequestTimeoutError` or `DisconnectedError`, the description may or may not be stored.
        """
        self.space.check_writable()
        data = encode_info(info)
        try:
            ack = await publish(
                self._context,
                self.space.info_subject(info.name),
                data,
                msg_id=secrets.token_hex(11),
                expected_last_subject_seq=expected,
                rollup="sub",
                stream_exists=True,
            )
        except WrongLastSequenceError:
            raise
        except ApiError as error:
            raise named_refusal(error) from None
        except (RequestTimeoutError, DisconnectedError):
            if (stored := await self._as_written(info.name, data, expected)) is None:
                raise
            return stored
        return msgspec.structs.replace(info, revision=ack.seq, modified_ns=time.time_ns())

    async def _as_written(self, name: str, data: bytes, expected: int) -> ObjectInfo | None:
        """Return the description if it has been stored although no reply arrived, or None."""
        try:
            stored = await self.current(name)
        except JetStreamError:
            return None
        return stored if stored and stored.revision > expected and encode_info(stored) == data else None

    def chunks(self, nuid: str) -> ObjectChunks:
        """Return the chunks of an object."""
        return ObjectChunks(self, nuid)

    async def remove_chunk(self, seq: int) -> None:
        """Remove one chunk. Does nothing if it does not exist."""
        try:
            await self._remove(seq)
        except MessageNotFoundError:
            pass  # an earlier attempt has already removed the chunk

    async def count_chunks(self, nuid: str) -> int:
        """Return the number of chunks of an object."""
        subject = self.space.chunk_subject(nuid)
        body = {"subjects_filter": subject}
        answer = await self._call(self._context.api.stream_info(self.stream), body, "count chunks")
        return (from_wire(StreamInfo, answer).state.subjects or {}).get(subject, 0)

    async def remove_chunks(self, nuid: str, *, below: int = 0) -> None:
        """Remove the chunks of an object, or only those below a sequence."""
        if nuid:  # with an empty nuid, the chunks of all objects would be removed
            await self._purge(self.space.chunk_subject(nuid), "remove chunks", below=below)

    async def remove_replaced(self, nuid: str) -> None:
        """Remove the chunks of an object that has been replaced. If that fails, an event reports it."""
        try:
            await self.remove_chunks(nuid)
        except JetStreamError as error:
            self._context.emit(ErrorRaised(stream=self.stream, error=error))

    async def remove_info(self, name: str, below: int) -> None:
        """Remove the descriptions of a name below this revision."""
        await self._purge(self.space.info_subject(name), "remove a description", below=below)

    async def check_unambiguous(self) -> None:
        """Raise `ConfigError` if the client's own domain has another bucket of the same name.

        The subjects of objects are the same in all domains, so both buckets would store each published message.
        """
        self.space.check_writable()
        if self._is_unambiguous:
            return
        request = Api(DEFAULT_PREFIX).stream_info(self.stream)
        try:
            answer = await self._context.call(
                request, None, timeout=_LOCAL, what="look for another bucket", optional=True
            )
            own = from_wire(StreamInfo, answer)
        except JetStreamError:
            own = None
        if own is not None and own.created != (await self._known()).created:
            raise ConfigError(
                f"the domain of this connection has a bucket {self.bucket!r}, too, and both would store the object: "
                "delete one, or connect to the other domain"
            )
        self._is_unambiguous = True


class ObjectChunks:
    """The chunks of one object. Implements `ChunkSubject`."""

    def __init__(self, site: ObjectSite, nuid: str) -> None:
        self._site, self._nuid = site, nuid

    @property
    def subject(self) -> str:
        """The subject of the chunks."""
        return self._site.space.chunk_subject(self._nuid)

    async def remove(self, seq: int) -> None:
        """Remove one chunk."""
        await self._site.remove_chunk(seq)

    async def remove_all(self) -> None:
        """Remove all chunks."""
        await self._site.remove_chunks(self._nuid)

    async def count(self) -> int:
        """Return the number of chunks."""
        return await self._site.count_chunks(self._nuid)

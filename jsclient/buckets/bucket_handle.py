"""Base class for the handles of buckets, with the requests about their streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .._runtime.context import Context
from .._runtime.handle import no_pickle
from ..errors import (
    BucketNotFoundError,
    MessageNotFoundError,
    NoRespondersError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from ..protocol.models.message import StoredMessage, read_stored_message
from ..protocol.models.stream import StreamInfo
from ..protocol.streams.direct_get import read_direct_answer
from ..protocol.wire.codec import from_wire
from ..protocol.wire.nats_py import no_attribute

__all__ = ["BucketHandle", "no_bucket"]


def no_bucket(error: StreamNotFoundError, create: str) -> BucketNotFoundError:
    """Return the error for a bucket whose stream does not exist. ``create`` is the method that would create it."""
    return BucketNotFoundError(
        error.code, error.err_code, error.description, error.stream, error.consumer,
        f"check the name, or create it with {create}()",
    )  # fmt: skip


class BucketHandle:
    """Base class of the handles of buckets. A handle holds no resources, so it doesn't have to be closed."""

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    _create: ClassVar[str]  # name of the method of `JetStream` that creates such a bucket

    def __init__(self, context: Context, bucket: str, stream: str, info: StreamInfo | None) -> None:
        self._context = context
        self._bucket = bucket
        self._stream = stream
        self._info = info
        # If the configuration is unknown, assume that the stream allows direct gets, until one of them isn't answered.
        self._reads_directly = info is None or bool(info.config.allow_direct)

    @property
    def bucket(self) -> str:
        """Name of the bucket."""
        return self._bucket

    @property
    def stream(self) -> str:
        """Name of the stream that stores the bucket."""
        return self._stream

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.bucket}>"

    async def _call(
        self, subject: str, body: Any, what: str, *, timeout: float | None = None
    ) -> dict[str, Any]:
        what = f"{what} in bucket {self.bucket!r}"
        try:
            return await self._context.call(subject, body, timeout=timeout, what=what)
        except StreamNotFoundError as error:
            raise no_bucket(error, self._create) from None

    async def _stored(self, body: dict[str, Any], timeout: float | None = None) -> StoredMessage | None:
        """Return a message from the leader of the stream, or None."""
        try:
            answer = await self._call(
                self._context.api.stream_msg_get(self._stream), body, "get", timeout=timeout
            )
        except MessageNotFoundError:
            return None
        return read_stored_message(answer)

    async def _newest(self, subject: str, what: str) -> StoredMessage | None:
        """Return the newest message of a subject from any replica, or None."""
        if not self._reads_directly:
            return await self._stored({"last_by_subj": subject})
        context = self._context
        try:
            frame = await context.requests.ask(
                context.api.direct_get_last(self._stream, subject),
                timeout=context.timeout / 2,
                what=what,
                again=True,
            )
            return read_direct_answer(frame)
        except MessageNotFoundError:
            return None
        except (NoRespondersError, RequestTimeoutError):
            # Either the stream doesn't allow direct gets, or it doesn't exist. Servers before 2.11 don't answer in
            # either case, so ask the leader.
            self._reads_directly = self._info is not None and bool(self._info.config.allow_direct)
            return await self._stored({"last_by_subj": subject}, context.timeout / 2)

    async def _purge(self, subject: str, what: str, *, below: int = 0) -> None:
        """Remove the messages of a subject, or only those below a sequence."""
        body: dict[str, Any] = {"filter": subject}
        if below:
            body["seq"] = below
        await self._call(self._context.api.stream_purge(self._stream), body, what)

    async def _remove(self, seq: int) -> None:
        """Remove one message. Raises `MessageNotFoundError` if it does not exist."""
        body = {"seq": seq, "no_erase": True}
        await self._call(self._context.api.stream_msg_delete(self._stream), body, "remove a message")

    async def _known(self) -> StreamInfo:
        return self._info or await self._renewed()

    async def _renewed(self) -> StreamInfo:
        answer = await self._call(self._context.api.stream_info(self._stream), None, "look up the state")
        self._info = from_wire(StreamInfo, answer)
        return self._info

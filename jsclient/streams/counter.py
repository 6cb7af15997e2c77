"""Counters, which `JetStream.counter` returns. Source: ADR-49."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .._runtime.calls import subject_pages
from .._runtime.context import Context
from .._runtime.handle import no_pickle
from .._runtime.publish import publish
from ..errors import ConfigError, MessageNotFoundError, PublishError
from ..protocol.models.message import StoredMessage, read_stored_message
from ..protocol.models.publish import PubAck
from ..protocol.models.stream import StreamInfo
from ..protocol.streams.counter import CounterEntry, increment_text, next_chunk, read_counter, read_number
from ..protocol.streams.direct_get import last_request
from ..protocol.wire.header_names import INCR
from ..protocol.wire.headers import merge_headers
from ..protocol.wire.names import check_filter_subject, check_publish_subject, subject_matches
from ..protocol.wire.nats_py import no_attribute
from .direct_get import DirectBatch

__all__ = ["Counter"]


class Counter:
    """The counters of a stream. Each subject of the stream is a separate counter. Created by `JetStream.counter`.

    ::

        counter = await js.counter("VISITS")
        total = await counter.add("visits.home")

    The first call of `add` creates a counter. Several clients may add to a counter at the same time, and no change is
    lost. Values are positive or negative integers with up to 4,300 digits.
    """

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
        __getattr__ = no_attribute
        __reduce__ = no_pickle

    def __init__(self, context: Context, info: StreamInfo) -> None:
        if not info.config.allow_msg_counter:
            raise ConfigError(
                f"the stream {info.name!r} has no counters: it needs allow_msg_counter, and a server from 2.12 on"
            )
        self._context = context
        self._info = info

    @property
    def stream(self) -> str:
        """Name of the stream that contains the counters."""
        return self._info.name

    def __repr__(self) -> str:
        return f"<Counter {self.stream}>"

    async def add(
        self,
        subject: str,
        amount: int = 1,
        *,
        msg_id: str | None = None,
        headers: Mapping[str, str | Sequence[str]] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Add to a counter, and return its new value.

        Pass a ``msg_id`` whenever possible. If the server's response is lost, the client then sends the change again
        until the timeout expires, and the change is counted only once. Without a ``msg_id``, a lost response raises an
        error, and the change may or may not have been counted.

        If you call `add` again with the same ``msg_id``, nothing is added. The call returns the same value as the first
        call, or the current value if the stream no longer contains the first change.

        Args:
            subject: Subject of the counter.
            amount: Integer to add. It may be negative or 0. Defaults to 1.
            msg_id: Unique ID of the change. The stream remembers it for its duplicate window.
            headers: Additional headers of the stored message.
            timeout: Time limit of the whole call, in seconds. Defaults to the ``timeout`` passed to `connect`.

        Raises:
            ApiError: The stream rejected the change. Nothing was counted.
            NoRespondersError: No stream received the message. Nothing was counted.
            RequestTimeoutError: No response arrived in time. The change may or may not have been counted.
            DisconnectedError: The connection was lost. The change may or may not have been counted.
            PublishError: The subject belongs to a different stream, which has counted the change. Or ``msg_id`` has
                already been used for a different subject, so nothing was counted.
            InvalidNameError: The subject or a header is invalid. Nothing was sent.
            ConfigError: ``amount``, ``msg_id`` or ``timeout`` is invalid. Nothing was sent.
            MaxPayloadError: The message exceeds the server's size limit. Nothing was sent.

        If the call is cancelled, the change may or may not have been counted.
        """
        merged = merge_headers(headers, {INCR: increment_text(amount)})
        ack = await publish(self._context, subject, headers=merged, msg_id=msg_id, timeout=timeout)
        if ack.stream != self.stream:
            raise PublishError(
                f"{subject!r} is a subject of the stream {ack.stream!r}, not of {self.stream!r}"
            )
        if ack.duplicate:
            return await self._counted_before(subject, ack)
        return read_number(ack.val, "the answer's value")

    async def _counted_before(self, subject: str, ack: PubAck) -> int:
        """Return the value after a change that was counted earlier. The server's response doesn't contain it."""
        try:
            change = await self._message({"seq": ack.seq})
        except MessageNotFoundError:
            return await self.load(subject)
        if change.subject != subject and self._info.config.subject_transform is None:
            raise PublishError(
                f"this msg_id was used for {change.subject!r}, so nothing was added to {subject!r}"
            )
        return read_counter(change).value

    async def load(self, subject: str) -> int:
        """Return the current value of a counter.

        Args:
            subject: Subject of the counter, without wildcards.

        Raises:
            MessageNotFoundError: Nothing has ever been added to the counter, or the counter has been purged.
            ProtocolError: The message on this subject isn't a valid counter value.
            RequestTimeoutError: The server didn't respond in time.
        """
        return (await self.get(subject)).value

    async def get(self, subject: str) -> CounterEntry:
        """Return the current value of a counter, with its last change and its sources.

        Use `load` if you need only the value.

        Args:
            subject: Subject of the counter, without wildcards.

        Raises:
            MessageNotFoundError: Nothing has ever been added to the counter, or the counter has been purged.
            ProtocolError: The message on this subject isn't a valid counter value.
            RequestTimeoutError: The server didn't respond in time.
        """
        return read_counter(await self._message({"last_by_subj": check_publish_subject(subject)}))

    async def entries(self, *filters: str) -> AsyncIterator[CounterEntry]:
        """Iterate over all counters, or over the counters that match at least one of the filters.

        ::

            async for entry in counter.entries("visits.*"):
                print(entry.subject, entry.value)

        Each request reads about 1,000 counters, from any replica. If a counter changes during the iteration, either its
        old or its new value is returned. If a counter is created or purged during the iteration, it may be missing. The
        stream must have ``allow_direct``.

        Args:
            filters: Subjects, which may contain wildcards. By default, all counters are returned.

        Raises:
            ConfigError: The stream doesn't have ``allow_direct``, or a filter is invalid.
            ProtocolError: A message isn't a valid counter value.
            RequestTimeoutError: The server didn't respond in time.
        """
        patterns = [check_filter_subject(pattern) for pattern in filters] or [">"]
        if not self._info.config.allow_direct:
            raise ConfigError(
                f"the stream {self.stream!r} has no allow_direct, which reading many counters needs"
            )
        limit = self._context.connection.max_payload // 2
        for number, pattern in enumerate(patterns):
            async for info in subject_pages(self._context, self.stream, pattern):
                # Filters may overlap, so skip counters that have already been returned for an earlier filter.
                subjects = [
                    name
                    for name in info.state.subjects or ()
                    if not any(subject_matches(earlier, name) for earlier in patterns[:number])
                ]
                start = 0
                while start < len(subjects):
                    end = next_chunk(subjects, start, limit)
                    for message in await self._last(subjects[start:end]):
                        yield read_counter(message)
                    start = end

    async def _last(self, subjects: list[str]) -> list[StoredMessage]:
        """Return the last message of each subject. All subjects must fit into one request."""
        messages: list[StoredMessage] = []
        seq = up_to_seq = None
        while True:
            body = last_request(subjects, seq=seq, up_to_seq=up_to_seq)
            batch = DirectBatch(self._context, self.stream, body, timeout=None, check=_allowed)
            messages += [message async for message in batch]
            if not batch.num_pending:
                return messages
            # The server ended the batch early because of its size limit, so request the rest.
            seq, up_to_seq = batch.last_seq + 1, batch.up_to_seq

    async def _message(self, body: dict[str, object]) -> StoredMessage:
        api = self._context.api
        return read_stored_message(
            await self._context.call(api.stream_msg_get(self.stream), body, what="get message")
        )


async def _allowed() -> None:
    """Do nothing, because the caller has already checked that direct gets are allowed."""

"""Counters: subjects whose value is a number, see `JetStream.counter`. Source: ADR-49."""

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
    """The counters of a stream, where every subject is a counter. Created by `JetStream.counter`.

    A counter begins with its first `add`. Any number of clients may add at the same time, and no change is lost or
    overwritten. Values are integers of any sign, with up to 4,300 digits.
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
        """The name of the stream."""
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

        Adding twice counts twice, so without a ``msg_id`` a lost answer leaves the outcome unknown. With a ``msg_id``
        the call retries within the timeout, and counts once. Another call with the same id adds nothing and returns the
        same value, or the current value if the stream no longer has that change.

        Args:
            subject: The subject of the counter.
            amount: An integer, which may be negative or 0.
            msg_id: For de-duplication within the stream's duplicate window.
            headers: Additional headers of the stored message.
            timeout: Seconds for the whole call. The default is the timeout of `connect`.

        Raises:
            ApiError: The stream refused the change. Nothing was counted.
            NoRespondersError: No stream received the message. Nothing was counted.
            RequestTimeoutError, DisconnectedError: It is unknown whether the change was counted.
            PublishError: The subject belongs to another stream, which has counted the change, or the ``msg_id`` was
                used for another subject, and nothing was counted.
            InvalidNameError, ConfigError, MaxPayloadError: Nothing was sent.

        Cancelled: it is unknown whether the change was counted.
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
        """Return the value of a duplicate. The answer has no value, but the stored change has one."""
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
        """Return the value of a counter. Raises `MessageNotFoundError` before its first `add`."""
        return (await self.get(subject)).value

    async def get(self, subject: str) -> CounterEntry:
        """Return a counter with its last change and its sources, from the stream's leader.

        Raises:
            MessageNotFoundError: The counter has no `add` yet, or was purged.
            ProtocolError: The stored message is not a change of a counter.
        """
        return read_counter(await self._message({"last_by_subj": check_publish_subject(subject)}))

    async def entries(self, *filters: str) -> AsyncIterator[CounterEntry]:
        """Iterate over all counters, or over the counters that match a filter. A request returns about 1,000.

        Values are read from any replica. A counter that changes during the iteration is reported with its old or its
        new value. A counter that is created or purged meanwhile may be missing. The stream needs ``allow_direct``.

        Raises:
            ConfigError: The stream has no ``allow_direct``, or a filter is not valid.

        Also raises the errors of any API request.
        """
        patterns = [check_filter_subject(pattern) for pattern in filters] or [">"]
        if not self._info.config.allow_direct:
            raise ConfigError(
                f"the stream {self.stream!r} has no allow_direct, which reading many counters needs"
            )
        limit = self._context.connection.max_payload // 2
        for number, pattern in enumerate(patterns):
            async for info in subject_pages(self._context, self.stream, pattern):
                # Filters may overlap: skip what an earlier filter has reported.
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
        """Return the last messages of subjects that fit into one request."""
        messages: list[StoredMessage] = []
        seq = up_to_seq = None
        while True:
            body = last_request(subjects, seq=seq, up_to_seq=up_to_seq)
            batch = DirectBatch(self._context, self.stream, body, timeout=None, check=_allowed)
            messages += [message async for message in batch]
            if not batch.num_pending:
                return messages
            # The server's limit of bytes ended the batch.
            seq, up_to_seq = batch.last_seq + 1, batch.up_to_seq

    async def _message(self, body: dict[str, object]) -> StoredMessage:
        api = self._context.api
        return read_stored_message(
            await self._context.call(api.stream_msg_get(self.stream), body, what="get message")
        )


async def _allowed() -> None:
    """Do nothing: the caller has checked that direct gets are allowed."""

"""Reading by pull requests: the common part of `PullSubscription` and `Consumer`. Source: ADR-37, ADR-15, ADR-42."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Unpack

from ...errors import RequestTimeoutError
from ...protocol.consumers.priority import GroupOptions
from ..message import Message
from ..worker.run import Running
from ..worker.sources import PullSource, Source
from .fetch import Batch, collection, fetch
from .messages import Messages
from .puller import Puller

__all__ = ["PullReading"]


class PullReading(Running):
    """`fetch`, `next`, `messages`, ``async for`` and `run` on one pull consumer."""

    _puller: Puller
    _reader: Messages | None = None

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
        **group: Unpack[GroupOptions],
    ) -> Batch:
        """Request up to ``batch`` messages from the server.

        It ends at the first of: ``batch`` messages, ``max_bytes`` bytes, ``expires`` seconds, a status that ends it. A
        short or empty result is not an error; its ``ending`` gives the reason.

        Args:
            batch: Messages wanted, 1 or more.
            expires: How long the server may hold the request, seconds, over 0.
            max_bytes: Bytes wanted at most, 1 or more: subject + reply + headers + payload of each message.
            no_wait: Take the messages that are available and return at once.
            idle_heartbeat: Seconds between the heartbeats of the server while it holds the request, at most half of
                ``expires``; two missed ones end the fetch with `HeartbeatError`. By default a quarter of ``expires``,
                5 s at most, and none for requests under 2 s.
            group: The priority group; required if the consumer has priority groups (ADR-42).
            min_pending, min_ack_pending: Only while at least that many messages are undelivered, or delivered and not
                acked; if both are given, either is enough. With the policy ``overflow``.
            priority: 0 to 9; requests of a lower number are served first. With the policy ``prioritized``.

        Returns:
            The messages in the order of delivery, ``0 <= len(...) <= batch``. If some came before an error, they are
            returned and ``error`` holds it.

        Raises:
            ConsumerDeletedError, PullLimitError, PushBasedError, BadRequestError, NoRespondersError: A status.
            HeartbeatError: Silence. RequestTimeoutError: Silence, with ``no_wait``: whether messages are available is
                unknown.
            DisconnectedError: The connection was lost and did not return within 0.8 s.
            ConfigError: A value that the server would refuse. ClosedError: The handle or the connection is closed.

        Cancelled: nothing is lost. Messages that had arrived, or are still sent for this request, go to the next call.
        Reconnect: the rest is requested again at once, for the remaining time; the same applies, up to three times,
        when the consumer moves to another server (409 Leadership Change, Server Shutdown).

        Wire: ``CONSUMER.MSG.NEXT.<stream>.<consumer>``
        Source: ADR-37 §Fetch; ADR-13; ADR-15 §Pull Mode Statuses
        """
        puller = self._puller
        wanted = collection(
            puller.now(),
            batch,
            expires=expires,
            max_bytes=max_bytes,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
            group=puller.group(group),
        )
        puller.check_open()
        return await fetch(puller, wanted)

    async def next(self, timeout: float = 5.0, **group: Unpack[GroupOptions]) -> Message:
        """Fetch one message.

        Raises `RequestTimeoutError` if none comes in ``timeout`` seconds; otherwise as `fetch`.
        """
        batch = await self.fetch(1, expires=timeout, **group)
        if not batch:
            raise RequestTimeoutError("no message", timeout)
        return batch[0]

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        expires: float | None = None,
        idle_heartbeat: float | None = None,
        **group: Unpack[GroupOptions],
    ) -> Messages:
        """Read continuously: an iterator for ``async for`` that keeps a bounded buffer filled.

        Args:
            max_messages: Messages requested or buffered at most; 500 by default, unbounded with ``max_bytes``.
            max_bytes: Bytes requested or buffered at most.
            threshold_messages: Send the next request when this many or fewer are requested or buffered; half by
                default.
            expires: How long the server holds a request, seconds; 30 by default, and at most half of
                ``priority_timeout`` if the consumer pins clients.
            idle_heartbeat: Seconds; as for `fetch`.
            group, min_pending, min_ack_pending, priority: As for `fetch`.
        """
        return Messages(
            self._puller,
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
            group=self._puller.group(group),
        )

    def __aiter__(self) -> AsyncIterator[Message]:
        """One `messages` reader for all loops over this: messages buffered by an abandoned loop go to the next one."""
        if self._reader is None or self._reader.is_closed:
            self._reader = self.messages()
        return self._reader

    def _source(self, group: GroupOptions) -> Source:
        puller = self._puller
        puller.check_open()
        puller.group(group)
        return PullSource(
            puller.context,
            puller.stream,
            puller.consumer,
            owner=self,
            messages=partial(self.messages, **group),
            emit=puller.emit,
            known=puller.config,
        )

"""Ordered pull consumers: `JetStream.ordered_consumer`. Source: ADR-37 §Ordered Consumers, ADR-17."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Any, Self

from ..._runtime.calls import consumer_info
from ..._runtime.context import Context
from ..._runtime.handle import Opening, State
from ...errors import ConfigError
from ...protocol.consumers.consume import reader_window
from ...protocol.consumers.fetch import default_heartbeat
from ...protocol.consumers.ordered import ordered_pull_config
from ...protocol.events import Event
from ...protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ...protocol.wire.names import check_consumer_name, check_stream_name
from ..message import Message
from ..pull.fetch import Batch, collection
from .fetch import ordered_fetch
from .messages import OrderedMessages, Seat
from .puller import OrderedPuller

__all__ = ["OrderedConsumer", "ordered_consumer"]

_LONGEST_PREFIX = 230  # characters: a serial number follows


class OrderedConsumer:
    """Reads a stream in order, every message exactly once. Made by `JetStream.ordered_consumer`.

    It pulls from a consumer of its own, and recreates it when a delivery is missing, when the server is silent, when
    the consumer was deleted, and after a reconnect. It then resumes after the last message that had arrived, and
    reports the event `ConsumerReset`. It has no acks.

    Only one reader at a time is allowed: `fetch`, for instance, is refused during an iteration (`ConcurrentReadError`).
    """

    def __init__(self, puller: OrderedPuller) -> None:
        self._puller = puller
        self._seat = Seat(puller)
        self._single = self._reader(stays=False)

    @property
    def stream(self) -> str:
        """The stream it reads from."""
        return self._puller.stream

    @property
    def consumer(self) -> str:
        """The name of the current consumer: the prefix and a number, which grows with each reset."""
        return self._puller.consumer

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait to be read."""
        return len(self._puller.front)

    @property
    def position(self) -> int:
        """Every message up to this stream sequence was returned; 0: none was.

        A reader that starts at this number + 1 (``opt_start_seq``), in another process, resumes at the same position.
        """
        return self._puller.tracker.position

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will arrive. Messages that have arrived can still be read after `drain`."""
        return self._puller.state is State.CLOSED

    def __repr__(self) -> str:
        return f"<OrderedConsumer {self.stream}/{self.consumer} {self._puller.state.value}>"

    async def info(self) -> ConsumerInfo:
        """Ask the server for the current consumer's state. Raises `ConsumerNotFoundError` and those of any request."""
        return await consumer_info(self._puller.context, self.stream, self.consumer)

    def events(self) -> AsyncIterator[Event]:
        """Its events: the recent ones, then each new one, until it ends."""
        return self._puller.log.read()

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message. More are requested meanwhile, so that later calls find them buffered.

        Args:
            timeout: Seconds; None waits without limit.

        Raises:
            RequestTimeoutError: No message came in ``timeout`` seconds.
            StreamNotFoundError: The stream was deleted; or another error that ended the reader. Raised after the
                messages that had arrived.
            StatusError: The server refused the request.
            ConcurrentReadError: A fetch is in flight.
            ClosedError: It is closed, or drained and empty.

        Cancelled: no message is lost; the next call gets it.
        """
        reader = self._seat.reader
        return await (self._single if reader is None or reader.is_closed else reader).next(timeout)

    def __aiter__(self) -> OrderedMessages:
        """`messages` with default limits. The loop raises as `next`, and ends when this is closed."""
        return self._reader(stays=True)

    def messages(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        threshold_messages: int | None = None,
        expires: float = 30.0,
        idle_heartbeat: float | None = None,
    ) -> OrderedMessages:
        """Read continuously: an iterator for ``async for`` that keeps a bounded buffer filled.

        Args:
            max_messages: Messages requested or buffered at most; 500 by default, unbounded with ``max_bytes``.
            max_bytes: Bytes requested or buffered at most.
            threshold_messages: Send the next request when this many or fewer are requested or buffered; half by
                default.
            expires: How long the server holds a request, seconds.
            idle_heartbeat: Seconds between the heartbeats of the server, at most half of ``expires``; after two missed
                ones the consumer is recreated. By default a quarter of ``expires``, 5 s at most, or half of it if
                ``expires`` is under 2 s.

        Raises:
            ConfigError: A value the server would refuse.
        """
        if idle_heartbeat is None and isinstance(expires, int | float):
            # Always set: only silence reveals some lost consumers.
            idle_heartbeat = default_heartbeat(expires) or expires / 2
        pull, threshold = reader_window(
            max_messages=max_messages,
            max_bytes=max_bytes,
            threshold_messages=threshold_messages,
            expires=expires,
            idle_heartbeat=idle_heartbeat,
        )
        return OrderedMessages(self._puller, self._seat, pull, threshold)

    def _reader(self, *, stays: bool) -> OrderedMessages:
        return OrderedMessages(self._puller, self._seat, _WINDOW, _THRESHOLD, stays=stays)

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
    ) -> Batch:
        """Request up to ``batch`` messages.

        It ends as `Consumer.fetch` does, at the first of: ``batch`` messages, ``max_bytes`` bytes, ``expires`` seconds,
        no available message with ``no_wait``. Silence, a lost connection or a deleted consumer does not end it: the
        consumer is recreated, and the rest requested within the remaining time.

        Args:
            batch: Messages wanted, 1 or more.
            expires: Seconds, over 0.
            max_bytes: Bytes wanted at most, 1 or more: subject + reply + headers + payload of each message.
            no_wait: Take the messages that are available and return at once.
            idle_heartbeat: Seconds between the heartbeats of the server, at most half of ``expires``. By default a
                quarter of ``expires``, 5 s at most, and none for requests under 2 s.

        Returns:
            The messages in order, ``0 <= len(...) <= batch``; ``ending`` gives the reason for the end. If some came
            before an error, they are returned and ``error`` holds it.

        Raises:
            StreamNotFoundError: The stream was deleted; or another error that ended the reader.
            StatusError: The server refused the request. DisconnectedError: No connection at the end of ``expires``.
            RequestTimeoutError: No answer until then, with ``no_wait``: whether messages are available is unknown.
            ConcurrentReadError: Another fetch is in flight, or it is being iterated.
            ConfigError: A value that the server would refuse. ClosedError: It is closed.

        Cancelled: nothing is lost. Messages that had arrived, or are still sent, go to the next call.

        Wire: ``CONSUMER.MSG.NEXT.<stream>.<consumer>``
        Source: ADR-37 §Fetch
        """
        wanted = collection(
            self._puller.context.connection.now(),
            batch,
            expires=expires,
            max_bytes=max_bytes,
            no_wait=no_wait,
            idle_heartbeat=idle_heartbeat,
        )
        with self._seat.fetch():
            return await ordered_fetch(self._puller, wanted)

    async def close(self) -> None:
        """End now: drop buffered messages, and delete the consumer. Calling it again does nothing.

        A failed deletion is reported as the event `DeleteFailed`; the server then removes the consumer after its
        ``inactive_threshold``.
        """
        await self._puller.stop()

    stop = close

    async def drain(self) -> None:
        """Stop sending requests, and delete the consumer; messages that have arrived can still be read."""
        await self._puller.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


_WINDOW, _THRESHOLD = reader_window(
    max_messages=None, max_bytes=None, threshold_messages=None, expires=30.0, idle_heartbeat=None
)


def ordered_consumer(
    context: Context,
    stream: str,
    config: ConsumerConfig,
    *,
    name_prefix: str | None,
    max_reset_attempts: int | None,
) -> Opening[OrderedConsumer]:
    """See `JetStream.ordered_consumer`."""
    check_stream_name(stream)
    if name_prefix is not None:
        check_consumer_name(name_prefix, "name prefix")
        if len(name_prefix) > _LONGEST_PREFIX:
            raise ConfigError(f"name_prefix has {len(name_prefix)} characters: at most {_LONGEST_PREFIX} fit")
    attempts = max_reset_attempts
    if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
        raise ConfigError(f"max_reset_attempts is {attempts!r}: an integer >= 1 is needed")
    options = {"name_prefix": name_prefix, "max_reset_attempts": max_reset_attempts}
    return Opening(partial(_open, context, stream, ordered_pull_config(config), options))


async def _open(
    context: Context, stream: str, config: ConsumerConfig, options: dict[str, Any]
) -> OrderedConsumer:
    puller = OrderedPuller(context, stream, config, **options)
    await puller.begin()
    return OrderedConsumer(puller)

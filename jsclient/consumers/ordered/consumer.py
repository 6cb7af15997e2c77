"""Ordered pull consumers: `JetStream.ordered_consumer`. Source: ADR-37 §Ordered Consumers, ADR-17."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Any, Self

from ..._runtime.awaitable import Opening
from ..._runtime.calls import consumer_info
from ..._runtime.context import Context
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
from .puller import OrderedPuller, State

__all__ = ["OrderedConsumer", "ordered_consumer"]

_LONGEST_PREFIX = 230  # characters: a serial number follows


class OrderedConsumer:
    """Reads a stream in order: every message once, whatever happens. Made by `JetStream.ordered_consumer`.

    It pulls from a consumer of its own, which it makes anew when it must: when a delivery is missing, when the server
    is silent, when the consumer is gone, after a reconnect. That is told as the event `ConsumerReset`; it goes on
    behind the last message that had arrived. There are no acks.

    One at a time may read, so `fetch` is refused while it is iterated, and so on (`ConcurrentReadError`).
    """

    def __init__(self, puller: OrderedPuller) -> None:
        self._puller = puller
        self._seat = Seat(puller)
        self._single = self._reader(stays=False)

    @property
    def stream(self) -> str:
        """Its stream."""
        return self._puller.stream

    @property
    def consumer(self) -> str:
        """The name of the present consumer: the prefix and a number, which grows with each reset."""
        return self._puller.consumer

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait to be taken."""
        return len(self._puller.front)

    @property
    def position(self) -> int:
        """Everything up to this stream sequence was handed out; 0: nothing was.

        A reader that starts at this number + 1 (``opt_start_seq``), in another process, goes on where this one is.
        """
        return self._puller.tracker.position

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will arrive. What has arrived can still be taken after `drain`."""
        return self._puller.state is State.CLOSED

    def __repr__(self) -> str:
        return f"<OrderedConsumer {self.stream}/{self.consumer} {self._puller.state.value}>"

    async def info(self) -> ConsumerInfo:
        """Ask the server for the present consumer's state. Raises `ConsumerNotFoundError` and those of any request."""
        return await consumer_info(self._puller.context, self.stream, self.consumer)

    def events(self) -> AsyncIterator[Event]:
        """Its events: those of late that were kept, then each new one, until it ends."""
        return self._puller.log.read()

    # --- reading ---------------------------------------------------------------------------------------------

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message. More are asked for meanwhile, so that they wait here when they are wanted.

        Args:
            timeout: Seconds; None waits as long as it takes.

        Raises:
            RequestTimeoutError: No message came in ``timeout`` seconds.
            StreamNotFoundError: The stream is gone; so is what else it was given up for. What had arrived came first.
            StatusError: The server refused what was asked for.
            ConcurrentReadError: A fetch is under way.
            ClosedError: It is closed, or drained and empty.

        Cancelled: no message is lost; the next call gets it.
        """
        reader = self._seat.reader
        return await (self._single if reader is None or reader.is_closed else reader).next(timeout)

    def __aiter__(self) -> OrderedMessages:
        """`messages`, with the usual bounds. The loop raises as `next`, and ends when this is closed."""
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
        """Read on and on: a reader for ``async for`` that keeps a bounded buffer filled.

        Args:
            max_messages: Messages asked for or waiting at most; 500 by default, not bounded with ``max_bytes``.
            max_bytes: Bytes asked for or waiting at most.
            threshold_messages: Ask again when this many or fewer are asked for or waiting; half by default.
            expires: How long the server holds a request, seconds.
            idle_heartbeat: Seconds between the server's signs of life, at most half of ``expires``; two missed make a
                new consumer. By default a quarter of ``expires``, 5 s at most; a half where that is under 1 s.

        Raises:
            ConfigError: A value the server would refuse.
        """
        if idle_heartbeat is None and isinstance(expires, int | float):
            # Never without: silence is how a consumer that is gone is noticed in the end.
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
        """The next ``batch`` messages, or those that come in time.

        It ends as `Consumer.fetch` does, at the first of: ``batch`` messages, ``max_bytes`` bytes, ``expires`` seconds,
        nothing there with ``no_wait``. What ends another fetch (silence, a lost connection, a deleted consumer) makes a
        new consumer here, which is asked for the rest within the time that is left.

        Args:
            batch: Messages wanted, 1 or more.
            expires: Seconds, over 0.
            max_bytes: Bytes wanted at most, 1 or more: subject + reply + headers + payload of each message.
            no_wait: Take what is there and return at once.
            idle_heartbeat: Seconds between the server's signs of life, at most half of ``expires``. By default a
                quarter of ``expires``, 5 s at most, and none for requests under 2 s.

        Returns:
            The messages in order, ``0 <= len(...) <= batch``; ``ending`` says why there are no more. Where some came
            before an error, they are returned and ``error`` tells it.

        Raises:
            StreamNotFoundError: The stream is gone; and what else it was given up for.
            StatusError: The server refused the request. DisconnectedError: There is no connection at the end of
                ``expires``. RequestTimeoutError: No answer until then, with ``no_wait``: whether anything is there is
                unknown.
            ConcurrentReadError: Another fetch is under way, or it is iterated.
            ConfigError: A value the server would refuse. ClosedError: It is closed.

        Cancelled: nothing is lost. What had arrived, and what the server still sends, goes to the next call.

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

    # --- ending ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End now: drop what waits, and delete the consumer. Calling it again does nothing.

        Trouble with the deletion is told as the event `DeleteFailed`; the server removes the consumer by itself after
        ``inactive_threshold``.
        """
        await self._puller.stop()

    close = stop

    async def drain(self) -> None:
        """Ask for nothing more, and delete the consumer; what has arrived can still be taken, then it is over."""
        await self._puller.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


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
        raise ConfigError(f"max_reset_attempts is {attempts!r}: it must be a whole number of 1 or more")
    options = {"name_prefix": name_prefix, "max_reset_attempts": max_reset_attempts}
    return Opening(partial(_open, context, stream, ordered_pull_config(config), options))


async def _open(
    context: Context, stream: str, config: ConsumerConfig, options: dict[str, Any]
) -> OrderedConsumer:
    puller = OrderedPuller(context, stream, config, **options)
    await puller.begin()
    return OrderedConsumer(puller)

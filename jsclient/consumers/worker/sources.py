"""The sources of a worker's messages: a pull reader, opened and closed as needed, or a push subscription."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ..._runtime.calls import consumer_info, is_gone
from ..._runtime.context import Context
from ...errors import (
    ClosedError,
    ConsumerDeletedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from ...protocol.consumers.worker.work_rules import WorkRules
from ...protocol.events import ConsumerDeleted, ErrorRaised, Event
from ...protocol.models.consumer import ConsumerConfig
from ..message import Message

if TYPE_CHECKING:
    from ..pull.messages import Messages
    from ..stall_watch import StallWatch

__all__ = ["PullSource", "PushSource", "Source"]

_EXPIRES = 30.0  # seconds that the server may keep a pull request open by default


class Source(abc.ABC):
    """A source of messages for a worker. ``emit`` reports an event to the user."""

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        *,
        emit: Callable[[Event], None],
        known: ConsumerConfig | None,
        watch: StallWatch,
    ) -> None:
        self.stream: str = stream
        self.consumer: str = consumer
        self.emit = emit
        self.context: Context = context
        self._known = known
        self.watch: StallWatch = watch

    @property
    def pending(self) -> int:
        """The number of messages that have arrived and were not taken yet."""
        return 0

    @property
    def drained(self) -> bool:
        """Whether the source was drained and not closed, so messages already taken must still be handled."""
        return False

    async def config(self) -> ConsumerConfig:
        """Request the consumer's configuration from the server."""
        try:
            return (await consumer_info(self.context, self.stream, self.consumer)).config
        except (PermissionDeniedError, RequestTimeoutError, NoRespondersError):
            if self._known is None:
                raise
            return self._known  # the user may have only the permission to read

    def open_source(self, rules: WorkRules) -> None:  # noqa: B027  optional
        """Prepare for reading. Called when the worker starts."""

    @abc.abstractmethod
    async def next(self) -> Message:
        """Wait for the next message.

        Raises `ClosedError` at the end, and another error if the source cannot continue. Cancelled: no message is lost.
        """

    @abc.abstractmethod
    def take_available(self, most: int) -> list[Message]:
        """Take messages that have arrived, up to ``most``, without waiting. Only `next` raises errors."""

    def resize(self, pull: int) -> None:  # noqa: B027  optional
        """Request and buffer up to ``pull`` messages from now on."""

    @abc.abstractmethod
    async def hand_over(self, most: int) -> list[Message]:
        """Hand over buffered messages when the worker is full, because it keeps them alive. Pauses if possible."""

    @abc.abstractmethod
    async def end_source(self, timeout: float) -> list[Message]:
        """End the source. Return the messages that have arrived."""

    def deleted(self) -> Coroutine[Any, Any, JetStreamError] | None:
        """Return a coroutine that ends when the consumer was deleted, or None if `next` raises that error."""
        return None

    def over(self) -> asyncio.Task[None] | None:
        """Finish after the worker has handled or returned its messages. Return a task that the caller must await."""
        return None

    def report_error(self, error: JetStreamError) -> None:
        """Report an error that does not end the worker."""
        self.emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))


class PullSource(Source):
    """Pulls from a consumer, a few messages at a time."""

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        *,
        messages: Callable[..., Messages],
        emit: Callable[[Event], None],
        known: ConsumerConfig | None,
        watch: StallWatch,
    ) -> None:
        super().__init__(context, stream, consumer, emit=emit, known=known, watch=watch)
        self._messages = messages
        self._limits: dict[str, Any] = {}
        self._reader: Messages | None = None
        self._error: JetStreamError | None = None

    @property
    def pending(self) -> int:
        return 0 if self._reader is None else self._reader.pending

    async def config(self) -> ConsumerConfig:
        config = await super().config()
        if config.max_expires and config.max_expires < _EXPIRES:
            self._limits["expires"] = config.max_expires
        if config.max_bytes and config.max_bytes > 0:
            self._limits["max_bytes"] = config.max_bytes
        return config

    def open_source(self, rules: WorkRules) -> None:
        self._limits["max_messages"] = rules.pull

    async def next(self) -> Message:
        if self._error is not None:
            raise self._error
        if self._reader is None:
            self._reader = self._messages(**self._limits)
        return await self._reader.next()

    def take_available(self, most: int) -> list[Message]:
        return [] if self._reader is None else self._reader.take_arrived(most)

    def resize(self, pull: int) -> None:
        self._limits["max_messages"] = pull
        if self._reader is not None:
            self._reader.resize(pull)

    async def hand_over(self, most: int) -> list[Message]:
        """End the reader, so that no message waits without a keep-alive. The next call of `next` opens a new reader."""
        reader, self._reader = self._reader, None
        held: list[Message] = []
        if reader is None:
            return held
        await reader.drain()
        try:
            while True:
                held.append(await reader.next())
        except ClosedError:
            pass
        except JetStreamError as error:
            self._error = error
        return held

    async def end_source(self, timeout: float) -> list[Message]:
        return await self.hand_over(0)


class Pushed(Protocol):
    """The part of a `Subscription` that a worker uses."""

    @property
    def stream(self) -> str: ...

    @property
    def consumer(self) -> str: ...

    @property
    def pending(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    async def next(self, timeout: float | None = None) -> Message: ...

    def take_arrived(self, most: int) -> list[Message]: ...

    def events(self) -> AsyncIterator[Event]: ...


class PushSource(Source):
    """Takes messages from a push subscription, which ends with the worker because the server keeps delivering to it."""

    def __init__(
        self,
        context: Context,
        subscription: Pushed,
        *,
        emit: Callable[[Event], None],
        known: ConsumerConfig | None,
        watch: StallWatch,
        receive_remaining: Callable[[float], Awaitable[None]],
        over: Callable[[], asyncio.Task[None] | None],
    ) -> None:
        """``receive_remaining`` ends the subscription within seconds. ``over`` is called after the last message."""
        super().__init__(
            context, subscription.stream, subscription.consumer, emit=emit, known=known, watch=watch
        )
        self._subscription = subscription
        self._receive_remaining, self._over = receive_remaining, over

    @property
    def pending(self) -> int:
        return self._subscription.pending

    @property
    def drained(self) -> bool:
        return not self._subscription.is_closed

    async def next(self) -> Message:
        while True:
            try:
                return await self._subscription.next()
            except (ClosedError, ConsumerDeletedError):
                raise
            except JetStreamError as error:  # an error status, after which the subscription continues
                self.report_error(error)

    def take_available(self, most: int) -> list[Message]:
        return self._subscription.take_arrived(most)

    async def hand_over(self, most: int) -> list[Message]:
        """Take the messages that the subscription has buffered. More may arrive, up to ``max_ack_pending``."""
        held: list[Message] = []
        try:
            while len(held) < min(most, self._subscription.pending + len(held)):
                held.append(await self._subscription.next(timeout=0))
        except JetStreamError as error:
            if not isinstance(error, ClosedError | RequestTimeoutError):
                self.report_error(error)
        return held

    async def end_source(self, timeout: float) -> list[Message]:
        held: list[Message] = []
        if self._subscription.is_closed:
            return held
        await self._receive_remaining(timeout)
        try:
            while True:
                held.append(await self.next())
        except JetStreamError:
            return held

    def deleted(self) -> Coroutine[Any, Any, JetStreamError]:
        return self._until_deleted()

    async def _until_deleted(self) -> JetStreamError:
        async for event in self._subscription.events():
            if isinstance(event, ConsumerDeleted) and await is_gone(self.context, self.stream, self.consumer):
                return ConsumerDeletedError(409, "Consumer Deleted", False, self.stream, self.consumer)
        await asyncio.Event().wait()  # the subscription has ended: `next` raises
        raise AssertionError

    def over(self) -> asyncio.Task[None] | None:
        return self._over()

"""The sources of messages for a worker, which hide the differences between pull consumers and push subscriptions."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

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
    from ..push.subscription import Subscription
    from ..stall_watch import StallWatch

__all__ = ["PullSource", "PushSource", "Source"]

_EXPIRES = 30.0  # default duration of pull requests, in seconds


@dataclass(eq=False)
class Source(abc.ABC):
    """A source of messages for a worker.

    Attributes:
        known: The last known configuration of the consumer, if any.
        over: Called after the worker has handled or returned all messages. It returns a task to await, or None.
    """

    context: Context
    stream: str
    consumer: str
    _: KW_ONLY
    emit: Callable[[Event], None]
    known: ConsumerConfig | None
    watch: StallWatch
    over: Callable[[], asyncio.Task[None] | None] = lambda: None

    @property
    def pending(self) -> int:
        """Number of messages received but not taken yet."""
        return 0

    @property
    def drained(self) -> bool:
        """True if the source ended with a drain, so that the worker must handle the messages that it has taken."""
        return False

    async def config(self) -> ConsumerConfig:
        """Request the configuration of the consumer from the server.

        If the user lacks the permission, or the server does not answer, the last known configuration is returned.
        """
        try:
            return (await consumer_info(self.context, self.stream, self.consumer)).config
        except (PermissionDeniedError, RequestTimeoutError, NoRespondersError):
            if self.known is None:
                raise
            return self.known  # probably still correct, and a worker needs only the permission to read

    def open_source(self, rules: WorkRules) -> None:  # noqa: B027  overriding it is optional
        """Prepare for reading, when the worker starts. Does nothing by default."""

    @abc.abstractmethod
    async def next(self) -> Message:
        """Wait for the next message and return it. If the call is cancelled, no message is lost.

        Raises `ClosedError` after the last message, or another error if the source cannot continue.
        """

    @abc.abstractmethod
    def take_available(self, most: int) -> list[Message]:
        """Return up to ``most`` messages already received, without waiting. Errors are raised only by `next`."""

    def resize(self, pull: int) -> None:  # noqa: B027  overriding it is optional
        """Change the maximum number of messages requested or buffered. Does nothing by default."""

    @abc.abstractmethod
    async def hand_over(self, most: int) -> list[Message]:
        """Return up to ``most`` messages from the buffer of the source, although the worker has no capacity.

        Unlike the source, the worker can report progress for these messages. If possible, the source stops receiving.
        """

    @abc.abstractmethod
    async def end_source(self, timeout: float) -> list[Message]:
        """End the source within ``timeout`` seconds. Return the received messages that were not taken."""

    def deleted(self) -> Coroutine[Any, Any, JetStreamError] | None:
        """Return a coroutine that returns an error once the consumer was deleted.

        Returns None if no coroutine is needed, because `next` raises the error.
        """
        return None

    def report_error(self, error: JetStreamError) -> None:
        """Report an error as an event, because it doesn't end the worker."""
        self.emit(ErrorRaised(stream=self.stream, consumer=self.consumer, error=error))


@dataclass(eq=False, kw_only=True)
class PullSource(Source):
    """Reads from a pull consumer, with a continuous reader that is closed while the worker has no capacity."""

    messages: Callable[..., Messages]
    _limits: dict[str, Any] = field(default_factory=dict, init=False)
    _reader: Messages | None = field(default=None, init=False)
    _error: JetStreamError | None = field(default=None, init=False)

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
            self._reader = self.messages(**self._limits)
        return await self._reader.next()

    def take_available(self, most: int) -> list[Message]:
        return [] if self._reader is None else self._reader.take_arrived(most)

    def resize(self, pull: int) -> None:
        self._limits["max_messages"] = pull
        if self._reader is not None:
            self._reader.resize(pull)

    async def hand_over(self, most: int) -> list[Message]:
        """Drain the reader and return all of its messages. The next call of `next` opens a new reader."""
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


@dataclass(eq=False, kw_only=True)
class PushSource(Source):
    """Takes messages from a push subscription.

    The subscription ends with the worker, because otherwise the server would continue to deliver messages to it.

    Attributes:
        receive_remaining: Ends the subscription within a number of seconds, after messages in flight have arrived.
    """

    subscription: Subscription
    receive_remaining: Callable[[float], Awaitable[None]]

    @property
    def pending(self) -> int:
        return self.subscription.pending

    @property
    def drained(self) -> bool:
        return not self.subscription.is_closed

    async def next(self) -> Message:
        while True:
            try:
                return await self.subscription.next()
            except (ClosedError, ConsumerDeletedError):
                raise
            except JetStreamError as error:  # the subscription continues after an error status
                self.report_error(error)

    def take_available(self, most: int) -> list[Message]:
        return self.subscription.take_arrived(most)

    async def hand_over(self, most: int) -> list[Message]:
        """Take messages from the buffer of the subscription, which can't be paused.

        The server continues to deliver messages until ``max_ack_pending`` messages are not acked.
        """
        held: list[Message] = []
        try:
            while len(held) < min(most, self.subscription.pending + len(held)):
                held.append(await self.subscription.next(timeout=0))
        except JetStreamError as error:
            if not isinstance(error, ClosedError | RequestTimeoutError):
                self.report_error(error)
        return held

    async def end_source(self, timeout: float) -> list[Message]:
        held: list[Message] = []
        if self.subscription.is_closed:
            return held
        await self.receive_remaining(timeout)
        try:
            while True:
                held.append(await self.next())
        except JetStreamError:
            return held

    async def deleted(self) -> JetStreamError:
        async for event in self.subscription.events():
            if isinstance(event, ConsumerDeleted) and await is_gone(self.context, self.stream, self.consumer):
                return ConsumerDeletedError(409, "Consumer Deleted", False, self.stream, self.consumer)
        await asyncio.Event().wait()  # the subscription has ended for another reason, which `next` raises
        raise AssertionError

"""Pull subscriptions: `JetStream.pull_subscribe`. Source: ADR-15."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from .._runtime.calls import consumer_info
from .._runtime.context import Context
from .._runtime.event_hub import EventLog
from .._runtime.handle import Handle
from ..errors import JetStreamError
from ..protocol.consumers.subscribe import Binding
from ..protocol.events import DeleteFailed, Event
from ..protocol.models.consumer import ConsumerInfo
from .ending import delete_created, warn_of_deletion
from .pull.fetch import PullReading
from .pull.puller import Puller

__all__ = ["PullSubscription"]


class PullSubscription(PullReading, Handle):
    """A subscription that requests its messages: `fetch`, `next`, `messages`, or `run` with a handler.

    Made by `JetStream.pull_subscribe`. Any number of subscriptions, in any number of processes, may share a durable
    consumer: each message goes to one of them.
    """

    def __init__(self, context: Context, binding: Binding, *, delete_on_close: bool | None) -> None:
        self._context = context
        self._binding = binding
        self._deletes = delete_on_close is not False and binding.created
        self._chosen = delete_on_close is True
        self._log = EventLog()
        self._puller = Puller(
            context, binding.stream, binding.consumer, binding.config, listener=self._log.add
        )
        context.open.add(self)
        warn_of_deletion(binding, self._puller.emit, delete_on_close=delete_on_close)

    @property
    def stream(self) -> str:
        """The stream it reads from."""
        return self._binding.stream

    @property
    def consumer(self) -> str:
        """The consumer it reads through."""
        return self._binding.consumer

    @property
    def created(self) -> bool:
        """Whether this subscription created its consumer; by default it deletes it at its end."""
        return self._binding.created

    @property
    def pending(self) -> int:
        """Messages that arrived for cancelled calls; the next call gets them."""
        return len(self._puller.leftover)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._puller.is_closed

    def permissions(self, *, dead_letter: str | None = None, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """The permissions of a user that reads from this consumer, in the form of the server's configuration.

        The user binds to the existing consumer, with the arguments ``stream`` and ``consumer``, and may neither create
        nor delete one. Like all permissions to send a request, these let a user store the answer elsewhere:
        see "What each right lets a user do" in the documentation.

        Args:
            dead_letter: That of `run`, for a worker.
            inbox_prefix: That of the user's connection. With one of its own, no other user can read its messages.

        Raises:
            InvalidNameError: ``dead_letter`` or ``inbox_prefix`` is not a subject.
        """
        from ..protocol.consumers.rights import pull_rights

        return pull_rights(
            self._context.api,
            self.stream,
            self.consumer,
            self._binding.config,
            dead_letter=dead_letter,
            inbox_prefix=inbox_prefix,
        )

    def __repr__(self) -> str:
        return f"<PullSubscription {self.stream}/{self.consumer}>"

    async def consumer_info(self, *, timeout: float | None = None) -> ConsumerInfo:
        """Ask the server for the consumer's current state.

        Args:
            timeout: Seconds, for a health check for instance; by default the timeout of `connect`.

        Raises:
            ConsumerNotFoundError: It was deleted.
            RequestTimeoutError: No answer within the timeout. And those of any request.
        """
        info = await consumer_info(self._context, self.stream, self.consumer, timeout=timeout)
        self._puller.config = info.config
        return info

    def events(self) -> AsyncIterator[Event]:
        """The events of this subscription, until it ends."""
        return self._log.read()

    async def unsubscribe(self) -> None:
        """Stop, and delete the consumer if this subscription created it. Calling it again does nothing.

        If the consumer stays, messages that arrived for cancelled calls are returned to the server (nak).

        Raises:
            ApiError, RequestTimeoutError, DisconnectedError: The consumer could not be deleted; the subscription is
                closed anyway.
        """
        try:
            await self._end()
        finally:
            self._log.close()

    close = unsubscribe

    async def drain(self) -> None:
        """As `unsubscribe`, but a failed deletion is reported as the event `DeleteFailed`.

        A worker (`run`) is stopped first, and waited for.
        """
        await self._end_workers()
        try:
            await self._end()
        except JetStreamError as error:
            self._puller.emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))
        self._log.close()

    async def _end(self) -> None:
        deletes, self._deletes = self._deletes, False
        await self._puller.close(give_back=not deletes)
        self._context.open.discard(self)
        if deletes:
            await delete_created(
                self._context, self._binding, self.consumer, self._puller.emit, chosen=self._chosen
            )

    async def abandon(self) -> None:
        """The connection is closing: end, and delete an ephemeral consumer created here."""
        self._deletes = (
            self._deletes and not self._binding.is_durable and self._context.connection.is_connected
        )
        await self.drain()

"""Pull subscriptions: `JetStream.pull_subscribe`. Source: ADR-15."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from ..._runtime.calls import consumer_info
from ..._runtime.context import Context
from ..._runtime.event_hub import EventLog
from ..._runtime.handle import Handle
from ...errors import JetStreamError
from ...protocol.consumers.subscribe import Binding
from ...protocol.events import DeleteFailed, Event
from ...protocol.models.consumer import ConsumerInfo
from ..ending import delete_created, warn_of_deletion
from .fetch import PullReading
from .puller import Puller

if TYPE_CHECKING:
    from .messages import Messages

__all__ = ["PullSubscription"]


class PullSubscription(PullReading, Handle):
    """A subscription that requests messages from a pull consumer. Returned by `JetStream.pull_subscribe`.

    There are three ways of reading messages:

    * `fetch` and `next` return a batch of messages, or one message.
    * `messages` and ``async for`` read continuously.
    * `run` calls a handler with each message.

    Several subscriptions, even in different processes, may share a durable consumer. The server then delivers each
    message to only one of them.
    """

    def __init__(self, context: Context, binding: Binding, *, delete_on_close: bool | None) -> None:
        self._context = context
        self._binding = binding
        self._deletes = delete_on_close is not False and binding.created
        self._chosen = delete_on_close is True
        self._log = EventLog()
        self._puller = Puller(
            context, binding.stream, binding.consumer, binding.config, listener=self._log.add_event
        )
        context.open.add(self)
        warn_of_deletion(binding, self._puller.emit, delete_on_close=delete_on_close)

    @property
    def stream(self) -> str:
        """Name of the stream that the subscription reads."""
        return self._binding.stream

    @property
    def consumer(self) -> str:
        """Name of the consumer. The server generates it for an ephemeral consumer."""
        return self._binding.consumer

    @property
    def created(self) -> bool:
        """Whether this subscription created its consumer.

        If so, the consumer is deleted when the subscription ends, unless ``delete_on_close=False`` was passed.
        """
        return self._binding.created

    @property
    def pending(self) -> int:
        """Number of messages that arrived for cancelled calls of `fetch` or `next`. The next call returns them."""
        return len(self._puller.leftover)

    @property
    def is_closed(self) -> bool:
        """Whether the subscription or its connection is closed, so no more messages can be requested."""
        return self._puller.is_closed

    @property
    def open_loops(self) -> list[Messages]:
        """The iterators of this subscription that are still open. For internal use."""
        from .messages import Messages

        return [reader for reader in self._puller.readers if isinstance(reader, Messages)]

    def permissions(self, *, dead_letter: str | None = None, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a NATS user needs to read from this consumer.

        The result can be pasted into the server's configuration. The user must subscribe with the arguments ``stream``
        and ``consumer``, because these permissions don't allow creating or deleting consumers.

        Like all permissions to send requests, these permissions let the user choose the reply subject, so the user can
        have replies stored in a stream. See "What each right lets a user do" in the documentation.

        Args:
            dead_letter: The argument ``dead_letter`` of `run`, if the user runs a worker with it. Defaults to no dead
                letters.
            inbox_prefix: The inbox prefix of the user's connection. Give each user a different prefix, so that no user
                can read the messages of another user.

        Returns:
            A dict with the subjects that the user may publish and subscribe to.

        Raises:
            InvalidNameError: ``dead_letter`` or ``inbox_prefix`` isn't a valid subject.
        """
        from ...protocol.consumers.rights import pull_rights

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
        """Request the current state and configuration of the consumer from the server.

        Args:
            timeout: How long to wait for the reply, in seconds. Defaults to the ``timeout`` passed to `connect`.
                Consider a shorter timeout for health checks.

        Raises:
            ConsumerNotFoundError: The consumer was deleted.
            StreamNotFoundError: The stream was deleted.
            RequestTimeoutError: The server didn't answer within the timeout.
            PermissionDeniedError: The user isn't allowed to request the state of the consumer.
            ClosedError: The connection is closed.
        """
        info = await consumer_info(self._context, self.stream, self.consumer, timeout=timeout)
        self._puller.config = info.config
        return info

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the recent events of this subscription, then over new events until the subscription ends.

        ::

            async for event in subscription.events():
                print(event)

        Use `events` to watch one subscription. The ``on_event`` function of the connection receives the events of all
        subscriptions.
        """
        return self._log.read_events()

    async def unsubscribe(self) -> None:
        """End the subscription, and delete the consumer if this subscription created the consumer (see `created`).

        If the consumer isn't deleted, the messages that nobody has read yet are nak'ed, so the server delivers them
        again. These are the messages counted by `pending`, and those in the buffers of iterators. Calling `unsubscribe`
        again has no effect. If the call is cancelled, the consumer may remain. Call `unsubscribe` again to delete the
        consumer.

        Raises:
            ApiError: The server refused to delete the consumer. The subscription is closed anyway.
            RequestTimeoutError: The server didn't confirm that it deleted the consumer. The subscription is closed
                anyway.
            DisconnectedError: There is no connection, or it was lost. The subscription is closed anyway, and the
                consumer may still exist.
        """
        try:
            await self._end_subscription()
        finally:
            self._log.close()

    close = unsubscribe

    async def drain(self) -> None:
        """Stop the workers of this subscription, wait until they have ended, then unsubscribe.

        Use it to end a subscription gracefully, because messages already being handled are finished. Unlike
        `unsubscribe`, `drain` raises no error if the consumer can't be deleted. It emits the event `DeleteFailed`
        instead.
        """
        await self._end_workers()
        try:
            await self._end_subscription()
        except JetStreamError as error:
            self._puller.emit(DeleteFailed(stream=self.stream, consumer=self.consumer, error=error))
        self._log.close()

    async def _end_subscription(self) -> None:
        await self._puller.close(give_back=not self._deletes)
        self._context.open.discard(self)
        if self._deletes:  # still true if an earlier call was cancelled before it deleted the consumer
            self._deletes = False
            await delete_created(
                self._context, self._binding, self.consumer, self._puller.emit, chosen=self._chosen
            )

    async def abandon(self) -> None:
        """End the subscription because the connection is closing. For internal use.

        A durable consumer is kept even if this subscription created it. An ephemeral consumer is deleted.
        """
        self._deletes = (
            self._deletes and not self._binding.is_durable and self._context.connection.is_connected
        )
        await self.drain()

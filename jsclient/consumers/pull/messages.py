"""The iterator that ``messages()`` returns, which requests messages ahead. Source: ADR-37 §Consume."""

from __future__ import annotations

import asyncio
from weakref import ref

from ..._runtime.calls import consumer_info, is_missing, nak_all
from ..._runtime.connection.connection import Lifecycle
from ..._runtime.connection.speedups import chosen
from ..._runtime.handle import ReadHandle, State
from ..._runtime.tasks import Timer
from ...errors import ClosedError, JetStreamError, PermissionDeniedError, RequestTimeoutError
from ...protocol.consumers.ack import AckState
from ...protocol.consumers.consume import Command, ConsumeTracker, NotAnswered, SendPull
from ...protocol.consumers.fetch import Pull, encode_pull
from ...protocol.consumers.priority import Pin
from ...protocol.consumers.push import Emit
from ...protocol.events import ErrorRaised
from ...protocol.wire.frames import Frame
from ..message import DeliveredMessage, Message, ack_state
from .puller import Puller, ReaderInbox

__all__ = ["Messages"]

_FLUSH = 1.0  # how long `close` waits for messages in flight, in seconds


class Messages(ReadHandle[Message]):
    """An asynchronous iterator over the messages of a consumer.

    Returned by `Consumer.messages` and `PullSubscription.messages`::

        async with consumer.messages(max_messages=100) as messages:
            async for message in messages:
                ...
                await message.ack()

    The first pull request is sent when you read the first message. The iteration continues after reconnects, leader
    changes and lost requests. If the consumer is deleted or the server refuses the requests, it ends with an error.
    Problems that you don't need to handle are reported as events.

    Leave the block or call `close` to end the iteration. The server then delivers the unread messages again.
    """

    def __init__(self, puller: Puller, pull: Pull, threshold: int, pin: Pin | None) -> None:
        self._puller = puller
        self._context = puller.context
        self._channel = puller.channel
        self._tracker = ConsumeTracker(
            puller.stream, puller.consumer, pull, threshold, pin, runs=chosen().runs
        )
        self._front = self._tracker.front
        self._inbox = ReaderInbox(puller.context.connection, self._receive_frames)
        self._timer: Timer | None = None
        self._state = State.NEW
        # The task that receives the messages in flight after the iteration has ended.
        self._flush: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._newest: Message | None = None  # the message that was returned last
        self._handed: ref[AckState] | None = None  # ack state of that message, set by `has_unacked`

    @property
    def pending(self) -> int:
        """Number of messages that have been received and are waiting to be read."""
        return len(self._front)

    async def next(self, timeout: float | None = None) -> Message:
        """Wait for the next message and return it.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No message arrived within ``timeout`` seconds. You may call `next` again.
            ConsumerDeletedError: The consumer was deleted. Like all errors that end the iteration, this is raised only
                after the messages in the buffer have been returned, and then by every further call.
            ConsumerNotFoundError: The consumer doesn't exist.
            StatusError: The server refused a request.
            ClosedError: The iterator was closed, or it was drained and all messages have been read.

        If the call is cancelled, no message is lost, because the next call returns it.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        if self._state is State.NEW:
            await self._open_reader()
        while True:
            message = self._take()
            if message is not None:
                self._newest = message
                return message
            if self._tracker.error is not None:
                error = self._tracker.error
                await self.close()
                raise error
            if self._state is State.CLOSED or (self._state is State.DRAINING and not self._flushing):
                await self.close()
                raise ClosedError("the reader is closed")
            self._puller.watch.asked()
            if not await self._puller.changed.wait_until(deadline):
                # Look once more. A message may have arrived in the event loop iteration in which the timeout expired.
                message = self._take()
                if message is not None:
                    self._newest = message
                    return message
                raise RequestTimeoutError("no message", timeout, self._context.connection.problem)

    async def __anext__(self) -> Message:
        # This isn't an async generator, because cancelling a generator would end it and lose the buffered messages.
        front = self._front
        if len(front) > self._tracker.low and front:
            message = self._newest = DeliveredMessage(front.popleft(), self._channel)
            return message
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def _take(self) -> Message | None:
        if self._puller.leftover and self._state is State.OPEN:
            return DeliveredMessage(self._puller.leftover.popleft(), self._channel)
        if not self._front:
            return None
        frame, commands = self._tracker.take_frame()
        if commands and self._state is State.OPEN:
            self._carry_out(commands)
            self._arm()
        return DeliveredMessage(frame, self._channel)

    def take_arrived(self, most: int) -> list[Message]:
        """Return up to ``most`` messages that have already arrived, without waiting. For internal use."""
        if self._puller.leftover and self._state is State.OPEN:
            return []  # keep the order: `next` returns the leftover messages before it reads the buffer
        frames, commands = self._tracker.take_many(most)
        if commands and self._state is State.OPEN:
            self._carry_out(commands)
            self._arm()
        return [DeliveredMessage(frame, self._channel) for frame in frames]

    @property
    def has_unacked(self) -> bool:
        """Whether the application still references the last message but hasn't acknowledged it. For internal use."""
        if self._newest is not None:
            state, self._newest = ack_state(self._newest), None
            self._handed = None if state is None else ref(state)
            del state
        handed = None if self._handed is None else self._handed()
        return handed is not None and not handed.acked

    def resize(self, max_messages: int) -> None:
        """Change the maximum number of messages requested or buffered. For internal use by workers."""
        self._tracker.resize(max_messages)
        if self._state is State.OPEN:
            self._carry_out(self._tracker.next_requests())
            self._arm()

    async def _open_reader(self) -> None:
        async with self._starting:
            if self._state is not State.NEW:
                return
            self._puller.in_hand.check_may_pull()
            if self._puller.is_closed:
                raise ClosedError("the subscription is closed: subscribe again, on an open connection")
            connection = self._context.connection
            await self._inbox.open_inbox()
            if self._state is not State.NEW:  # the reader was closed in the meantime
                await self._inbox.close()
                return
            self._state = State.OPEN
            self._timer = Timer(self._tick_reader)
            self._context.attach(self, self._renew_requests, self._end_denied)
            self._puller.readers.add(self)
            if connection.is_connected:
                self._connected()

    def _connected(self) -> None:
        self._carry_out(self._tracker.connected(self._context.connection.now()))
        self._arm()

    def _end_denied(self, error: PermissionDeniedError) -> None:
        if self._puller.is_denied(error, self._inbox.inbox):
            self._tracker.fail(error)
            self._puller.changed.set()

    def _renew_requests(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            if self._inbox.inbox is not None:
                self._connected()
        elif what is Lifecycle.DISCONNECTED:
            self._tracker.disconnected()
            self._context.tasks.start(self._change_inbox(), "change the inbox of a reader")
        else:
            self._state = State.CLOSED
        self._arm()
        self._puller.changed.set()

    async def _change_inbox(self) -> None:
        """Replace the inbox after the connection was lost.

        The server serves the old requests as long as the client is subscribed to their inbox. Without a new inbox, it
        would deliver messages for the old requests as well as for the new ones.
        """
        async with self._starting:
            if self._state is not State.OPEN:
                return
            await self._inbox.close()
            await self._inbox.open_inbox()
            if self._state is not State.OPEN:  # the reader was closed or drained in the meantime
                await self._inbox.close()
            elif self._context.connection.is_connected:
                self._connected()

    def _receive_frames(self, frames: list[Frame]) -> None:
        if self._state is State.CLOSED and not self._flushing:
            return
        before = len(self._front)
        commands = self._tracker.receive(frames, self._context.connection.now())
        self._puller.arrived += len(self._front) - before
        if self._state is State.OPEN:
            commands += self._tracker.next_requests()
        self._carry_out(commands)
        self._arm()
        self._puller.changed.set()

    def _tick_reader(self) -> None:
        commands = self._tracker.tick(self._context.connection.now())
        if self._state is State.OPEN:
            commands += self._tracker.next_requests()
        self._carry_out(commands)
        self._arm()

    def _carry_out(self, commands: list[Command]) -> None:
        puller = self._puller
        for command in commands:
            if isinstance(command, SendPull):
                subject = self._context.api.consumer_next(puller.stream, puller.consumer)
                try:
                    self._context.connection.send(
                        subject, encode_pull(command.pull), reply=self._inbox.reply(command.number)
                    )
                except JetStreamError:
                    self._tracker.disconnected()  # the tracker sends new requests after the reconnect
            elif isinstance(command, Emit):
                puller.emit(command.event)
            elif isinstance(command, NotAnswered):
                self._context.tasks.start(self._report_no_answer(), "report that no server answers")
            else:
                self._context.tasks.start(self._check_consumer(), "check that the consumer exists")

    async def _report_no_answer(self) -> None:
        puller = self._puller
        error = await puller.not_answered(ends=False)
        puller.emit(ErrorRaised(stream=puller.stream, consumer=puller.consumer, error=error))

    async def _check_consumer(self) -> None:
        """Check that the consumer exists after pull requests were not answered. End the reader only if it doesn't."""
        puller = self._puller
        try:
            await consumer_info(self._context, puller.stream, puller.consumer)
        except JetStreamError as error:
            if not is_missing(error):
                return
            if puller.config is None:
                self._tracker.fail(error)  # "not found" is clearer than "deleted" if nobody saw the consumer
            else:
                puller.emit(self._tracker.consumer_is_gone())
            puller.changed.set()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.set(self._tracker.deadline if self._state is State.OPEN else None)

    async def close(self) -> None:
        """End the iteration now, and return the unread messages to the server.

        Unread messages and messages in flight are nak'ed, so the server immediately delivers them again, possibly to a
        different reader. With the ack policy "none", the server wouldn't deliver them again, so the next reader of the
        same handle returns them.

        Calling `close` again does nothing. The call takes up to a second if the server doesn't answer.
        """
        if self._state is State.CLOSED and (self._flush is not None or self._inbox.inbox is None):
            return
        self._state = State.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        self._context.detach(self, self._renew_requests, self._end_denied)
        self._puller.readers.discard(self)
        self._puller.changed.set()
        flush = self._unsubscribe(_FLUSH)  # before the first await, so that no message in flight is missed
        # Use a separate task, so that messages in flight go back to the server even if the caller is cancelled.
        await asyncio.shield(self._context.tasks.start(self._give_back(flush), "give messages back"))

    async def _give_back(self, flush: asyncio.Task[None]) -> None:
        await asyncio.wait({flush}, timeout=_FLUSH)
        frames = [*self._front]
        self._front.clear()
        if self._puller.silent:
            # Without acks the server doesn't redeliver messages, so they must go to the next reader of this handle.
            self._puller.leftover.extend(frames)
            return
        await nak_all(self._context.connection, frames)

    async def drain(self) -> None:
        """Stop requesting messages. The iteration ends once the application has read the messages already received.

        Use `close` instead to leave the unread messages to other readers.
        """
        if self._state is State.OPEN:
            self._state = State.DRAINING
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.shield(self._unsubscribe(self._context.timeout))
        elif self._state is State.NEW:
            self._state = State.CLOSED

    def _unsubscribe(self, timeout: float) -> asyncio.Task[None]:
        """Unsubscribe once the messages in flight have arrived. Later calls return the task of the first call."""
        if self._flush is None:
            self._flush = self._context.tasks.start(self._inbox.drain(timeout), "receive messages in flight")
            self._flush.add_done_callback(lambda _: self._puller.changed.set())
        return self._flush

    @property
    def _flushing(self) -> bool:
        return self._flush is not None and not self._flush.done()

    stop = close
    abandon = close  # called when the connection is closed

"""Dispatches the events and queries of a peer to its handlers, and sends its messages to other peers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from .._runtime.tasks import Tasks
from ..errors import ApiError, ConfigError, JetStreamError, MaxPayloadError
from ..protocol.consumers.worker.reasons import DeliveriesExhaustedError
from ..protocol.peers.channel import Address, read_subject
from ..protocol.peers.relationship import Attrs, OutboxItem, Raise, Send
from ..protocol.peers.rules import Answer, Ask, Command, Queried, Received, Redeliver, Refusal, Refuse
from .backend import Backend, Delivery, Stopping, backoff, refusal, reply, unpack
from .errors import EventDelayed, EventGivenUp, EventRefused, PeerHandlerFailed
from .handlers import Answers, HandlerError
from .stored_tracker import Machine

__all__ = ["Dispatcher", "OutboxSender", "publish_all"]

# If a request fails while an event is handled, the event is delivered again after this many seconds. The delay doubles
# with each delivery.
_LATER: Final = 1.0
_LONGEST_RETRY: Final = 60.0  # maximum delay before another attempt to handle an event, in seconds
# Allow this many deliveries beyond ``max_deliver``, because a delivery doesn't count as a failed attempt if the process
# stops before it calls the handlers.
_UNHANDLED: Final = 20
_REMEMBERED: Final = 10_000  # maximum number of events with failed handlers to remember
# Maximum number of concurrent sends to one host, so that a host that doesn't answer can't delay the others.
_AT_ONCE: Final = 64
_TOO_LARGE: Final = 10054

Notify = Callable[[Raise, int], Awaitable[None]]
"""A function that calls the peer's handlers with an event and the number of the attempt. Raises `HandlerError`."""


def _is_final(error: JetStreamError) -> bool:
    """Return whether an event can never be sent."""
    return isinstance(error, MaxPayloadError | ConfigError) or (
        isinstance(error, ApiError) and error.err_code == _TOO_LARGE
    )


class _Reports:
    """Reports the failed handlers and the abandoned events of a peer."""

    def __init__(self, peer: str, backend: Backend) -> None:
        self._peer = peer
        self._backend = backend

    def _report_failed(self, event: str, error: BaseException, attempt: int) -> float | None:
        """Report that an event's handlers failed. Return the seconds until the next attempt, or None after the last."""
        options = self._backend.options
        last = attempt >= options.max_deliver or isinstance(error, DeliveriesExhaustedError)
        delay = None if last else backoff(attempt, options.handler_delay, _LONGEST_RETRY)
        self._backend.emit(
            PeerHandlerFailed(peer=self._peer, event=event, error=error, attempt=attempt, retry_in=delay)
        )
        if last:
            self._report_given_up(event, error, attempt)
        return delay

    def _report_given_up(self, event: str, error: BaseException, attempts: int) -> None:
        self._backend.emit(EventGivenUp(peer=self._peer, event=event, error=error, attempts=attempts))


class Dispatcher(_Reports):
    """Handles the events and queries that one peer receives. The tracker decides, and this class calls the handlers."""

    def __init__(
        self, peer: str, backend: Backend, machine: Machine, answers: Answers, notify: Notify
    ) -> None:
        super().__init__(peer, backend)
        self.refused: Counter[Refusal] = Counter()
        self._machine = machine
        self._answers = answers
        self._notify = notify
        # Number of failures of each event's handlers in this process, oldest event first.
        self._failures: dict[bytes, int] = {}

    async def handle(self, delivery: Delivery) -> None:
        """Handle an event. On return, the event is handled or refused, or its redelivery was requested."""
        address = self._address(delivery.subject)
        try:
            await self._handle_delivery(delivery, address)
        except HandlerError as failure:
            await self._retry(delivery, address, failure.__cause__ or failure)
        except JetStreamError as error:
            if _is_final(error):
                await self._refuse_delivery(delivery, address, Refuse(Refusal.MALFORMED, str(error)))
            else:
                self._backend.report_error(error)
                await delivery.later(backoff(delivery.attempt, _LATER, _LONGEST_RETRY))
        except Exception as error:  # noqa: BLE001  a user's rule of acceptance may raise anything
            await self._retry(delivery, address, error)

    def _address(self, subject: str) -> Address | None:
        return read_subject(subject, self._backend.options.prefix)

    async def _handle_delivery(self, delivery: Delivery, address: Address | None) -> None:
        attrs = unpack(delivery.data)
        if address is None or address.query or attrs is None:
            refuse = Refuse(Refusal.MALFORMED, "not an event with a JSON object")
            await self._refuse_delivery(delivery, address, refuse)
            return
        fresh = self._machine.fresh(delivery.ident, event=f"{address.domain}:{address.name}")
        event = Received(address.eci, address.domain, address.name, attrs, fresh)
        commands = await self._machine.do(event)
        # Another process of this peer may have created the channel in the meantime. Read its changes before refusing.
        if _is_unknown(commands) and await self._machine.catch_up():
            commands = await self._machine.do(event)
        for command in commands:
            match command:
                case Refuse():
                    await self._refuse_delivery(delivery, address, command)
                case Redeliver():
                    await delivery.later(
                        backoff(delivery.attempt, command.delay, max(command.delay, _LONGEST_RETRY))
                    )
                case Send():
                    await self._backend.publish(command)
                case Raise():
                    failures = self._failures.get(delivery.ident, 0)
                    # An event that was delivered this often probably crashes every process that handles it, so give up
                    # the event.
                    if delivery.attempt > self._backend.options.max_deliver + _UNHANDLED:
                        raise HandlerError from DeliveriesExhaustedError("no process survived it")
                    await self._notify(command, failures + 1)
                    self._failures.pop(delivery.ident, None)
                case _:
                    pass  # nothing to do, because the command has already been stored, or matters only for a query

    async def _retry(self, delivery: Delivery, address: Address | None, error: BaseException) -> None:
        failures = self._failures
        attempt = failures.pop(delivery.ident, 0) + 1
        delay = self._report_failed(_event(address), error, attempt)
        if delay is None:
            await delivery.refuse("its handler failed too often")
            return
        failures[delivery.ident] = attempt
        if len(failures) > _REMEMBERED:
            del failures[next(iter(failures))]
        await delivery.later(delay)

    async def _refuse_delivery(self, delivery: Delivery, address: Address | None, refuse: Refuse) -> None:
        self.refused[refuse.refusal] += 1
        count = self.refused[refuse.refusal]
        # Report only refusals 1, 2, 4, 8 and so on, because strangers can cause any number of them.
        if count & (count - 1) == 0:
            self._backend.emit(
                EventRefused(
                    peer=self._peer,
                    event=_event(address),
                    eci="" if address is None else address.eci,
                    refusal=refuse.refusal,
                    detail=refuse.detail,
                    count=count,
                )
            )
        await delivery.refuse(refuse.refusal.value)

    async def answer(self, subject: str, data: bytes) -> bytes:
        """Return the answer to a query: a value, or the reason for a refusal. Never raises."""
        address, args = self._address(subject), unpack(data)
        if address is None or not address.query or args is None:
            return refusal(Refusal.MALFORMED.name, "not a query with a JSON object")
        query = Queried(address.eci, address.domain, address.name, args)
        commands = self._machine.tracker.handle(query, 0.0)
        if _is_unknown(commands):
            try:
                await self._machine.catch_up()
            except JetStreamError as error:
                self._backend.report_error(error)
            commands = self._machine.tracker.handle(query, 0.0)
        (command,) = commands
        match command:
            case Refuse():
                self.refused[command.refusal] += 1
                return refusal(command.refusal.name, command.detail)
            case Answer():
                return self._reply(command.value)
            case Ask():
                return await self._answer_query(address.eci, command.rid, command.name, command.args)
            case _:
                return refusal("FAILED")

    async def _answer_query(self, eci: str, rid: str, name: str, args: Attrs) -> bytes:
        answerer, event = self._answers.find(rid, name), f"{rid}:{name}"
        if answerer is None:
            return refusal("UNKNOWN", f"the peer has no answer to {event}")
        try:
            return self._reply(
                await self._answers.call(answerer, args, self._machine.tracker.established(eci))
            )
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            self._backend.emit(
                PeerHandlerFailed(peer=self._peer, event=event, error=error, attempt=1, retry_in=None)
            )
            return refusal("FAILED")  # don't disclose the reason to the sender

    @staticmethod
    def _reply(value: Any) -> bytes:
        try:
            return reply(value)
        except ConfigError as error:
            return refusal("FAILED", str(error))


def _is_unknown(commands: list[Command]) -> bool:
    """Return whether an event or query was refused because its channel is unknown."""
    return any(isinstance(command, Refuse) and command.refusal is Refusal.NO_CHANNEL for command in commands)


def _event(address: Address | None) -> str:
    return "" if address is None else f"{address.domain}:{address.name}"


class OutboxSender(_Reports):
    """Carries out the outbox items of a peer's relationships, each in its own task, and then calls ``done``.

    The tracker starts one item of each kind at a time for each relationship. A message that cannot be sent now is
    retried without limit. An event whose handlers fail is abandoned after ``max_deliver`` attempts.
    """

    def __init__(
        self,
        peer: str,
        backend: Backend,
        tasks: Tasks,
        stopping: Stopping,
        *,
        notify: Notify,
        done: Callable[[OutboxItem], Awaitable[None]],
    ) -> None:
        super().__init__(peer, backend)
        self._tasks = tasks
        self._stopping = stopping
        self._notify = notify
        self._done = done
        self._waiting: list[OutboxItem] | None = []
        self._sending: dict[str | None, asyncio.Semaphore] = {}

    def begin_sending(self) -> None:
        """Start to carry out items, beginning with the items loaded from the store.

        Call this method after the handlers have been registered.
        """
        waiting, self._waiting = self._waiting or [], None
        for item in waiting:
            self.start_item(item)

    def start_item(self, item: OutboxItem) -> None:
        """Carry out an item in its own task, or keep it until `begin_sending`."""
        if self._waiting is not None:
            self._waiting.append(item)
        elif not self._stopping.begun:
            self._tasks.start(self._carry_out(item), f"{item.domain}:{item.type} of peer {self._peer}")

    async def _carry_out(self, item: OutboxItem) -> None:
        event = f"{item.domain}:{item.type}"
        if await (self._send_item(item, event) if isinstance(item, Send) else self._raise(item, event)):
            await self._done(item)

    async def _send_item(self, item: Send, event: str) -> bool:
        attempt = 0
        # The tracker accepts no relationship with a host that isn't allowed, so the number of semaphores stays small.
        sending = self._sending.setdefault(item.host, asyncio.Semaphore(_AT_ONCE))
        while not self._stopping.begun:
            try:
                async with sending:
                    await self._backend.publish(item)
                return True
            except JetStreamError as error:
                attempt += 1
                if _is_final(error):
                    self._report_given_up(event, error, attempt)
                    return True
                delay = backoff(attempt)
                # Report only attempts 1, 2, 4, 8 and so on, because a host may be unreachable for a long time.
                if attempt & (attempt - 1) == 0:
                    self._backend.emit(
                        EventDelayed(
                            peer=self._peer,
                            event=event,
                            eci=item.eci,
                            host=item.host,
                            error=error,
                            attempt=attempt,
                            retry_in=delay,
                        )
                    )
            await self._stopping.pause(delay)
        return False

    async def _raise(self, item: Raise, event: str) -> bool:
        attempt = 0
        while not self._stopping.begun:
            attempt += 1
            try:
                await self._notify(item, attempt)
                return True
            except HandlerError as failure:
                delay = self._report_failed(event, failure.__cause__ or failure, attempt)
            if delay is None:
                return True
            await self._stopping.pause(delay)
        return False


async def publish_all(backend: Backend, sends: Sequence[Send]) -> None:
    """Publish several events concurrently.

    With a single event, its error is raised. With several, all errors are raised in an `ExceptionGroup`.
    """
    results = await asyncio.gather(*map(backend.publish, sends), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if len(sends) > 1 and errors and all(isinstance(error, Exception) for error in errors):
        raise ExceptionGroup(
            f"{len(errors)} of {len(sends)} events could not be sent",
            [error for error in errors if isinstance(error, Exception)],
        )
    if errors:
        raise errors[0]

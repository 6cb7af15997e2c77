"""Incoming events and queries of a peer: its tracker decides, its handlers are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ..errors import ConfigError, JetStreamError
from ..protocol.consumers.worker.worker import DeliveriesExhaustedError
from ..protocol.peers.channel import read_subject
from ..protocol.peers.commands import Answer, Ask, Command, Queried, Received, Refusal, Refuse, Retry
from ..protocol.peers.outbox import Attrs, Raise, Send
from .backend import Backend, Delivery
from .events import EventGivenUp, EventRefused, PeerHandlerFailed
from .handlers import Answers, HandlerError
from .outbox import LONGEST_RETRY, is_final
from .pauses import backoff
from .payloads import refusal, reply, unpack
from .stored_tracker import Machine

__all__ = ["Intake"]

_LATER: Final = 1.0  # seconds until the redelivery after a failed request; doubled each time
_UNTOLD: Final = 20  # deliveries beyond the attempts: those that reached no handler, as when a process stops
_REMEMBERED: Final = 10_000  # events whose handlers failed here


class Intake:
    """Handles the events and queries of one peer.

    Args:
        tell: Calls the peer's handlers with a raised event; raises `HandlerError`.
    """

    def __init__(
        self,
        peer: str,
        backend: Backend,
        machine: Machine,
        answers: Answers,
        tell: Callable[[Raise, int], Awaitable[None]],
    ) -> None:
        self.refused: Counter[Refusal] = Counter()
        self._peer = peer
        self._backend = backend
        self._machine = machine
        self._answers = answers
        self._tell = tell
        self._failures: dict[bytes, int] = {}  # by event, oldest first: how often its handlers failed here

    async def receive(self, delivery: Delivery) -> None:
        """Handle an event. On return it is done, or its redelivery was requested."""
        try:
            await self._take(delivery)
        except HandlerError as failure:
            await self._failed(delivery, failure.__cause__ or failure)
        except JetStreamError as error:
            if is_final(error):
                await self._refuse(delivery, Refuse(Refusal.MALFORMED, str(error)))
            else:
                self._backend.report(error)
                await delivery.later(backoff(delivery.attempt, _LATER, LONGEST_RETRY))
        except Exception as error:  # noqa: BLE001  a user's rule of acceptance may raise anything
            await self._failed(delivery, error)

    async def _take(self, delivery: Delivery) -> None:
        address = read_subject(delivery.subject, self._backend.options.prefix)
        attrs = unpack(delivery.data)
        if address is None or address.query or attrs is None:
            await self._refuse(delivery, Refuse(Refusal.MALFORMED, "not an event with a JSON object"))
            return
        event = Received(
            address.eci, address.domain, address.name, attrs, self._machine.fresh(delivery.ident)
        )
        commands = await self._machine.do(event)
        if _is_unknown(commands) and await self._machine.catch_up():
            commands = await self._machine.do(event)
        for command in commands:
            match command:
                case Refuse():
                    await self._refuse(delivery, command)
                case Retry():
                    await delivery.later(command.delay)
                case Send():
                    await self._backend.publish(command)
                case Raise():
                    failures = self._failures.get(delivery.ident, 0)
                    if delivery.attempt > self._backend.options.max_deliver + _UNTOLD:
                        raise HandlerError from DeliveriesExhaustedError("no process survived it")
                    await self._tell(command, failures + 1)
                    self._failures.pop(delivery.ident, None)
                case _:
                    pass  # stored already, or of a query

    async def _failed(self, delivery: Delivery, error: BaseException) -> None:
        options, failures = self._backend.options, self._failures
        attempt = failures.pop(delivery.ident, 0) + 1
        name = _name(delivery.subject)
        last = attempt >= options.max_deliver or isinstance(error, DeliveriesExhaustedError)
        delay = backoff(attempt, options.handler_delay, LONGEST_RETRY)
        self._backend.emit(
            PeerHandlerFailed(
                peer=self._peer, event=name, error=error, attempt=attempt, retry_in=None if last else delay
            )
        )
        if last:
            self._backend.emit(EventGivenUp(peer=self._peer, event=name, error=error, attempts=attempt))
            await delivery.refuse("its handler failed too often")
        else:
            failures[delivery.ident] = attempt
            if len(failures) > _REMEMBERED:
                del failures[next(iter(failures))]
            await delivery.later(delay)

    async def _refuse(self, delivery: Delivery, refuse: Refuse) -> None:
        self.refused[refuse.refusal] += 1
        count = self.refused[refuse.refusal]
        if count & (count - 1) == 0:
            address = read_subject(delivery.subject, self._backend.options.prefix)
            self._backend.emit(
                EventRefused(
                    peer=self._peer,
                    event="" if address is None else _name(delivery.subject),
                    eci="" if address is None else address.eci,
                    refusal=refuse.refusal,
                    detail=refuse.detail,
                    count=count,
                )
            )
        await delivery.refuse(refuse.refusal.value)

    async def answer(self, subject: str, data: bytes) -> bytes:
        """Answer a query, with a value or the reason of a refusal. Never raises."""
        address = read_subject(subject, self._backend.options.prefix)
        args = unpack(data)
        if address is None or not address.query or args is None:
            return refusal(Refusal.MALFORMED.name, "not a query with a JSON object")
        asked = Queried(address.eci, address.domain, address.name, args)
        commands = self._machine.tracker.handle(asked, 0.0)
        if _is_unknown(commands):
            try:
                await self._machine.catch_up()
            except JetStreamError as error:
                self._backend.report(error)
            commands = self._machine.tracker.handle(asked, 0.0)
        (command,) = commands
        match command:
            case Refuse():
                self.refused[command.refusal] += 1
                return refusal(command.refusal.name, command.detail)
            case Answer():
                return self._reply(command.value)
            case Ask():
                return await self._ask(address.eci, command.rid, command.name, command.args)
            case _:
                return refusal("FAILED")

    async def _ask(self, eci: str, rid: str, name: str, args: Attrs) -> bytes:
        answerer = self._answers.find(rid, name)
        if answerer is None:
            return refusal("UNKNOWN", f"the peer has no answer to {rid}:{name}")
        try:
            return self._reply(
                await self._answers.call(answerer, args, self._machine.tracker.established(eci))
            )
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            self._backend.emit(
                PeerHandlerFailed(
                    peer=self._peer, event=f"{rid}:{name}", error=error, attempt=1, retry_in=None
                )
            )
            return refusal("FAILED")  # the reason is not disclosed to the sender

    @staticmethod
    def _reply(value: Any) -> bytes:
        try:
            return reply(value)
        except ConfigError as error:
            return refusal("FAILED", str(error))


def _is_unknown(commands: list[Command]) -> bool:
    """Whether the channel is unknown: another process of this peer may have created it."""
    return any(isinstance(one, Refuse) and one.refusal is Refusal.NO_CHANNEL for one in commands)


def _name(subject: str) -> str:
    return ":".join(subject.split(".")[-2:])

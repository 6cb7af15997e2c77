"""What comes for a peer: events of its inbox and queries, judged by its tracker, given to its handlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ..errors import ConfigError, JetStreamError
from ..protocol.consumers.worker.work import DeliveriesExhaustedError
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

_LATER: Final = 1.0  # seconds, where the server is in trouble; doubled each time
_UNTOLD: Final = 20  # deliveries more than tries: those that came to no handler, as when a process stops
_REMEMBERED: Final = 10_000  # events that failed here; another process may have dealt with them since


class Intake:
    """Takes what comes for one peer.

    Args:
        tell: Tells the peer's handlers of what a message raises; raises `HandlerError`.
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
        """An event came. When this returns it is done with, or was asked for again."""
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
            await self._refuse(delivery, Refuse(Refusal.MALFORMED, "no event with a JSON object"))
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
        """A query came. Its answer, or why there is none; it never raises."""
        address = read_subject(subject, self._backend.options.prefix)
        args = unpack(data)
        if address is None or not address.query or args is None:
            return refusal(Refusal.MALFORMED.name, "no query with a JSON object")
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
            return refusal("UNKNOWN", f"nobody answers {rid}:{name}")
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
            return refusal("FAILED")  # what failed is no business of who asked

    @staticmethod
    def _reply(value: Any) -> bytes:
        try:
            return reply(value)
        except ConfigError as error:
            return refusal("FAILED", str(error))


def _is_unknown(commands: list[Command]) -> bool:
    """Whether it came on a channel that is not known: another process of this peer may have made it."""
    return any(isinstance(one, Refuse) and one.refusal is Refusal.NO_CHANNEL for one in commands)


def _name(subject: str) -> str:
    return ":".join(subject.split(".")[-2:])

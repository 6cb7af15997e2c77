"""The intake of a peer: how often its handlers are notified of an event, whatever becomes of its deliveries."""

from __future__ import annotations

from typing import Any

from jsclient.peers.backend import Delivery, pack
from jsclient.peers.dispatch import Dispatcher
from jsclient.peers.errors import EventGivenUp, PeerHandlerFailed
from jsclient.peers.handlers import HandlerError
from jsclient.protocol.peers.channel import event_subject
from jsclient.protocol.peers.options import EngineOptions
from jsclient.protocol.peers.relationship import Raise
from tests.support.virtual import virtual


class Ground:
    """The rest of a peer: its handlers fail as often as ``failing`` says."""

    def __init__(self, failing: int = 0) -> None:
        self.options = EngineOptions(max_deliver=3)
        self.failing = failing
        self.attempts: list[int] = []
        self.events: list[Any] = []
        self.emit = self.events.append
        self.retries: list[float] = []
        self.refused: list[str] = []
        self.intake = Dispatcher("b", self, self, None, self.notify)

    def fresh(self, ident: bytes, *, event: str) -> bool:
        return True

    async def do(self, event: Any) -> list[Any]:
        return [Raise(domain=event.domain, type=event.type, attrs=event.attrs, eci=event.eci)]

    async def notify(self, command: Raise, attempt: int) -> None:
        self.attempts.append(attempt)
        if len(self.attempts) <= self.failing:
            raise HandlerError from ValueError("not now")

    async def delivered(self, attempt: int, ident: bytes = b"1") -> None:
        async def later(seconds: float) -> None:
            self.retries.append(seconds)

        async def refuse(why: str) -> None:
            self.refused.append(why)

        subject = event_subject("b.c1", "job", "todo", self.options.prefix)
        await self.intake.handle(Delivery(subject, pack({"n": 1}), ident, attempt, later, refuse))


@virtual
async def test_first_time_is_first():
    """A delivery that was returned, as when a process stops, reached no handler. Waiting tasks are not notified yet."""
    ground = Ground()
    await ground.delivered(attempt=7)
    assert (ground.attempts, ground.events, ground.refused) == ([1], [], [])


@virtual
async def test_handlers_get_all_tries():
    ground = Ground(failing=99)
    for attempt in range(8, 11):
        await ground.delivered(attempt)
    assert ground.attempts == [1, 2, 3]
    assert [event.attempt for event in ground.events if isinstance(event, PeerHandlerFailed)] == [1, 2, 3]
    assert [event.attempts for event in ground.events if isinstance(event, EventGivenUp)] == [3]
    assert (len(ground.retries), len(ground.refused)) == (2, 1)


@virtual
async def test_event_no_process_survives_abandoned():
    ground = Ground()
    await ground.delivered(attempt=24)
    assert ground.attempts == []
    assert [str(event.error) for event in ground.events if isinstance(event, EventGivenUp)] == [
        "no process survived it"
    ]
    assert len(ground.refused) == 1


@virtual
async def test_settled_tries_forgotten():
    ground = Ground(failing=1)
    await ground.delivered(1)
    await ground.delivered(2)
    assert ground.attempts == [1, 2]
    assert ground.intake._failures == {}
    ground = Ground(failing=99_999)
    for number in range(10_100):
        await ground.delivered(1, b"%d" % number)
    assert len(ground.intake._failures) == 10_000

"""What a peer is made of, and its life: opened, closed, removed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from .._runtime.tasks import Tasks
from ..errors import ClosedError, JetStreamError, RequestTimeoutError
from ..protocol.peers.commands import Command, Install, RemovePeer, Tick
from ..protocol.peers.outbox import OutboxItem, Raise, Send
from ..protocol.peers.tracker import PeerTracker
from .backend import Attendance, Backend
from .errors import PeerError
from .handlers import Answers, HandlerError, Handlers, RaisedEvent
from .inbox import Intake
from .outbox import Outbox
from .pauses import Stopping
from .stored_tracker import Machine

__all__ = ["PeerCore"]

_LOOK: Final = 60.0  # seconds between two looks for what may be forgotten
_GRACE: Final = 5.0  # seconds that handlers have when a peer is closed


class PeerCore:
    """The parts of a peer, put together. `Peer` is what users see of it."""

    def __init__(self, backend: Backend, name: str, *, capability: bool) -> None:
        self._backend = backend
        self._capability = capability
        self._tasks = Tasks(backend.report)
        self._stopping = Stopping()
        self._handlers = Handlers()
        self._answers = Answers()
        self._tracker = PeerTracker(name, backend.options.of_peers())
        self._outbox = Outbox(
            name,
            backend,
            self._tasks,
            self._stopping,
            tell=self._tell,
            done=self._done,
        )
        self._machine = Machine(
            self._tracker, backend.store(name), self._outbox.start, self._tasks, self._stopping
        )
        self._intake = Intake(name, backend, self._machine, self._answers, self._tell)
        self._attendance: Attendance | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or removed."""
        return self._stopping.begun

    # --- its life --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Learn what is stored, and be there. Nothing is told to handlers before the next turn of the loop.

        Raises those of any request; then nothing is left running.
        """
        try:
            await self._machine.load()
            if self._capability:
                await self._machine.do(Install(self._machine.fresh()))
            self._attendance = await self._backend.attend(
                self._tracker.name, self._intake.receive, self._intake.answer
            )
        except BaseException:
            await self.close()
            raise
        self._outbox.begin()
        self._attendance.begin()
        self._tasks.start(self._forget(), f"forget what is over for peer {self._tracker.name}")

    def stop(self) -> None:
        """Begin to close. For the library's own use: many peers are to end at the same time."""
        self._stopping.begin()
        if self._attendance is not None:
            self._attendance.stop(_GRACE)

    async def close(self) -> None:
        """Be away. Events wait for the next time, in the stream; relationships stay.

        Handlers that run have 5 seconds, then they are cancelled; what they were told is told again the next time.
        """
        self.stop()
        attendance, self._attendance = self._attendance, None
        if attendance is not None:
            await attendance.close(_GRACE)
        await self._tasks.settle(_GRACE)
        self._handlers.close()

    async def retire(self, timeout: float) -> None:
        """End all relationships, and delete all that is stored. See `Engine.remove`."""
        deadline = asyncio.get_running_loop().time() + timeout
        await self._end_all(deadline, timeout)
        attendance, self._attendance = self._attendance, None
        if attendance is not None:
            await attendance.close(_GRACE)
        await self._end_all(deadline, timeout)  # what came meanwhile
        await self.close()
        await self._backend.forget(self._tracker.name)
        await self._backend.store(self._tracker.name).clear()

    async def _end_all(self, deadline: float, timeout: float) -> None:
        await self._machine.do(RemovePeer())
        while any(record.outbox for record in self._tracker.relationships):
            if not await self._machine.changed.wait_until(deadline):
                raise RequestTimeoutError(
                    f"removing peer {self._tracker.name!r}: some relationships could not tell the other side yet",
                    timeout,
                )

    async def _forget(self) -> None:
        """Time passes."""
        while await self._stopping.pause(min(_LOOK, self._backend.options.remember / 4)):
            deadline = self._tracker.deadline
            if deadline is not None and deadline <= time.time():
                try:
                    await self._machine.do(Tick())
                except JetStreamError as error:
                    self._backend.report(error)

    async def _done(self, item: OutboxItem) -> None:
        await self._machine.done(item)

    def _check_open(self) -> None:
        if self._stopping.begun:
            raise ClosedError(f"the peer {self._tracker.name!r} is closed")

    # --- what happens ----------------------------------------------------------------------------------------

    async def _tell(self, item: Raise, attempt: int = 1) -> None:
        """Tell the handlers, and who waits for it. Raises `HandlerError`."""
        related = None if item.eci is None else self._tracker.established(item.eci)
        event = RaisedEvent(item.domain, item.type, item.attrs, item.eci, related, item.error)
        if attempt == 1:
            self._handlers.note(event)
        await self._handlers.run(event)

    async def _perform(self, commands: Sequence[Command]) -> int:
        """What the peer asked of itself, beside what was stored. Returns how many events were sent.

        Raises:
            PeerError: It cannot be done; the handlers know.
            ExceptionGroup: Of several sends, those that failed. Of one its own error.
        """
        failure: PeerError | None = None
        for command in commands:
            if isinstance(command, Raise):
                try:
                    await self._tell(command)
                except HandlerError as error:
                    raise error.__cause__ or error from None
                if command.error:
                    failure = PeerError(f"{command.domain}:{command.type}", command.error)
        if failure is not None:
            raise failure
        sends = [command for command in commands if isinstance(command, Send)]
        results = await asyncio.gather(
            *(self._backend.publish(send) for send in sends), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(sends) > 1 and errors and all(isinstance(error, Exception) for error in errors):
            raise ExceptionGroup(
                f"{len(errors)} of {len(sends)} events could not be sent",
                [error for error in errors if isinstance(error, Exception)],
            )
        if errors:
            raise errors[0]
        return len(sends)

"""Acks that were written but that the server has not confirmed. They may be lost with the connection."""

from __future__ import annotations

from collections import deque

from ...protocol.consumers.ack import AckKind
from ...protocol.events import AcksLost
from .wire import Outbox

__all__ = ["LIMIT", "NAK", "NOT_AGAIN", "UnconfirmedAcks"]

LIMIT = 4096  # the number of unconfirmed acks after which a PING is sent to confirm them


NAK = AckKind.NAK.value
NOT_AGAIN = b""  # stored in place of a nak. If a nak is lost, it is counted but not sent again


class UnconfirmedAcks:
    """Acks and naks in the order of writing. A PONG confirms all acks written before its PING."""

    __slots__ = ("_confirmed", "_marks", "_ping_due", "acks")

    def __init__(self) -> None:
        self.acks: deque[bytes] = deque()  # the writer of an ack must append it here too
        self._confirmed = 0
        self._marks: deque[int] = deque()  # acks written before each PING in flight
        self._ping_due = False

    def __len__(self) -> int:
        return len(self.acks)

    @property
    def _written(self) -> int:
        return self._confirmed + len(self.acks)

    def wants_ping(self) -> bool:
        """Return whether a PING is due. Returns True only once per PING."""
        if len(self.acks) < LIMIT or self._ping_due:
            return False
        self._ping_due = True
        return True

    def ping_sent(self, *, reconnecting: bool = False) -> None:
        """Record a PING. While reconnecting, the earlier acks were written to another connection."""
        if reconnecting:
            self._marks.clear()  # PINGs of failed attempts may have left marks, but get no PONG
        self._marks.append(self._confirmed if reconnecting else self._written)

    def pong_received(self) -> None:
        """Confirm the acks written before the oldest PING in flight."""
        self._ping_due = False
        if self._marks:
            read = self._marks.popleft()
            while self._confirmed < read:
                self.acks.popleft()
                self._confirmed += 1

    def write_again(self, out: Outbox) -> AcksLost | None:
        """Write the acks again that may have been lost with a connection. A repeated ack has no effect.

        Naks are not repeated, because a repeated nak would cause another delivery. Returns the event to report.
        """
        count = len(self.acks)
        again = [command for command in self.acks if command is not NOT_AGAIN]
        self.acks.clear()
        self.acks.extend(again)
        for command in again:
            out.write(command)
        return AcksLost(count=count, resent=len(again)) if count else None

    def connection_lost(self) -> None:
        """Forget the PINGs in flight, because they will not be answered."""
        self._marks.clear()
        self._ping_due = False

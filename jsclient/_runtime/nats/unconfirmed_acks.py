"""Acks that were written and not confirmed by the server: they may be lost with the connection."""

from __future__ import annotations

from collections import deque

from ...protocol.consumers.ack import AckKind

__all__ = ["LIMIT", "NAK", "NOT_AGAIN", "UnconfirmedAcks"]

LIMIT = 4096  # unconfirmed acks after which a PING is sent to confirm them


NAK = AckKind.NAK.value
NOT_AGAIN = b""  # in place of a nak, which is counted if it is lost, and not sent again


class UnconfirmedAcks:
    """Acks and naks in writing order. A PONG confirms those written before its PING."""

    __slots__ = ("_asked", "_confirmed", "_marks", "acks")

    def __init__(self) -> None:
        self.acks: deque[bytes] = deque()  # the writer of an ack appends it here too
        self._confirmed = 0
        self._marks: deque[int] = deque()  # acks written before each PING in flight
        self._asked = False

    def __len__(self) -> int:
        return len(self.acks)

    @property
    def _written(self) -> int:
        return self._confirmed + len(self.acks)

    def wants_ping(self) -> bool:
        """Whether a PING is due; True once per PING."""
        if len(self.acks) < LIMIT or self._asked:
            return False
        self._asked = True
        return True

    def ping_sent(self, *, reconnecting: bool = False) -> None:
        """Record a PING. While reconnecting, the earlier acks were written to another connection."""
        if reconnecting:
            self._marks.clear()  # from a failed attempt
        self._marks.append(self._confirmed if reconnecting else self._written)

    def pong_received(self) -> None:
        """Confirm the acks written before the oldest PING in flight."""
        self._asked = False
        if self._marks:
            read = self._marks.popleft()
            while self._confirmed < read:
                self.acks.popleft()
                self._confirmed += 1

    def take_again(self) -> list[bytes]:
        """Forget the naks, and return the acks, which are to be written again."""
        again = [command for command in self.acks if command is not NOT_AGAIN]
        self.acks.clear()
        self.acks.extend(again)
        return again

    def connection_lost(self) -> None:
        """Forget the PINGs in flight: they will not be answered."""
        self._marks.clear()
        self._asked = False

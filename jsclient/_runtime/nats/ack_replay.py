"""Acks that were written but that the server may not have read: they are sent again if the connection dies."""

from __future__ import annotations

from collections import deque

__all__ = ["UnconfirmedAcks"]

LIMIT = 4096  # acks after which the server is asked, with a PING, whether it has read them


class UnconfirmedAcks:
    """Acks in the order they were written. A PONG confirms those written before its PING."""

    __slots__ = ("_asked", "_confirmed", "_marks", "acks")

    def __init__(self) -> None:
        self.acks: deque[bytes] = deque()  # whoever writes an ack appends it here too
        self._confirmed = 0
        self._marks: deque[int] = deque()  # acks written before each PING under way
        self._asked = False

    def __len__(self) -> int:
        return len(self.acks)

    @property
    def _written(self) -> int:
        return self._confirmed + len(self.acks)

    def wants_ping(self) -> bool:
        """Whether it is time to send a PING. Says so once."""
        if len(self.acks) < LIMIT or self._asked:
            return False
        self._asked = True
        return True

    def ping_sent(self, *, reconnecting: bool = False) -> None:
        """A PING goes out behind all that was written; while reconnecting that was to another connection."""
        if reconnecting:
            self._marks.clear()  # of an attempt that failed
        self._marks.append(self._confirmed if reconnecting else self._written)

    def pong_received(self) -> None:
        """The server has read what was written before the oldest PING under way."""
        self._asked = False
        if self._marks:
            read = self._marks.popleft()
            while self._confirmed < read:
                self.acks.popleft()
                self._confirmed += 1

    def connection_lost(self) -> None:
        """The PINGs under way will not be answered."""
        self._marks.clear()
        self._asked = False

    def all(self) -> list[bytes]:
        """Those that may not have been read."""
        return list(self.acks)

"""Acks that were written but that the server may not have read: they are sent again if the connection dies."""

from __future__ import annotations

from collections import deque

__all__ = ["UnconfirmedAcks"]

LIMIT = 4096  # acks after which the server is asked, with a PING, whether it has read them


class UnconfirmedAcks:
    """Acks in the order they were written. A PONG confirms those written before its PING."""

    __slots__ = ("_acks", "_asked", "_marks", "_written")

    def __init__(self) -> None:
        self._acks: deque[bytes] = deque()
        self._written = 0
        self._marks: deque[int] = deque()  # acks written before each PING under way
        self._asked = False

    def __len__(self) -> int:
        return len(self._acks)

    def add(self, command: bytes) -> bool:
        """An ack is written. True: it is time to send a PING."""
        self._acks.append(command)
        self._written += 1
        if len(self._acks) < LIMIT or self._asked:
            return False
        self._asked = True
        return True

    def ping_sent(self, *, reconnecting: bool = False) -> None:
        """A PING goes out behind all that was written; while reconnecting that was to another connection."""
        if reconnecting:
            self._marks.clear()  # of an attempt that failed
        self._marks.append(self._written - len(self._acks) if reconnecting else self._written)

    def pong_received(self) -> None:
        """The server has read what was written before the oldest PING under way."""
        self._asked = False
        if self._marks:
            unread = self._written - self._marks.popleft()
            while len(self._acks) > unread:
                self._acks.popleft()

    def connection_lost(self) -> None:
        """The PINGs under way will not be answered."""
        self._marks.clear()
        self._asked = False

    def all(self) -> list[bytes]:
        """Those that may not have been read."""
        return list(self._acks)

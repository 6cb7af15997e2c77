"""The subscriptions of a connection, which are restored on the next connection."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import PermissionDeniedError

__all__ = ["Subscriptions", "WireSubscription"]


class WireSubscription:
    """A subscription as the server knows it.

    Attributes:
        limit: The number of messages after which the server ends it, or 0. It counts from the newest SUB.
        denied: The error if the server has refused it.
    """

    __slots__ = ("denied", "key", "limit", "queue", "sid", "subject")

    def __init__(self, sid: int, subject: str, queue: str, limit: int = 0) -> None:
        self.sid: int = sid
        self.key: bytes = b"%d" % sid
        self.subject: str = subject
        self.queue: str = queue
        self.limit: int = limit
        self.denied: PermissionDeniedError | None = None

    def command(self) -> bytes:
        """Return SUB, and UNSUB if there is a limit."""
        group = f"{self.queue} " if self.queue else ""
        until = f"UNSUB {self.sid} {self.limit}\r\n" if self.limit else ""
        return f"SUB {self.subject} {group}{self.sid}\r\n{until}".encode()


class Subscriptions:
    """All subscriptions of a connection, by their number (sid)."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, WireSubscription] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, subject: str, queue: str, limit: int = 0) -> WireSubscription:
        """Add a subscription with the next number, and return it."""
        self._last += 1
        one = self._open[self._last] = WireSubscription(self._last, subject, queue, limit)
        return one

    def remove(self, subscription: WireSubscription) -> bool:
        """Forget a subscription. Returns whether it was open."""
        return self._open.pop(subscription.sid, None) is not None

    def commands(self) -> Iterator[bytes]:
        """Yield the commands that restore the subscriptions on a new connection."""
        return (one.command() for one in self._open.values())

    def deny(self, error: PermissionDeniedError) -> None:
        """Record that the server refuses subscriptions to a subject."""
        for one in self._open.values():
            if one.subject == error.subject:
                one.denied = error

"""What a connection listens to: kept in nats-py's table, which subscribes it anew after a reconnect."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import PermissionDeniedError
from ...protocol.wire.frames import Sink
from .nats_client import NatsClient, WireSubscription
from .write_buffer import Outbox

__all__ = ["Subscriptions"]


class Subscriptions:
    """The NATS subscriptions of one connection."""

    def __init__(self, nc: NatsClient, out: Outbox, is_connected: Callable[[], bool]) -> None:
        self._nc = nc
        self._out = out
        self._is_connected = is_connected
        self._late: dict[int, bytes] = {}  # SUB and UNSUB, by sid, of what changed without a connection

    def add(self, subject: str, sink: Sink, queue: str, limit: int = 0) -> WireSubscription:
        """Listen: frames go to ``sink``, at most ``limit`` of them if that is not 0."""
        self._nc._sid += 1
        sid = self._nc._sid
        subscription = WireSubscription(sid, subject, queue, limit)
        self._nc.reader.sinks[b"%d" % sid] = sink
        self._nc._subs[sid] = subscription  # type: ignore[assignment]
        group = f"{queue} " if queue else ""
        until = f"UNSUB {sid} {limit}\r\n" if limit else ""
        self._write(sid, f"SUB {subject} {group}{sid}\r\n{until}".encode())
        return subscription

    def expect_large(self, subscription: WireSubscription) -> None:
        """The API answers there: more than ``max_payload`` may come at once."""
        self._nc.reader.large.add(b"%d" % subscription._id)

    def _write(self, sid: int, command: bytes) -> None:
        """At once, or at the reconnect: nats-py, which makes all anew, may have done so already by now."""
        if self._is_connected():
            self._out.write(command)
        else:
            self._late[sid] = command

    def remove(self, subscription: WireSubscription) -> None:
        """Listen no more. Harmless if it is gone."""
        sid = subscription._id
        self._nc.reader.sinks.pop(b"%d" % sid, None)
        self._nc.reader.large.discard(b"%d" % sid)
        if self._nc._subs.pop(sid, None) is not None:
            self._write(sid, b"UNSUB %d\r\n" % sid)

    def stop(self, subscription: WireSubscription) -> bool:
        """Ask for nothing new; what is under way still arrives, until `remove`. False: there is nothing to wait for."""
        if not self._is_connected() or self._nc._subs.pop(subscription._id, None) is None:
            return False
        self._out.write(b"UNSUB %d\r\n" % subscription._id)
        return True

    def reconnected(self) -> None:
        """A connection is there again: say what changed meanwhile."""
        for command in self._late.values():
            self._out.write(command)
        self._late.clear()

    def denied(self, error: PermissionDeniedError) -> None:
        """The server refused to let this user listen to a subject."""
        for subscription in self._nc._subs.values():
            if subscription._subject == error.subject and isinstance(subscription, WireSubscription):
                subscription.denied = error

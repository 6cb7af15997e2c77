"""The subscriptions of a connection, kept in nats-py's table: nats-py restores them after a reconnect."""

from __future__ import annotations

from ...errors import PermissionDeniedError
from ...protocol.wire.frames import Sink
from ..holding_sink import Intake
from .connection import Connection
from .nats_client import NatsClient, WireSubscription

__all__ = ["Subscriptions"]


class Subscriptions:
    """The NATS subscriptions of one connection."""

    def __init__(self, nc: NatsClient, connection: Connection) -> None:
        self._nc = nc
        self._out = nc.out
        self._connection = connection
        self._late: dict[int, bytes] = {}  # SUB and UNSUB by sid, while disconnected

    def add(self, subject: str, sink: Sink, queue: str, limit: int = 0) -> WireSubscription:
        """Subscribe; frames go to ``sink``, at most ``limit`` of them if it is not 0."""
        self._nc._sid += 1
        sid = self._nc._sid
        subscription = WireSubscription(sid, subject, queue, limit)
        sinks, key = self._nc.reader.sinks, b"%d" % sid
        sinks[key] = sink
        if isinstance(sink, Intake):
            sink.installed(sinks, key)
        self._nc._subs[sid] = subscription  # type: ignore[assignment]
        group = f"{queue} " if queue else ""
        until = f"UNSUB {sid} {limit}\r\n" if limit else ""
        self._write(sid, f"SUB {subject} {group}{sid}\r\n{until}".encode())
        return subscription

    def expect_large(self, subscription: WireSubscription) -> None:
        """Accept frames over ``max_payload``, for API answers."""
        self._nc.reader.large.add(b"%d" % subscription._id)

    def _write(self, sid: int, command: bytes) -> None:
        """Write now, or after the reconnect: nats-py may have restored its subscriptions already."""
        if self._connection.is_connected:
            self._out.write(command)
        else:
            self._late[sid] = command

    def remove(self, subscription: WireSubscription) -> None:
        """Unsubscribe; a no-op if it is gone."""
        sid = subscription._id
        self._nc.reader.sinks.pop(b"%d" % sid, None)
        self._nc.reader.large.discard(b"%d" % sid)
        if self._nc._subs.pop(sid, None) is not None:
            self._write(sid, b"UNSUB %d\r\n" % sid)

    def stop(self, subscription: WireSubscription) -> bool:
        """Unsubscribe at the server; messages in flight arrive until `remove`. False: not subscribed or connected."""
        if not self._connection.is_connected or self._nc._subs.pop(subscription._id, None) is None:
            return False
        self._out.write(b"UNSUB %d\r\n" % subscription._id)
        return True

    def reconnected(self) -> None:
        """Write the changes made while disconnected."""
        for command in self._late.values():
            self._out.write(command)
        self._late.clear()

    def denied(self, error: PermissionDeniedError) -> None:
        """Mark the subscriptions to a subject that the server refused."""
        for subscription in self._nc._subs.values():
            if subscription._subject == error.subject and isinstance(subscription, WireSubscription):
                subscription.denied = error

"""Events that concern the connection to the server."""

from __future__ import annotations

from .event_base import Event, Severity

__all__ = ["Disconnected", "LameDuck", "PermissionDenied", "Reconnected", "ServersChanged"]


class Disconnected(Event, frozen=True, kw_only=True):
    """The connection to the server was lost. The client tries to reconnect until it succeeds or is closed.

    Until then, calls that need the connection wait or raise `DisconnectedError`. `Reconnected` follows.

    Attributes:
        reason: Why the connection was lost, or "" if the reason is unknown.
    """

    about = "connection"

    reason: str = ""

    def _says(self) -> str:
        return f"the connection was lost{f': {self.reason}' if self.reason else ''}; reconnecting"


class Reconnected(Event, frozen=True, kw_only=True):
    """The client has reconnected to a server and restored its subscriptions.

    Core NATS messages published while the client was disconnected are lost. Stream messages aren't lost, because
    readers continue where they left off.

    Attributes:
        url: URL of the server, without user info.
    """

    about = "connection"

    url: str = ""

    def _says(self) -> str:
        return f"reconnected{f' to {self.url}' if self.url else ''}"


class LameDuck(Event, frozen=True, kw_only=True):
    """The server has entered lame duck mode, so it will close this connection soon (by default, within 2 minutes).

    The client keeps using the connection until the server closes it, and then connects to a different server. You don't
    have to do anything. The event is emitted once per connection to such a server.

    If you passed a nats-py connection to `JetStream`, use nats-py's ``lame_duck_mode_cb`` instead of this event.

    Attributes:
        url: URL of the server, without user info.
        others: Number of other servers that the client knows, either from ``connect`` or from the cluster. If it is 0,
            the client is offline until the server is back.
    """

    about = "connection"

    url: str = ""
    others: int = 0

    @property
    def severity(self) -> Severity:
        """The severity to log this event with: "info" if the client knows a different server, otherwise "warning"."""
        return "info" if self.others else "warning"

    def _says(self) -> str:
        then = (
            f"the client then connects to {'the other server' if self.others == 1 else f'one of {self.others} others'}"
            if self.others
            else "no other server is known, so that nothing is sent until it is back: connect with several servers"
        )
        return (
            f"the server {self.url} is about to stop, and will close this connection (lame duck mode): {then}"
        )


class ServersChanged(Event, frozen=True, kw_only=True):
    """The cluster has announced a different set of servers that the client may connect to.

    The client uses the new set when it reconnects. The servers passed to ``connect`` are never removed.

    Attributes:
        added: Addresses of new servers, in the form ``host:port``.
        removed: Addresses that the cluster no longer announces.
        known: Number of servers that the client knows now.
    """

    about = "connection"
    _severity = "info"

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    known: int = 0

    def _says(self) -> str:
        changes = [f"{what} {', '.join(map(str, names))}" for what, names in self._changes() if names]
        return f"the servers of the cluster have changed: {'; '.join(changes)}; {self.known} are known"

    def _changes(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("new", self.added), ("gone", self.removed)]


class PermissionDenied(Event, frozen=True, kw_only=True):
    """The server doesn't allow this user to publish or subscribe to a subject.

    To fix this, change the user's permissions in the server's configuration. Until then, the server keeps rejecting the
    operation.

    If the acknowledgements of a consumer are rejected, this event is emitted only once per connection, and workers
    count the affected messages as ``unsettled``.

    Attributes:
        operation: "publish" or "subscribe".
        subject: The subject, as reported by the server.
        needed: The subject that the user needs permission for, if it differs from ``subject``. Otherwise "".
    """

    about = "connection"

    operation: str
    subject: str
    needed: str = ""

    def _says(self) -> str:
        text = f"the server denies this user to {self.operation} to {self.subject!r}"
        if not self.needed:
            return text
        return (
            f"{text}: messages are handled, but stay unacked, and are delivered again after ack_wait; allow the user "
            f"to publish to {self.needed!r}"
        )

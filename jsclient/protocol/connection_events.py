"""The events about the connection to a server."""

from __future__ import annotations

from .event_base import Event, Severity

__all__ = ["Disconnected", "LameDuck", "PermissionDenied", "Reconnected", "ServersChanged"]


class Disconnected(Event, frozen=True, kw_only=True):
    """The connection to the server was lost. Reconnecting continues until the connection is closed."""

    about = "connection"

    reason: str = ""

    def _says(self) -> str:
        return f"the connection was lost{f': {self.reason}' if self.reason else ''}; reconnecting"


class Reconnected(Event, frozen=True, kw_only=True):
    """The connection was restored and its subscriptions renewed. ``url`` is shown without user info."""

    about = "connection"

    url: str = ""

    def _says(self) -> str:
        return f"reconnected{f' to {self.url}' if self.url else ''}"


class LameDuck(Event, frozen=True, kw_only=True):
    """The server is about to stop (lame duck mode): it will close this connection soon, within 2 minutes by default.

    The event is reported once for each connection to such a server. ``url`` is its URL, without user info. ``others``
    is the number of other servers that the client knows, from ``connect`` or from the cluster. The client uses this
    connection until the server closes it, and then connects to another server. If the connection belongs to the
    program, nats-py's ``lame_duck_mode_cb`` reports it. Source: nats-server server.go (``lameDuckMode``).
    """

    about = "connection"

    url: str = ""
    others: int = 0

    @property
    def severity(self) -> Severity:
        """The severity: "info" if the client knows another server, otherwise "warning"."""
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
    """The servers that the client may connect to have changed: the server has announced others (INFO).

    ``added`` and ``removed`` are addresses, ``host:port``. ``known`` is the number of servers now, including the
    servers passed to ``connect``, which always remain.
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
    """The server refused a publish or a subscription of this user.

    ``needed`` is the subject for which the user needs permission, if it is not ``subject`` itself. Refused acks of a
    consumer are reported once for each connection, and a worker counts their messages as ``unsettled``.
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

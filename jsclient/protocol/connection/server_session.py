"""What the server has announced on a connection: its limits, the other servers, and whether it is about to stop."""

from __future__ import annotations

from ..connection_events import LameDuck, ServersChanged
from ..event_base import Event
from .pool import ServerPool
from .server_info import ServerInfo, read_info
from .urls import shown

__all__ = ["DEFAULT_MAX_PAYLOAD", "ServerSession"]

DEFAULT_MAX_PAYLOAD = 1024 * 1024


class ServerSession:
    """The state of a connection to one server, as the server announces it.

    Attributes:
        info: The newest INFO.
        max_payload: The maximum number of bytes of headers and payload. It may change with an INFO.
    """

    def __init__(self, info: ServerInfo, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        self.info: ServerInfo = info
        self.max_payload: int = info.max_payload or max_payload
        self._leaving = False

    def receive_info(self, body: bytes, pool: ServerPool) -> list[Event]:
        """Process an INFO, and return the events to report.

        Raises:
            ProtocolError: The INFO is malformed.
        """
        self.info = info = read_info(body)
        self.max_payload = info.max_payload or self.max_payload
        events = self.take_servers(info, pool)
        if info.ldm and not self._leaving:
            self._leaving = True
            current = pool.current
            events.append(LameDuck(url=shown(current.url) if current else "", others=pool.others()))
        return events

    def take_servers(self, info: ServerInfo, pool: ServerPool) -> list[Event]:
        """Add the servers that an INFO announces to the pool. Return the event to report if the pool has changed."""
        added, removed = pool.announce(info)
        if not added and not removed:
            return []
        return [ServersChanged(added=added, removed=removed, known=len(pool.servers))]

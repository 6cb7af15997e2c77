"""A bounded write buffer: the commands of one turn of the event loop are one write."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from ...protocol.wire.frames import Frame

__all__ = ["Outbox"]

HIGH_WATER = 2 * 1024 * 1024  # bytes waiting to be sent above which a publish waits
CHUNK = 64 * 1024  # bytes that are written before the turn ends: the server can start, and copies stay small


class TransportOwner(Protocol):
    """nats-py's client: it replaces its transport at each reconnect."""

    @property
    def _transport(self) -> Any: ...


class Outbox:
    """Collects commands and writes them to the current transport of ``owner``, None while disconnected.

    A caller that writes thousands of commands in a turn may add to ``commands`` and ``size`` itself while
    ``scheduled``.
    """

    def __init__(self, owner: TransportOwner) -> None:
        self._owner = owner
        self.commands: list[bytes] = []
        self.size: int = 0
        self._backlog = 0  # bytes that the transport had not sent when it was last checked
        self.scheduled: bool = False  # something was written in this turn of the loop
        self.answered: bool = True  # bytes were read since the last immediate write

    def write(self, command: bytes) -> None:
        """Write a command together with the others of this turn of the loop."""
        self.commands.append(command)
        self.size += len(command)
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        elif self.size > CHUNK:
            self._send()

    def write_frames(self, frames: list[Frame]) -> None:
        """As `write`: publish each frame, which has a reply."""
        self.write(
            b"".join(
                [
                    b"HPUB %b %b %d %d\r\n%b%b\r\n"
                    % (to, reply, len(head), len(head) + len(body), head, body)
                    if head
                    else b"PUB %b %b %d\r\n%b\r\n" % (to, reply, len(body), body)
                    for to, reply, head, body in frames
                ]
            )
        )

    def write_now(self, command: bytes) -> None:
        """As `write`, but at once if the buffer is empty: for a request whose sender waits for the reply.

        Only once until bytes are read, so that a thousand senders still share their writes.
        """
        transport = self._owner._transport
        if self.commands or not self.answered or transport is None:
            self.write(command)
            return
        self.answered = False
        transport.write(command)
        self._look()

    def write_if_room(self, command: bytes) -> bool:
        """As `write`, unless the buffer is full. In one call, since it runs once per message."""
        if self.size + self._backlog > HIGH_WATER:
            return False
        self.commands.append(command)
        self.size += len(command)
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Write the collected commands now."""
        self.scheduled = False
        self._send()

    def _send(self) -> None:
        if not self.commands:
            return
        data = b"".join(self.commands)
        self.clear()
        transport = self._owner._transport
        if transport is not None:
            transport.write(data)
            self._look()

    def clear(self) -> None:
        """Discard the collected commands: they must not be sent on another connection."""
        self.commands.clear()
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether more bytes wait than `HIGH_WATER`."""
        if self.size + self._backlog <= HIGH_WATER:
            return False
        self._look()
        return self.size + self._backlog > HIGH_WATER

    def _look(self) -> None:
        writer = getattr(self._owner._transport, "_io_writer", None)
        self._backlog = 0 if writer is None else writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Write, and wait until most of it is sent. Raises OSError if the connection is lost."""
        self.flush()
        transport = self._owner._transport
        if transport is not None:
            await transport.drain()

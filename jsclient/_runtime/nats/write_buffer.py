"""What is to be written: one write for all that comes together in a turn of the event loop, and a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...protocol.wire.frames import Frame

__all__ = ["Outbox"]

HIGH_WATER = 2 * 1024 * 1024  # bytes waiting to be sent above which a publish waits
CHUNK = 64 * 1024  # bytes that are written before the turn ends: the server can begin, and copies stay small


class Outbox:
    """Collects commands and writes them to the transport of the moment.

    ``transport`` gives nats-py's transport, or None while there is none. Whoever writes thousands of commands in a turn
    may add to ``commands`` and ``size`` itself while ``scheduled``.
    """

    def __init__(self, transport: Callable[[], Any]) -> None:
        self._transport = transport
        self.commands: list[bytes] = []
        self.size = 0
        self._backlog = 0  # bytes that the transport had not sent when it was last looked at
        self.scheduled = False  # something was written in this turn of the loop
        self.answered = True  # something was read since `write_now` last wrote at once

    def write(self, command: bytes) -> None:
        """Send it with what else comes in this turn of the loop."""
        self.commands.append(command)
        self.size += len(command)
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        elif self.size > CHUNK:
            self._send()

    def write_frames(self, frames: list[Frame]) -> None:
        """As `write`: a publish of each frame, which has a reply."""
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
        """As `write`, but at once where nothing else waits: for a request whose sender does nothing until the answer.

        Once only until something is read, so that a thousand senders share their writes all the same.
        """
        transport = self._transport()
        if self.commands or not self.answered or transport is None:
            self.write(command)
            return
        self.answered = False
        transport.write(command)
        self._look()

    def write_if_room(self, command: bytes) -> bool:
        """As `write`, unless more waits than should. In one step, for it is called once a message."""
        if self.size + self._backlog > HIGH_WATER:
            return False
        self.commands.append(command)
        self.size += len(command)
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)
        return True

    def flush(self) -> None:
        """Send what was collected now."""
        self.scheduled = False
        self._send()

    def _send(self) -> None:
        if not self.commands:
            return
        data = b"".join(self.commands)
        self.clear()
        transport = self._transport()
        if transport is not None:
            transport.write(data)
            self._look()

    def clear(self) -> None:
        """Forget what was collected: it is not to be sent on another connection."""
        self.commands.clear()
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether more waits to be sent than should."""
        if self.size + self._backlog <= HIGH_WATER:
            return False
        self._look()
        return self.size + self._backlog > HIGH_WATER

    def _look(self) -> None:
        writer = getattr(self._transport(), "_io_writer", None)
        self._backlog = 0 if writer is None else writer.transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Send, and wait until the other side has taken most of it. Raises OSError when the connection is lost."""
        self.flush()
        transport = self._transport()
        if transport is not None:
            await transport.drain()

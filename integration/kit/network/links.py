"""One connection through a proxy: two sides and a pipe each way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from integration.kit.network.wire import TO_CLIENT, TO_SERVER, Direction, Frame, FrameParser

_QUEUE_LIMIT = 64 << 20
_QUEUE_LIMIT_SLOW = 64 << 10
_TICK = 0.02


@dataclass(slots=True)
class Conditions:
    """How the network is in one direction, for all connections of a proxy."""

    delay: float = 0.0
    rate: float | None = None
    lossy: bool = False
    flips: int = 0
    """So many of the next pieces get one wrong byte each."""
    breaks: int = 0
    """So many connections end in the middle of their next piece."""
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.flowing.set()

    @property
    def clear(self) -> bool:
        return not self.delay and self.rate is None and self.flowing.is_set()


class Pipe:
    """The bytes of one connection in one direction."""

    def __init__(
        self,
        link: Link,
        direction: Direction,
        conditions: Conditions,
        on_frames: Callable[[list[Frame], Link], bytes] | None,
    ) -> None:
        self._link = link
        self._direction = direction
        self._conditions = conditions
        self._parser = FrameParser(direction, link.number) if on_frames else None
        self._on_frames = on_frames
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._queued = 0
        self._pump_task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._reading = True
        self._ended = False
        self._connected = asyncio.Event()
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.lost = False
        """Bytes were swallowed, so nothing after them may pass: TCP never skips."""
        self.passed = 0

    @property
    def dead(self) -> bool:
        """Whether nothing passes any more."""
        return self.lost or self._ended

    def feed(self, data: bytes) -> None:
        """Take bytes that came from the source."""
        if self._conditions.lossy:
            self.lost = True
        if self._parser is not None and self._on_frames is not None:
            frames = self._parser.feed(data, time.monotonic())
            data = self._on_frames(frames, self._link)
        if data:
            self.write(data)

    def connect(self, sink: asyncio.Transport) -> None:
        """Send to this transport from now on, first what came before there was one."""
        self.sink = sink
        self._connected.set()

    def write(self, data: bytes) -> bool:
        """Send bytes to the sink, as fast as the conditions let. False when the link is down."""
        if self.dead or (self.sink is not None and self.sink.is_closing()):
            return False
        if self.sink is None:  # uvloop reads once although reading is paused in `connection_made`
            self._enqueue(data)
            return True
        if self._conditions.flips:
            self._conditions.flips -= 1
            data = with_wrong_byte(data)
        if self._conditions.breaks:
            self._conditions.breaks -= 1
            self.sink.write(data[: len(data) // 2])
            self._link.end_after_sending(self._direction)
            return False
        self.passed += len(data)
        if self._conditions.clear and not self._queue:
            self.sink.write(data)
        else:
            self._enqueue(data)
        return True

    def end(self) -> None:
        """Close the sink after what is on the way, unless that can no longer arrive."""
        if self._ended:
            return
        self._ended = True
        if self.lost or self._conditions.lossy or self.sink is None:
            return
        if self._conditions.clear and not self._queue:
            self.sink.close()
        else:
            self._enqueue(None)

    def update_reading(self) -> None:
        """Read from the source only while there is somewhere to put it."""
        limit = _QUEUE_LIMIT if self._conditions.rate is None else _QUEUE_LIMIT_SLOW
        expected = (
            self.sink is not None
            and self._conditions.flowing.is_set()
            and (self._room.is_set() or self.lost)
            and self._queued < limit
        )
        if self.source is None or self.source.is_closing() or expected == self._reading:
            return
        self._reading = expected
        if expected:
            self.source.resume_reading()
        else:
            self.source.pause_reading()

    def set_room(self, room: bool) -> None:
        """Note whether the sink's buffer has room."""
        if room:
            self._room.set()
        else:
            self._room.clear()
        self.update_reading()

    async def stop(self) -> None:
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)

    def _enqueue(self, data: bytes | None) -> None:
        self._queue.append((asyncio.get_running_loop().time() + self._conditions.delay, data))
        self._queued += len(data or b"")
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = asyncio.create_task(self._pump(), name=f"proxy-pump-{self._link.number}")
        self.update_reading()

    async def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        await self._connected.wait()
        while self._queue:
            due, data = self._queue[0]
            await self._conditions.flowing.wait()
            # conditions may change during the sleep, so the first item is looked at again
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
                continue
            self._queue.popleft()
            if data is None:
                break
            self._queued -= len(data)
            await self._send_at_rate(data)
            self.update_reading()
        if self._ended and self.sink is not None and not self.lost:
            self.sink.close()

    async def _send_at_rate(self, data: bytes) -> None:
        while data:
            rate = self._conditions.rate
            piece = data if rate is None else data[: max(1, int(rate * _TICK))]
            data = data[len(piece) :]
            await self._conditions.flowing.wait()
            await self._room.wait()
            if self.lost or self._conditions.lossy or self.sink is None or self.sink.is_closing():
                self.lost = True
                self._queue.clear()
                return
            self.sink.write(piece)
            if rate is not None:
                await asyncio.sleep(len(piece) / rate)


class Link:
    """One connection, from the client through the proxy to the server."""

    def __init__(
        self,
        number: int,
        conditions: dict[Direction, Conditions],
        on_frames: Callable[[list[Frame], Link], bytes] | None,
    ) -> None:
        self.number = number
        self.pipes = {d: Pipe(self, d, conditions[d], on_frames) for d in Direction}
        self.subs: dict[str, Frame] = {}
        """Live subscriptions of the client, by sid, when frames are read."""
        self.client = Side(self, TO_SERVER)
        self.server = Side(self, TO_CLIENT)

    @property
    def open(self) -> bool:
        """Whether both sides still stand."""
        return self.client.up and self.server.up

    def cut(self) -> None:
        """End both sides with a reset."""
        for side in (self.client, self.server):
            reset(side.transport)

    def close(self) -> None:
        """End both sides with FIN."""
        for side in (self.client, self.server):
            if side.transport is not None:
                side.transport.close()

    def half_open(self) -> None:
        """Let the server see the end of the connection and the client nothing at all."""
        for pipe in self.pipes.values():
            pipe.lost = True
            pipe.update_reading()
        if self.server.transport is not None:
            self.server.transport.close()

    def end_after_sending(self, direction: Direction) -> None:
        """End the receiving side after the bytes on the way, the other one at once."""
        self.pipes[direction].end()
        reset((self.client if direction == TO_SERVER else self.server).transport)

    async def abort(self) -> None:
        for pipe in self.pipes.values():
            await pipe.stop()
        for side in (self.client, self.server):
            if side.transport is not None:
                side.transport.abort()
                await side.gone.wait()


class Side(asyncio.Protocol):
    """One end of a link. Its bytes travel in `direction`."""

    def __init__(self, link: Link, direction: Direction) -> None:
        self._link = link
        self._outgoing = link.pipes[direction]
        self._incoming = link.pipes[TO_SERVER if direction == TO_CLIENT else TO_CLIENT]
        self.transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()

    @property
    def up(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one only by its methods
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._outgoing.source = transport
        self._incoming.connect(transport)
        self._outgoing.update_reading()
        self._incoming.update_reading()

    def data_received(self, data: bytes) -> None:
        self._outgoing.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._outgoing.end()

    def pause_writing(self) -> None:
        self._incoming.set_room(False)

    def resume_writing(self) -> None:
        self._incoming.set_room(True)


def with_wrong_byte(data: bytes) -> bytes:
    """The same bytes, except for the byte in the middle."""
    middle = len(data) // 2
    return b"%b%c%b" % (data[:middle], data[middle] ^ 0x55, data[middle + 1 :])


def reset(transport: asyncio.Transport | None) -> None:
    """Close so that the peer sees RST and not FIN."""
    if transport is None:
        return
    # A transport that is closing may have closed its socket already. uvloop's then has none, or a negative descriptor.
    with contextlib.suppress(OSError, ValueError):
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()

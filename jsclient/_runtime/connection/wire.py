"""Cuts the received bytes of a connection into batches of frames, and collects commands into writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

from ...errors import ProtocolError, WrongLoopError
from ...protocol.wire.frames import Frame, Sink
from .frame_runs import RunReader
from .speedups import chosen

__all__ = ["READ_SIZE", "FrameReader", "Host", "Outbox"]

MAX_CONTROL_LINE = 64 * 1024

_HEADROOM = 64 * 1024  # bytes over max_payload that a frame may have

MAX_ANSWER = 64 * 1024 * 1024  # maximum number of bytes of an API answer, even over max_payload


class Host(Protocol):
    """Receives lines and frames that do not belong to a sink."""

    def on_line(self, line: bytes) -> None:
        """Process a control line other than MSG and HMSG, without CR LF."""

    def on_other(self, sid: bytes, frame: Frame) -> None:
        """Process a frame of a subscription without a sink."""

    def on_sink_error(self, error: Exception) -> None:
        """Report that a sink raised, which is a bug. Reading continues."""


class FrameReader:
    """Cuts the byte stream of one connection into frames."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.sinks: dict[bytes, Sink] = {}
        self._compiled = chosen().scan
        self.max_payload = 1024 * 1024
        self.bytes_read = 0
        self.messages_read = 0
        self.large: set[bytes] = set()  # sids of the subscriptions that receive API answers
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0  # bytes needed before the next scan
        self._runs = RunReader()

    @property
    def missing(self) -> int:
        """The number of bytes that a partial frame still needs. Zero or less if the number is unknown."""
        return self._need - self._have if self._parts else 0

    def reset(self) -> None:
        """Drop the partial frame, because a new connection begins."""
        self._parts, self._have, self._need = [], 0, 0

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the connection.

        Raises:
            ProtocolError: The bytes are not NATS protocol, or announce a frame over the limit.
        """
        self.bytes_read += len(data)
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self.reset()
        offset = self._scan(data)
        if offset < len(data):
            tail = data[offset:]
            self._parts, self._have = [tail], len(tail)

    def _scan(self, data: bytes) -> int:  # noqa: C901  one loop: a call per frame would cost more than all else
        """Read all complete frames. Returns the offset of the first partial frame."""
        pos, size, find = 0, len(data), data.find
        batch: list[Frame] = []
        batch_sid = b""
        sinks = self.sinks
        try:
            pos, batch, batch_sid = self._scan_ordinary(data, pos)
            while pos < size:
                end = find(b"\r", pos)
                body = end + 2
                if end < 0 or body > size:
                    if size - pos > MAX_CONTROL_LINE:
                        raise ProtocolError("a control line has no end")
                    self._need = 0
                    return pos
                if data[end + 1] != 10:
                    raise ProtocolError("a control line with CR alone")
                args = data[pos:end].split(b" ")
                if args[0] == b"MSG":
                    if len(args) == 5:
                        _, subject, sid, reply, total_text = args
                    elif len(args) == 4:
                        _, subject, sid, total_text = args
                        reply = b""
                    else:
                        raise ProtocolError("malformed MSG")
                    header_text = b""
                elif args[0] == b"HMSG":
                    if len(args) == 6:
                        _, subject, sid, reply, header_text, total_text = args
                    elif len(args) == 5:
                        _, subject, sid, header_text, total_text = args
                        reply = b""
                    else:
                        raise ProtocolError("malformed HMSG")
                    if (
                        not (header_text.isdigit() and total_text.isdigit())
                        or len(header_text) > len(total_text)
                        or len(total_text) > 12
                        or int(header_text) > int(total_text)
                    ):
                        raise ProtocolError("malformed HMSG")
                else:
                    if batch:
                        self._hand_over(batch_sid, batch)
                        batch = []
                    self._host.on_line(data[pos:end])
                    pos, batch, batch_sid = self._scan_ordinary(data, body)
                    continue
                if not total_text.isdigit():
                    raise ProtocolError("malformed MSG")
                try:
                    after = body + int(total_text)
                except ValueError:  # more than 4,300 digits
                    raise ProtocolError("malformed MSG") from None
                following = after + 2
                if following > size:
                    if after - body > (MAX_ANSWER if sid in self.large else self.max_payload + _HEADROOM):
                        raise ProtocolError(
                            f"a frame of {after - body:,} bytes; the server announced {self.max_payload} at most"
                        )
                    self._need = following - pos
                    return pos
                if data[after] != 13 or data[after + 1] != 10:
                    raise ProtocolError("a payload is longer than announced")
                if header_text:
                    middle = body + int(header_text)
                    frame = (subject, reply, data[body:middle], data[middle:after])
                else:
                    frame = (subject, reply, b"", data[body:after])
                pos = following
                if sid == batch_sid and batch:
                    batch.append(frame)
                    pos = self._run_on(data, pos, args, batch)
                    continue
                if batch:
                    self._hand_over(batch_sid, batch)
                    batch = []
                if sid in sinks:
                    batch, batch_sid = [frame], sid
                else:
                    self._host.on_other(sid, frame)
            return pos
        finally:
            if batch:
                self._hand_over(batch_sid, batch)

    def _run_on(self, data: bytes, pos: int, line: list[bytes], batch: list[Frame]) -> int:
        """Read the complete frames whose lines have the form of ``line``. Return the offset after the last frame.

        This is the faster way for most of the stream. It stops before any other input, including malformed frames, and
        leaves that to `_scan`.
        """
        return self._runs.read_run(data, pos, line, batch)

    def _hand_over(self, sid: bytes, batch: list[Frame]) -> None:
        sink = self.sinks.get(sid)
        if sink is None:
            return  # the subscription has been removed in the meantime
        self.messages_read += len(batch)
        try:
            sink(batch)
        except Exception as error:  # noqa: BLE001  one subscription must not stop the others
            self._host.on_sink_error(error)

    def _scan_ordinary(self, data: bytes, pos: int) -> tuple[int, list[Frame], bytes]:
        """Read frames with the compiled scanner, if there is one, up to other input.

        Returns the offset of that input, and the last batch with its sid. This batch is not handed over yet, because
        the next frames may belong to it.
        """
        if self._compiled is None:
            return pos, [], b""
        runs, pos = self._compiled(data, pos)
        for number, (sid, batch) in enumerate(runs, 1):
            frames = self._refer(sid, batch)
            if number == len(runs):
                return pos, frames, sid
            if frames:
                self._hand_over(sid, frames)
        return pos, [], b""

    def _refer(self, sid: bytes, batch: list[Frame]) -> list[Frame]:
        """Pass frames without a sink to the host, which may add a sink. Returns the other frames."""
        for number, frame in enumerate(batch):
            if sid in self.sinks:
                return batch[number:] if number else batch
            self._host.on_other(sid, frame)
        return []


READ_SIZE = 64 * 1024  # maximum number of bytes to read at once

MOST_UNSENT_PONGS = 1000
"""The number of PONGs that are written while the buffer is full. A server sends a PING every 2 minutes by default."""

HIGH_WATER = 2 * 1024 * 1024  # publishing blocks while at least this many bytes are buffered

# Once this many bytes have been collected, write them without waiting for the end of the event loop's iteration. The
# server can then process them earlier, and less data is copied at once.
CHUNK = 64 * 1024


PIECE = 12 * 1024
"""Bytes of an atomic batch that are written together. The server stores them while the next bytes are prepared."""

# If the commands together have more bytes than this, write large commands separately instead of joining them, which
# saves copying them.
LARGE_WRITE = 256 * 1024


def _joined(commands: list[bytes]) -> Iterator[bytes]:
    """Join commands, except for those of more than `CHUNK` bytes."""
    small: list[bytes] = []
    for command in commands:
        if len(command) <= CHUNK:
            small.append(command)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield command
    if small:
        yield b"".join(small)


class TransportOwner(Protocol):
    """The connection, which replaces its transport at each reconnect."""

    @property
    def transport(self) -> Any: ...


class Outbox:
    """Collects commands and writes them to the current transport of ``owner``, which is None while disconnected.

    While ``scheduled`` is True, a caller may add to ``commands`` and ``size`` directly. `prepare` sets it.
    """

    def __init__(self, owner: TransportOwner) -> None:
        self._owner = owner
        self.commands: list[bytes] = []
        self.size: int = 0
        self.is_up: bool = False  # whether the connection is up, see `Connection.is_connected`
        self.bytes_written: int = 0
        self._unsent_pongs = 0  # number of PONGs written since the buffer was full
        self.backlog: int = 0  # bytes that the transport had not sent when it was last checked
        self.scheduled: bool = False  # whether a command was written in this iteration of the loop
        self.answered: bool = True  # whether bytes were read since the last immediate write
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop of the first write

    def write(self, command: bytes) -> None:
        """Write a command together with the other commands of this iteration of the loop."""
        if not self.scheduled:
            self._schedule()
        self.commands.append(command)
        self.size += len(command)
        if self.size > CHUNK and len(self.commands) > 1:
            self.write_out()

    def prepare(self) -> None:
        """Prepare for a command that the caller adds to ``commands`` and ``size`` itself."""
        if not self.scheduled:
            self._schedule()
        if self.size >= CHUNK:
            self.write_out()

    def write_parts(self, *parts: bytes) -> None:
        """Write a large command like `write`. Its payload is one of the parts, and is not copied."""
        if not self.scheduled:
            self._schedule()
        self.commands += parts
        self.size += sum(map(len, parts))
        if self.size > CHUNK and len(self.commands) > len(parts):
            self.write_out()

    def _schedule(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a plain call, such as `Publisher.send`, while no loop is running
            loop = None
        if loop is None or loop is not self._loop:
            if loop is None or self._loop is not None:
                raise WrongLoopError(
                    "the connection belongs to another event loop (or thread): open one in each event loop, or call "
                    "asyncio.run_coroutine_threadsafe with the loop that opened it, as a plain handler must"
                )
            self._loop = loop
        loop.call_soon(self.flush)
        self.scheduled = True

    def write_frames(self, frames: list[Frame]) -> None:
        """Publish frames that have a reply, like `write`."""
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
        """Write a command at once, after the collected commands. Used for a request whose sender waits for the reply.

        Until bytes are read again, later commands are only collected, so that a thousand senders still share their
        writes.
        """
        transport = self._owner.transport
        if not self.answered or transport is None:
            self.write(command)
            return
        self.answered = False
        if self.commands:
            self.write(command)
            self.write_out()
            return
        self.bytes_written += len(command)
        transport.write(command)
        self._update_backlog()

    def write_if_space(self, command: bytes) -> bool:
        """Write a command like `write`, or return False if the buffer is full.

        The code of `write` is repeated here, because this method is called once per message.
        """
        if self.size + self.backlog > HIGH_WATER:
            return False
        if not self.scheduled:
            self._schedule()
        self.commands.append(command)
        self.size += len(command)
        return True

    def write_pong(self) -> None:
        """Answer a PING, unless the server keeps sending PINGs and does not read."""
        if not self.is_full:
            self._unsent_pongs = 0
        if self._unsent_pongs < MOST_UNSENT_PONGS:
            self._unsent_pongs += 1
            self.write(b"PONG\r\n")

    def flush(self) -> None:
        """Write the collected commands now."""
        self.scheduled = False
        self.write_out()

    def write_out(self) -> None:
        """Write the commands collected so far, before the end of this iteration of the loop."""
        if not self.commands:
            return
        joined = [b"".join(self.commands)] if self.size <= LARGE_WRITE else list(_joined(self.commands))
        transport, size = self._owner.transport, self.size
        self.clear()
        if transport is not None:
            self.bytes_written += size
            for data in joined:
                transport.write(data)
            self._update_backlog()

    def clear(self) -> None:
        """Discard the collected commands, which must not be sent on another connection."""
        self.commands.clear()
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether more than `HIGH_WATER` bytes wait to be sent."""
        if self.size + self.backlog <= HIGH_WATER:
            return False
        self._update_backlog()
        return self.size + self.backlog > HIGH_WATER

    def _update_backlog(self) -> None:
        transport = self._owner.transport
        self.backlog = 0 if transport is None else transport.backlog()

    async def drain(self) -> None:
        """Write, and wait until most bytes are sent. Raises `OSError` if the connection is lost."""
        self.flush()
        transport = self._owner.transport
        if transport is not None:
            await transport.drain()

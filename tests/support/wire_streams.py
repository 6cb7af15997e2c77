"""Byte streams of a connection, whole, odd and damaged, and what a frame reader makes of them.

The sinks and the host end and open subscriptions, change limits and raise, so that the order of the calls matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from jsclient._runtime.connection.speedups import Scan
from jsclient._runtime.connection.wire import MAX_ANSWER, MAX_CONTROL_LINE, FrameReader
from jsclient.errors import ProtocolError

PLAIN = (b"1", b"2", b"12", b"")
RAISES, LEAVES, OPENS, LARGE, LIMITS = b"3", b"4", b"5", b"7", b"8"
OTHER, BREAKS, ADOPTED = b"9", b"10", b"11"  # without a sink
SIDS = (*PLAIN, b"1", b"1", b"2", RAISES, LEAVES, OPENS, b"6", LARGE, LIMITS, OTHER, OTHER, BREAKS, ADOPTED)


class Recorder:
    """A host that keeps a log of every call of its reader, with the state after each piece of input."""

    def __init__(self, scan: Scan | None) -> None:
        self.log: list[tuple[object, ...]] = []
        self.reader = FrameReader(self)
        self.reader._compiled = scan
        self.reader.max_payload = 200
        self.reader.large.add(LARGE)
        for sid in (*PLAIN, RAISES, LEAVES, OPENS, LARGE, LIMITS):
            self.open(sid)

    def open(self, sid: bytes) -> None:
        def sink(frames):
            assert type(frames) is list
            self.log.append(("sink", sid, frames.copy()))
            self.act(sid)

        self.reader.sinks[sid] = sink

    def act(self, sid: bytes) -> None:
        reader = self.reader
        if sid == RAISES:
            raise RuntimeError("a sink raised")
        if sid in {LEAVES, LARGE}:
            reader.large.discard(sid)
            for one in (sid, b"2"):
                reader.sinks.pop(one, None)
        elif sid == OPENS:
            reader.large.add(LARGE)
            for one in (b"2", b"6", LEAVES, LARGE):
                self.open(one)
        elif sid == LIMITS:
            reader.max_payload = 1_000_000 - reader.max_payload

    def on_line(self, line: bytes) -> None:
        self.log.append(("line", line))
        word, _, remainder = line.partition(b" ")
        if word == b"INFO":
            self.reader.max_payload = int(remainder) if remainder.isdigit() and len(remainder) < 10 else 200
        elif word == b"-ERR":
            self.reader.sinks.pop(remainder, None)
        elif word not in {b"+OK", b"PING", b"PONG"}:
            raise ProtocolError(f"unknown protocol: {line!r}")

    def on_other(self, sid: bytes, frame) -> None:
        self.log.append(("other", sid, frame))
        if sid == BREAKS:
            raise ValueError("the host raised")
        if sid == ADOPTED:
            self.open(sid)

    def on_sink_error(self, error: Exception) -> None:
        self.log.append(("sink error", repr(error)))

    def feed(self, pieces: list[bytes]) -> list[tuple[object, ...]]:
        """The log of reading ``pieces``. After an error the next piece begins a new connection."""
        reader = self.reader
        for piece in pieces:
            try:
                reader.feed(piece)
            except (ProtocolError, ValueError) as error:
                self.log.append(("raised", repr(error)))
                reader.reset()
            self.log.append((reader.missing, b"".join(reader._parts)))
        return self.log


PAYLOADS = (
    *(b"", b"x", b"payload", b"\r", b"\n", b"\r\n", b"\n\r", b"\0\xff", b"\r\n\r\n", b" "),
    *(b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n", b"MSG ", b"y" * 150),
)
SUBJECTS = (b"orders.new",) * 8 + (
    b"orders.old",
    b"a",
    b"",
    b"a\nb",
    b"\xff\xfe",
    b"MSG",
    b"a\tb",
    b"s" * 300,
)
REPLIES = (b"$JS.ACK.S.c.1.7.7.1750000000000000000.0",) * 4 + (b"_INBOX.r", b"\n", b"r\0", b"5")
HEADERS = (b"NATS/1.0\r\nA: b\r\n\r\n",) * 4 + (b"NATS/1.0 503\r\n\r\n", b"\r\n", b"N", b"")
LINES = (
    *(
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"INFO 100\r\n",
        b"INFO 900000\r\n",
        b"-ERR 2\r\n",
        b"-ERR 'x'\r\n",
    ),
    *(
        b"\r\n",
        b"MSG\r\n",
        b"MSG \r\n",
        b"HMSG\r\n",
        b"HMSG \r\n",
        b"MSGS a 1 0\r\n\r\n",
        b"msg a 1 0\r\n\r\n",
    ),
    *(b"MSG a 1\r\n", b"MSG a 1 b c 5\r\n", b"MSG a 1 -5\r\n", b"MSG a 1 +1\r\nx\r\n", b"MSG a 1 1_0\r\n"),
    *(b"MSG a 1 \xd9\xa3\r\n", b"MSG a 1 1\rx\r\n", b"MSG a 1 1\nx\r\n", b" MSG a 1 0\r\n\r\n"),
    *(
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 9 5\r\n",
        b"HMSG a 1 012 12\r\n",
        b"HMSG a 1  5\r\n",
        b"PING\n",
        b"P\rING\r\n",
    ),
)
SIZES = (
    *(0, 1, 7, 150, 200, 201, 65_736, 65_737, 70_000, 965_000, 1_100_000, MAX_ANSWER, MAX_ANSWER + 1),
    *(10**12 - 1, 10**12, 2**31, 2**32, 2**63 - 3, 2**63, 2**64 + 1, 10**30),
)
DIGITS = (*(b"%d" % size for size in SIZES), b"1" + b"0" * 700, b"1" + b"0" * 4400)
BYTES = (b"\r", b"\n", b"\r\n", b" ", b"0", b"1", b"9", b"M", b"H", b"\0", b"\xff", b"")


ERRORS = (
    *(
        "unknown protocol",
        "control line has",
        "control line with",
        "malformed MSG",
        "malformed HMSG",
        "a frame of",
    ),
    *("payload is longer", "the host raised"),
)
"""What the errors of these streams say."""


def stream(chance: Random) -> bytes:
    """A stream of a few frames and lines: often well-formed, sometimes odd, sometimes damaged."""
    parts: list[bytes] = []
    odd = chance.random() < 0.5
    for _ in range(chance.randrange(1, 8)):
        pick = chance.random()
        if pick < 0.75:
            sid = chance.choice(SIDS)
            parts += [_frame(chance, sid, odd=odd) for _ in range(chance.choice((1, 1, 1, 2, 3, 6)))]
        elif odd:
            parts.append(chance.choice(LINES))
        else:
            parts.append(chance.choice(LINES[:6]))
    # rarely a line that is longer than the parser accepts, since such a line ends the stream
    if chance.random() < 0.005:
        parts.insert(
            chance.choice((len(parts), len(parts) // 2)), b"z" * (MAX_CONTROL_LINE + chance.choice((0, 1)))
        )
    data = b"".join(parts)
    return _damaged(chance, data) if chance.random() < 0.3 else data


def _frame(chance: Random, sid: bytes, *, odd: bool) -> bytes:
    subject = chance.choice(SUBJECTS) if odd else SUBJECTS[0]
    payload = chance.choice(PAYLOADS)
    words = [b"MSG", subject, sid]
    if chance.random() < 0.6:
        words.append(chance.choice(REPLIES) if odd else REPLIES[0])
    head = b""
    if chance.random() < 0.3:
        words[0], head = b"HMSG", chance.choice(HEADERS)
        words.append(_size(chance, len(head), odd=odd))
    words.append(_size(chance, len(head) + len(payload), odd=odd))
    if odd and chance.random() < 0.03:
        words.insert(chance.randrange(len(words) + 1), chance.choice((b"", b"extra")))
    return b" ".join(words) + b"\r\n" + head + payload + b"\r\n"


def _size(chance: Random, size: int, *, odd: bool) -> bytes:
    if not odd or chance.random() < 0.9:
        return b"%d" % size
    pick = chance.random()
    if pick < 0.4:
        return b"0" * chance.choice((1, 2, 10, 11, 20, 600, 639)) + b"%d" % size
    if pick < 0.7:
        return b"%d" % max(0, size + chance.choice((-2, -1, 1, 2, 60)))
    if pick < 0.95:
        return chance.choice(DIGITS)
    return chance.choice((b"", b"-1", b"+1", b"1_0", b"0x1", b"1.0", b"\xd9\xa3", b"1\0", b"\n1"))


def _damaged(chance: Random, data: bytes) -> bytes:
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(data) + 1)
        kind = chance.random()
        if kind < 0.3:
            data = data[:at] + chance.choice(BYTES) + data[at:]
        elif kind < 0.6:
            data = data[:at] + chance.choice(BYTES) + data[at + 1 :]
        elif kind < 0.8:
            data = data[:at] + data[at + chance.choice((1, 1, 2, 5, 40)) :]
        else:
            begin = chance.randrange(len(data) + 1)
            data = data[:at] + data[begin : begin + chance.choice((1, 3, 20, 90))] + data[at:]
    return data


def splits(chance: Random, data: bytes) -> Iterator[list[bytes]]:
    """The stream whole, cut at a few places, and for some streams in bytes, and in two pieces at every place."""
    yield [data]
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((1, 1, 2, 3, 8))))
    yield [data[a:b] for a, b in pairwise([0, *cuts, len(data)])]
    pick = chance.random()
    if pick < 0.003 and len(data) < 1000:
        yield [data[at : at + 1] for at in range(len(data))]
    elif pick < 0.006 and len(data) < 1000:
        yield from ([data[:at], data[at:]] for at in range(len(data)))


def compare(scan: Scan, seed: int, count: int) -> tuple[int, set[str]]:
    """Read ``count`` streams from ``seed`` on with and without ``scan``.

    Returns how many splits were read, and the kinds of calls and errors that occurred.

    Raises:
        AssertionError: The logs differ. It names the seed and the pieces.
    """
    read, kinds = 0, set()
    for number in range(seed, seed + count):
        chance = Random(number)
        data = stream(chance)
        for pieces in splits(chance, data):
            expected = Recorder(None).feed(pieces)
            actual = Recorder(scan).feed(pieces)
            assert actual == expected, f"seed {number}: {pieces!r}"
            read += 1
            kinds.update(_kind(entry) for entry in expected)
    return read, kinds


def _kind(entry: tuple[object, ...]) -> str:
    if entry[0] == "raised":
        return str(entry[1])[:35]
    return entry[0] if isinstance(entry[0], str) else "state"

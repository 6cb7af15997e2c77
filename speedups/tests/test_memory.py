"""The compiled scanner releases all objects that it creates, also where it stops, and keeps none of its input."""

from __future__ import annotations

import gc
import sys
from random import Random

import pytest
from jsclient_speedups import (
    burst_commands,
    find_header,
    is_ordinary_jsack,
    join_acks,
    ordinary_block,
    publish_command,
    scan,
    split_jsack,
    split_stored,
)

from tests.support import wire_streams

FRAMES = b"".join(
    b"MSG orders.%d %d $JS.ACK.S.c.1.%d.%d.1750000000000000000.0 128\r\n%b\r\n"
    % (number % 3, 10 + number // 40, number, number, b"x" * 128)
    + b"HMSG orders.new 70 16 20\r\nNATS/1.0\r\nA:\r\n\r\nbody\r\n"
    for number in range(250)
)
COUNT = 500  # frames


def blocks_kept(work, rounds: int) -> int:
    """Return the number of memory blocks that ``rounds`` calls leave allocated, after a few calls to warm up."""
    for _ in range(20):
        work()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(rounds):
        work()
    gc.collect()
    return sys.getallocatedblocks() - before


def test_million_frames_leave_nothing():
    assert sum(len(frames) for _, frames in scan(FRAMES)[0]) == COUNT
    assert blocks_kept(lambda: scan(FRAMES), 1_000_000 // COUNT) < 50


def test_stopping_leaves_nothing():
    pieces = [FRAMES[:at] for at in range(900)] + [wire_streams.stream(Random(seed)) for seed in range(2000)]

    def work():
        for piece in pieces:
            scan(piece)

    assert blocks_kept(work, 10) < 50


def test_errors_leave_nothing():
    def work():
        for wrong in (None, bytearray(FRAMES), "text"):
            with pytest.raises(TypeError):
                scan(wrong)
        with pytest.raises(ValueError, match="offset"):
            scan(FRAMES, len(FRAMES) + 1)

    assert blocks_kept(work, 300) < 50


def test_parts_leave_nothing():
    def work():
        assert find_header(b"NATS/1.0\r\nA: \xc3\r\nb: 2\r\n\r\n", "A") == "\ufffd"
        assert find_header(b"NATS/1.0\r\nA: 1\r\n\r\n", "B") is None
        assert is_ordinary_jsack(b"$JS.ACK.S.c.1.7.8.1750000000000000000.0")
        assert split_jsack(b"$JS.ACK.S.c.1.7.8.1750000000000000000.0")[3] == 7
        assert split_jsack(b"$JS.ACK.d\xff.h.S.c.1.7.8.1750000000000000000.0")[7] == "d\udcff"
        assert split_jsack(b"$JS.ACK.S.c.1.7.8.1750000000000000000.x") is None
        for name in ("", "a:", "\ud800", None):
            with pytest.raises(ValueError):  # noqa: PT011
                find_header(b"NATS/1.0\r\n\r\n", name)

    assert blocks_kept(work, 1000) < 50


def test_blocks_leave_nothing():
    def work():
        assert ordinary_block({"A": "1", "Trace-Id": "x" * 50})
        for odd in ({"A": "\ud800"}, {"A": "1", "B": "\u00e9"}, {"A": None}, {"": ""}):
            assert ordinary_block(odd) is None

    assert blocks_kept(work, 1000) < 50


STORED = [
    (
        b"",
        b"",
        b"NATS/1.0\r\nA: %d\r\nNats-Stream: S\r\nNats-Subject: a.%d\r\nNats-Sequence: %d\r\n"
        b"Nats-Time-Stamp: 2026-01-31T12:00:00.5Z\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: %d\r\n\r\n"
        % (seq // 3, seq // 5, seq, seq - 1),
        b"",
    )
    for seq in range(1, 100)
]


def test_stored_messages_leave_nothing():
    def work():
        assert len(split_stored(STORED, 0)[0]) == len(STORED)
        assert split_stored(STORED[1:], 0) == ([], b"")
        with pytest.raises(TypeError):
            split_stored([*STORED, (b"", b"", "text", b"")], 0)

    assert blocks_kept(work, 300) < 50


def test_publishes_leave_nothing():
    acks = [(b"r.%d" % seq, b"", b"", b'{"stream":"S", "seq":%d}' % seq) for seq in range(1, 100)]
    replies = [frame[0] for frame in acks]

    def work():
        reply, command = publish_command(b"orders", b"r.", 1234, b"NATS/1.0\r\n\r\n", b"body")
        assert burst_commands([b"orders"], [reply], [b"NATS/1.0\r\n\r\n"], [b"body"]) == command
        assert join_acks(acks, 0, 99, replies)
        assert not join_acks(acks, 1, 99, replies)
        for wrong in ([b"a"], [b"a", "text"]):
            with pytest.raises((TypeError, ValueError)):
                burst_commands([b"a", b"b"], [b"a", b"b"], [b"a", b"b"], wrong)

    assert blocks_kept(work, 300) < 50


def counts(runs) -> list[int]:
    """Return the reference counts of all parts, except for subjects, which frames share, and for empty parts."""
    found = []
    for run in runs:
        found += [sys.getrefcount(run), sys.getrefcount(run[0]), sys.getrefcount(run[1])]
        for frame in run[1]:
            found.append(sys.getrefcount(frame))
            found += [sys.getrefcount(frame[part]) for part in (1, 2, 3) if frame[part]]
    return found


def copied(part: bytes) -> bytes:
    return bytes(bytearray(part))


def test_reference_counts():
    data = copied(FRAMES)
    before = sys.getrefcount(data)
    runs, _ = scan(data)
    assert sys.getrefcount(data) == before
    alike = [(copied(sid), [tuple(map(copied, frame)) for frame in frames]) for sid, frames in runs]
    assert counts(runs) == counts(alike)

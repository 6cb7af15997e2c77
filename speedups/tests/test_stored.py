"""Stored messages become the same records as in Python, which is the specification, whatever the server sends."""

from __future__ import annotations

from random import Random

import pytest
from jsclient_speedups import split_stored

from jsclient._runtime.connection.speedups import chosen
from jsclient.errors import JetStreamError
from jsclient.protocol.streams.direct_get import DirectBatchTracker
from jsclient.protocol.topics.position import Position
from jsclient.protocol.topics.record_codec import StoredRecords

Frame = tuple[bytes, bytes, bytes, bytes]

OWN = [
    b"",
    b"",
    b"A: 1\r\n",
    b"A: 1\r\nB: 2\r\nA: 3\r\n",
    b"Jsc-Kind: finish\r\n",
    b"Nats-Expected-Last-Subject-Sequence: 4\r\n",
    b"Nats-Expected-Last-Subject-Sequence: x\r\n",
    b"Nats-Sequence: 3\r\n",
    b"A: \xff\xfe\r\n",
    b"\r\n\r\n",
    b"no colon\r\n",
]
TIMES = [
    b"2026-01-31T12:00:00Z",
    b"2026-02-28T23:59:59.999999999Z",
    b"2024-02-29T00:00:00.5Z",
    b"2026-12-31T23:59:59.000000001Z",
    b"1970-01-01T00:00:00Z",
    b"1969-12-31T23:59:59Z",
    b"2026-03-01T01:02:03.123Z",
    b"2100-02-28T01:02:03.1Z",
    b"2026-01-01T24:00:00Z",
    b"2026-13-01T00:00:00Z",
]
BYTES = b"0123456789.:-TZ \r\n+a\xff"


def frame(random: Random, seq: int, before: int, pending: int) -> Frame:
    month, day = random.randrange(1, 13), random.randrange(1, 29)
    stamp = b"%d-%02d-%02dT%02d:%02d:%02d.%dZ" % (
        random.randrange(1970, 2200),
        month,
        day,
        random.randrange(24),
        random.randrange(60),
        random.randrange(60),
        random.randrange(10**9),
    )
    if random.random() < 0.1:
        stamp = random.choice(TIMES)
    lines = [
        b"NATS/1.0\r\n" + (random.choice(OWN) if random.random() < 0.5 else b"") + b"Nats-Stream: S",
        b"Nats-Subject: " + random.choice([b"orders.new", b"orders.new", b"a.\xff", b""]),
        b"Nats-Sequence: %d" % seq,
        b"Nats-Time-Stamp: " + stamp,
        b"Nats-Num-Pending: %d" % pending,
        b"Nats-Last-Sequence: %d" % before,
    ]
    return b"_INBOX.1", b"", b"\r\n".join(lines) + b"\r\n\r\n", b"data %d" % seq


def damaged(random: Random, block: bytes) -> bytes:
    changed = bytearray(block)
    for _ in range(random.randrange(1, 3)):
        index = random.randrange(len(changed))
        match random.randrange(3):
            case 0:
                changed[index] = random.choice(BYTES)
            case 1:
                del changed[index]
            case _:
                changed.insert(index, random.choice(BYTES))
    return bytes(changed)


def answers(random: Random) -> tuple[list[Frame], int]:
    """Return the frames of one answer, sometimes with a gap, damage or an end, and the sequence before them."""
    before = start = random.choice([0, 9, 10**17, random.randrange(10**6), 10**18 - 3])
    frames: list[Frame] = []
    count = random.randrange(9)
    for number in range(count):
        seq = before + random.choice([1, 1, 1, random.randrange(1, 100)])
        frames.append(frame(random, seq, before, count - number))
        before = seq
    if frames and random.random() < 0.5:
        index = random.randrange(len(frames))
        match random.randrange(4):
            case 0:
                del frames[index]
            case 1:
                end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: %d\r\n\r\n" % before
                frames.insert(index, (b"_INBOX.1", b"", end, b""))
            case _:
                to, reply, block, data = frames[index]
                frames[index] = to, reply, damaged(random, block), data
    return frames, start


def outcome(frames: list[Frame], start: int, *, linked: bool, split: object) -> tuple[object, ...]:
    tracker = DirectBatchTracker(None, last_seq=start)
    origin = Position("S", "1", start)
    try:
        records = StoredRecords(tracker, linked=linked, origin=origin, split=split).read_frames(frames)
    except JetStreamError as error:
        return type(error), str(error)
    error = tracker.error
    state = tracker.count, tracker.last_seq, tracker.num_pending, tracker.ending
    return records, state, type(error), str(error)


def test_it_is_in_use():
    assert chosen().split_stored is split_stored


def test_same_records_as_python(block):
    first, count = block
    compiled = 0
    for seed in range(first, first + count):
        random = Random(seed)
        frames, start = answers(random)
        linked = random.random() < 0.5
        expected = outcome(frames, start, linked=linked, split=None)
        assert outcome(frames, start, linked=linked, split=split_stored) == expected, seed
        rows, _ = split_stored(frames, start)
        compiled += len(rows)
    assert compiled > count, "most frames are read by the compiled function"


def test_every_day_of_years():
    before = 0
    frames = []
    for year in (1970, 1999, 2000, 2023, 2024, 2100, 2199):
        for month in range(1, 13):
            for day in range(1, 32):
                lines = (
                    b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: a\r\nNats-Sequence: %d\r\n"
                    b"Nats-Time-Stamp: %d-%02d-%02dT00:00:00Z\r\nNats-Num-Pending: 1\r\n"
                    b"Nats-Last-Sequence: %d\r\n\r\n"
                ) % (before + 1, year, month, day, before)
                one = (b"", b"", lines, b"")
                expected = outcome([one], before, linked=False, split=None)
                assert outcome([one], before, linked=False, split=split_stored) == expected, (
                    year,
                    month,
                    day,
                )
                if day <= (28 if month == 2 else 30 if month in (4, 6, 9, 11) else 31):
                    frames.append(one)
                    before += 1
    assert len(split_stored(frames, 0)[0]) == len(frames)


def test_every_cut_of_a_block():
    (whole,) = [frame(Random(1), 5, 4, 7)]
    for end in range(len(whole[2]) + 1):
        for cut in (whole[2][:end], whole[2][end:]):
            one = [(*whole[:2], cut, whole[3])]
            expected = outcome(one, 4, linked=True, split=None)
            assert outcome(one, 4, linked=True, split=split_stored) == expected, end


def test_equal_parts_are_shared():
    frames = [
        (
            b"",
            b"",
            b"".join([b"NATS/1.0\r\nA: 1\r\nNats-Stream: S\r\nNats-Subject: a.b\r\nNats-Sequence: ", text]),
            b"",
        )
        for text in (
            b"%d\r\nNats-Time-Stamp: 2026-01-31T12:00:00Z\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: %d\r\n\r\n"
            % (number + 1, number)
            for number in range(2)
        )
    ]
    (first, second), pending = split_stored(frames, 0)
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert (first[:3], pending) == ((b"NATS/1.0\r\nA: 1", b"a.b", 1), b"1")


def test_no_frames():
    assert split_stored([], 5) == ([], b"")
    assert split_stored([frame(Random(1), 5, 4, 7)], -1) == ([], b"")
    assert split_stored([frame(Random(1), 5, 4, 7)], 10**18) == ([], b"")


@pytest.mark.parametrize("wrong", [(), None, [1], [(b"a",)], [(b"a", b"b", "c", b"d")]], ids=repr)
def test_other_types_are_errors(wrong):
    with pytest.raises((TypeError, IndexError, SystemError)):
        split_stored(wrong, 0)

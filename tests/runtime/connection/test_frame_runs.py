"""Runs of frames are read like frames that come alone, whatever they contain and wherever they are damaged."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient._runtime.connection import frame_runs
from jsclient._runtime.connection.wire import FrameReader
from jsclient.errors import ProtocolError
from tests.runtime.connection.test_wire import HEADER, Host, hmsg, msg
from tests.support.calls import Calls
from tests.support.examples import examples


class StepByStep(FrameReader):
    """Reads each frame in the general way, which is the specification of the faster one."""

    def _run_on(self, data, pos, line, batch):
        return pos


LENGTHS = (
    b"0",
    b"3",
    b"03",
    b"12",
    b"99999999",
    b"9" * 12,
    b"9" * 5000,
    b"-1",
    b"1_0",
    "\u0661".encode(),
    b"",
)


def damaged(chance: random.Random) -> bytes:
    """A stream of frames, mostly of one subscription and form, damaged at some places."""
    parts = []
    longest = chance.choice([8, 40])
    while len(parts) < 4 * longest:
        sid, replied, headers = (
            chance.choice([b"1", b"1", b"2"]),
            chance.random() < 0.7,
            chance.random() < 0.4,
        )
        payloads = [b"", b"abc", b"x" * 12, b"a\r\nMSG s 1 3\r\nb", b"a\r\nMSG orders.new 1 r 3\r\nabc"]
        payloads += [b"s 1 3\r\nabc", b"r 3\r\nabc", b"\r\n", b"\r"]
        payloads = chance.choice([payloads, payloads[1:2], payloads[:3]])
        subjects = chance.choice([[b"orders.new"], [b"orders.new", b"orders.old"], [b"a", b"orders.new"]])
        for _ in range(chance.randrange(1, longest)):
            payload, subject = chance.choice(payloads), chance.choice(subjects)
            reply = b"$JS.ACK.%d" % len(parts) if replied else b""
            frame = (
                hmsg(sid, HEADER, payload, reply, subject) if headers else msg(sid, payload, subject, reply)
            )
            parts.append(frame)
    for _ in range(chance.choice([0, 0, 1, 2])):
        index = chance.randrange(len(parts))
        frame = parts[index]
        line, end, remainder = frame.partition(b"\r\n")
        words = line.split(b" ")
        where = chance.randrange(len(words))
        # Damage a word of the line, the end of the line, or any byte of the frame.
        words[where] = chance.choice([words[where] + b"\r", words[where] + b"\n", b"", *LENGTHS, b"hmsg"])
        spot = chance.randrange(len(frame))
        parts[index] = chance.choice(
            [
                b" ".join(words) + end + remainder,
                line + chance.choice([b"\n", b"\r", b"\rx", b"\r\r\n", b" \r\n"]) + remainder,
                frame[:spot] + frame[spot + 1 :],
                frame[:spot] + bytes([chance.randrange(256)]) + frame[spot:],
                b"PING\r\n" + frame,
            ]
        )
    return b"".join(parts)


class WithPatterns(FrameReader):
    """Reads every run of frames without a reply with a pattern, not only long runs."""

    def __init__(self, host) -> None:
        super().__init__(host)
        for sid in (b"1", b"2") * 2:
            self._runs.patterns.count_run(sid)


@settings(max_examples=examples(500))
@given(st.randoms(use_true_random=False))
def test_runs_read_as_step_by_step(chance):
    stream = damaged(chance)
    window = chance.choice([100, 2_000, frame_runs._MAX_WINDOW])
    edges = [0, *sorted(chance.randrange(len(stream) + 1) for _ in range(chance.randrange(5))), len(stream)]
    seen = []
    for kind in (FrameReader, WithPatterns, StepByStep):
        host = Host(b"1", b"2")
        host.reader = kind(host)
        host.reader._runs._window = window
        for sid in (b"1", b"2"):
            host.listen(sid)
        try:
            host.feed(*[stream[a:b] for a, b in pairwise(edges)])
        except ProtocolError as error:
            host.errors.append(error)
        seen.append((host.seen, host.batches, [str(error) for error in host.errors]))
    assert seen[0] == seen[2]
    assert seen[1] == seen[2]


def test_run_refuses_what_one_refuses():
    """A header size with more digits than the total size is malformed, also within a run."""
    host = Host(b"1")
    with pytest.raises(ProtocolError, match="malformed HMSG"):
        host.feed(hmsg(b"1", HEADER, b"x") * 3 + b"HMSG a 1 002 3\r\nhhx\r\n")
    assert host.batches == [3]


def test_cached_lengths_are_bounded():
    host = Host(b"1")
    host.feed(b"".join(msg(b"1", b"x" * size) for size in range(5000)))
    assert len(host.seen) == 5000
    assert len(host.reader._runs.lengths) <= host.reader._runs.lengths.CAPACITY


REPLY = b"$JS.ACK.S.c.1.%d.%d.1750000000000000000.0"


@pytest.mark.parametrize("payload", [b"x" * 128, b"a\r\nMSG orders.new 1 r 128\r\n" + b"x" * 100], ids=len)
@pytest.mark.parametrize("headers", [False, True])
def test_frames_of_long_run(payload, headers):
    frames = []
    for number in range(1000):
        reply, data = REPLY % (number, number), payload[number % 7 :]
        frames.append(hmsg(b"1", HEADER, data, reply) if headers else msg(b"1", data, reply=reply))
    host = Host(b"1")
    host.feed(b"".join(frames) + b"PING\r\n")
    header = HEADER if headers else b""
    assert host.seen[:-1] == [
        (b"1", b"orders.new", REPLY % (number, number), header, payload[number % 7 :])
        for number in range(1000)
    ]
    assert host.seen[-1] == ("line", b"PING")


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("keys", [False, True], ids=["one subject", "keys of one length"])
def test_long_run_is_split_at_once(headers, keys, monkeypatch):
    """Only the first frames and the last one are read one by one. Frames of one size need no split."""
    host = Host(b"1")
    steps = []
    step_on = frame_runs.RunReader._step_on

    def counted(self, data, pos, line, batch, most):
        before = len(batch)
        result = step_on(self, data, pos, line, batch, most)
        steps.append(len(batch) - before)
        return result

    monkeypatch.setattr(frame_runs.RunReader, "_step_on", counted)
    subjects = [b"$KV.b.%03d" % number if keys else b"orders.new" for number in range(300)]
    frames = [
        hmsg(b"1", HEADER, b"x", b"r", subject) if headers else msg(b"1", b"x" * 128, subject, b"r")
        for subject in subjects
    ]
    with Calls() as calls:
        host.feed(b"".join(frames))
    assert host.batches == [300]
    assert [frame[1] for frame in host.seen] == subjects
    assert sum(steps) <= 10
    assert calls.each(300) < 0.2, calls
    assert not [name for name in calls.by_name if name.endswith("RunReader._frames_of")], calls


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("index", [0, 1, 150, 298, 299])
@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.replace(b" 1 ", b" 2 ", 1),
        lambda frame: frame.replace(b"orders", b"0rders", 1),
        lambda frame: frame.replace(b"orders", b"or ers", 1),
        lambda frame: frame.replace(b"orders", b"or\rers", 1),
        lambda frame: frame.replace(b"orders", b"order", 1).replace(b"$JS", b"$JSS", 1),
        lambda frame: frame.replace(b"$JS", b"$ S", 1),
        lambda frame: frame.replace(b"$JS", b"$\rS", 1),
        lambda frame: frame.replace(b"128\r", b"127\r", 1).replace(b"152\r", b"151\r", 1),
        lambda frame: frame.replace(b"128\r\n", b"0128\r\n", 1),
        lambda frame: frame[:-2] + b"\r\r",
        lambda frame: frame[:-5] + b"\r\nabc\r\n",
        lambda frame: frame[:-1],
        lambda frame: frame[:-2] + b"x\r\n",
        lambda frame: b"PING\r\n" + frame,
    ],
)
@pytest.mark.parametrize("keys", [False, True], ids=["one subject", "keys of one length"])
def test_one_other_frame_in_run_of_one_size(change, index, headers, keys):
    """Whatever the other frame is, the run is read like step by step."""
    seen = []
    for kind in (FrameReader, StepByStep):
        host = Host(b"1", b"2")
        host.reader = kind(host)
        host.reader._compiled = None
        host.reader._runs._window = frame_runs._MAX_WINDOW
        for sid in (b"1", b"2"):
            host.listen(sid)
        # All frames have one size, because the numbers have the same number of digits.
        frames = []
        for number in range(1000, 1300):
            subject, reply = b"orders.%d" % number if keys else b"orders.new", REPLY % (number, number)
            frames.append(
                hmsg(b"1", HEADER, b"x" * 128, reply, subject)
                if headers
                else msg(b"1", b"x" * 128, subject, reply)
            )
        frames[index] = change(frames[index])
        try:
            host.feed(b"".join(frames))
        except ProtocolError as error:
            host.errors.append(error)
        seen.append((host.seen, host.batches, [str(error) for error in host.errors]))
    assert seen[0] == seen[1]


def test_alternating_runs_split_little_in_vain(monkeypatch):
    """Data that belongs to other subscriptions is split at most in a small window for each run."""
    pieces = []
    frames_of = frame_runs.RunReader._frames_of

    def counted(self, all_pieces, line):
        pieces.append(len(all_pieces))
        return frames_of(self, all_pieces, line)

    monkeypatch.setattr(frame_runs.RunReader, "_frames_of", counted)
    host = Host(b"1", b"2")
    host.feed(b"".join(msg(b"%d" % (1 + number // 12 % 2), b"x" * 128) for number in range(1200)))
    assert host.batches == [12] * 100
    assert sum(pieces) < 1500


@pytest.mark.parametrize("group", [2, 4, 8, 20])
@pytest.mark.parametrize("keys", [False, True], ids=["one subject", "keys of one length"])
def test_interleaved_frames_of_one_size_are_unpacked_little_in_vain(group, keys, monkeypatch):
    """The frames of two subscriptions have one size, and the window has grown over a long run before them."""
    rows = []

    def unpacked(form, data):
        rows.append(len(data) // struct.calcsize(form))
        return iter_unpack(form, data)

    iter_unpack = struct.iter_unpack
    monkeypatch.setattr(frame_runs.struct, "iter_unpack", unpacked)
    host = Host(b"1", b"2")
    host.reader._runs._window = frame_runs._MAX_WINDOW
    host.feed(
        b"".join(
            msg(b"%d" % (1 + number // group % 2), b"x" * 128, b"k%04d" % (number if keys else 0))
            for number in range(1200)
        )
    )
    assert sum(host.batches) == 1200
    assert sum(rows) < 2400


# --- patterns of acks -----------------------------------------------------------------------------------------------


def test_pattern_reads_long_runs(monkeypatch):
    """From the third long run of acks on, one search reads all that comes before other frames."""
    read = []

    def note(reader, *arguments):
        if size := read_frames(reader, *arguments):
            read.append(size)
        return size

    read_frames = frame_runs.PatternReader.read_frames
    monkeypatch.setattr(frame_runs.PatternReader, "read_frames", note)
    host = Host(b"1")
    host.reader._compiled = None
    run = b"".join(msg(b"1", b'{"stream":"S", "seq":%d}' % seq, b"_INBOX.a.%d" % seq) for seq in range(200))
    second = run.index(b"_INBOX.a.1 ") - len(b"MSG ")
    third = run.index(b"_INBOX.a.2 ") - len(b"MSG ")
    host.feed(run, run)
    assert not read
    host.feed(run + msg(b"1", b"a\r\nb") + run[:-1], run[-1:])
    assert read
    assert read[0] in (len(run) - second, len(run) - third)
    assert host.seen[:200] == host.seen[200:400] == host.seen[400:600] == host.seen[601:]
    assert host.seen[600] == (b"1", b"orders.new", b"", b"", b"a\r\nb")


def test_patterns_are_bounded():
    reader = frame_runs.PatternReader({})
    for sid in range(50):
        reader.count_run(b"%d" % sid)
        assert len(reader._patterns) <= reader.CAPACITY

"""Cutting the byte stream into frames: any split, any order, any nonsense. One write a turn of the loop."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient._runtime.connection.wire import (
    HIGH_WATER,
    LARGE_WRITE,
    MAX_ANSWER,
    MAX_CONTROL_LINE,
    FrameReader,
    Outbox,
)
from jsclient.errors import ProtocolError
from tests.support.examples import examples
from tests.support.virtual import virtual


class Host:
    """Notes what comes, in order."""

    def __init__(self, *sids: bytes) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.errors: list[Exception] = []
        self.batches: list[int] = []
        self.reader = FrameReader(self)
        for sid in sids:
            self.listen(sid)

    def listen(self, sid: bytes) -> None:
        def sink(frames):
            self.batches.append(len(frames))
            self.seen += [(sid, *frame) for frame in frames]

        self.reader.sinks[sid] = sink

    def on_line(self, line: bytes) -> None:
        self.seen.append(("line", line))

    def on_other(self, sid: bytes, frame) -> None:
        self.seen.append(("other", sid, *frame))

    def on_sink_error(self, error: Exception) -> None:
        self.errors.append(error)

    def feed(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self.reader.feed(chunk)


def msg(sid: bytes, payload: bytes, subject: bytes = b"orders.new", reply: bytes = b"") -> bytes:
    head = b" ".join(filter(None, [b"MSG", subject, sid, reply, b"%d" % len(payload)]))
    return head + b"\r\n" + payload + b"\r\n"


def hmsg(
    sid: bytes, header: bytes, payload: bytes, reply: bytes = b"", subject: bytes = b"orders.new"
) -> bytes:
    sizes = b"%d %d" % (len(header), len(header) + len(payload))
    head = b" ".join(filter(None, [b"HMSG", subject, sid, reply, sizes]))
    return head + b"\r\n" + header + payload + b"\r\n"


HEADER = b"NATS/1.0\r\nA: b\r\n\r\n"
TRANSCRIPT = b"".join(
    [
        b'INFO {"max_payload": 1048576}\r\n',
        msg(b"1", b"one"),
        msg(b"1", b"", reply=b"$JS.ACK.a"),
        b"PING\r\n",
        hmsg(b"2", HEADER, b"two"),
        msg(b"2", b"with\r\nCRLF\r\nMSG x 1 3\r\n"),
        msg(b"9", b"not ours"),
        hmsg(b"1", HEADER, b"", b"_INBOX.r"),
        b"+OK\r\n-ERR 'Unknown'\r\n",
        msg(b"1", b"\xff\xfe", subject=b"\xff\xfe.\xe9"),
    ]
)
WANTED = [
    ("line", b'INFO {"max_payload": 1048576}'),
    (b"1", b"orders.new", b"", b"", b"one"),
    (b"1", b"orders.new", b"$JS.ACK.a", b"", b""),
    ("line", b"PING"),
    (b"2", b"orders.new", b"", HEADER, b"two"),
    (b"2", b"orders.new", b"", b"", b"with\r\nCRLF\r\nMSG x 1 3\r\n"),
    ("other", b"9", b"orders.new", b"", b"", b"not ours"),
    (b"1", b"orders.new", b"_INBOX.r", HEADER, b""),
    ("line", b"+OK"),
    ("line", b"-ERR 'Unknown'"),
    (b"1", b"\xff\xfe.\xe9", b"", b"", b"\xff\xfe"),
]


def test_a_transcript_in_one_piece():
    host = Host(b"1", b"2")
    host.feed(TRANSCRIPT)
    assert host.seen == WANTED


def test_a_transcript_byte_by_byte():
    host = Host(b"1", b"2")
    host.feed(*[TRANSCRIPT[index : index + 1] for index in range(len(TRANSCRIPT))])
    assert host.seen == WANTED


def test_transcript_cut_once_at_every_byte():
    for index in range(len(TRANSCRIPT)):
        host = Host(b"1", b"2")
        host.feed(TRANSCRIPT[:index], TRANSCRIPT[index:])
        assert host.seen == WANTED, index


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, len(TRANSCRIPT)), max_size=12).map(sorted))
def test_any_cut_same_frames(cuts):
    host = Host(b"1", b"2")
    edges = [0, *cuts, len(TRANSCRIPT)]
    host.feed(*[TRANSCRIPT[a:b] for a, b in pairwise(edges)])
    assert host.seen == WANTED


@given(
    st.lists(st.tuples(st.sampled_from([b"1", b"2", b"3"]), st.binary(max_size=20)), max_size=40),
    st.randoms(),
)
def test_subscriptions_keep_order(frames, chance):
    stream = b"".join(msg(sid, payload) for sid, payload in frames)
    cuts = sorted(chance.randrange(len(stream) + 1) for _ in range(5))
    edges = [0, *cuts, len(stream)]
    host = Host(b"1", b"2", b"3")
    host.feed(*[stream[a:b] for a, b in pairwise(edges)])
    assert [(sid, payload) for sid, _, _, _, payload in host.seen] == frames


def test_frames_come_in_batch():
    host = Host(b"1", b"2")
    host.feed(msg(b"1", b"a") * 5 + msg(b"2", b"b") * 3 + msg(b"1", b"c"))
    assert host.batches == [5, 3, 1]


# --- what must not stop the reader -----------------------------------------------------------------------------


def test_sink_raises_stops_nothing():
    host = Host(b"2")

    def bad(frames):
        raise RuntimeError("mine")

    host.reader.sinks[b"1"] = bad
    host.feed(msg(b"1", b"a") + msg(b"2", b"b") + msg(b"1", b"c"), msg(b"2", b"d"))
    assert [entry[-1] for entry in host.seen] == [b"b", b"d"]
    assert len(host.errors) == 2


def test_removed_gets_no_more():
    host = Host(b"1")

    def leave(frames):
        del host.reader.sinks[b"1"], host.reader.sinks[b"3"]

    host.reader.sinks[b"3"] = leave
    host.feed(msg(b"3", b"x") + msg(b"1", b"a") + msg(b"3", b"y"))
    assert all(entry[0] == "other" for entry in host.seen)


@pytest.mark.parametrize("subject", [b"\xff\xfe", "ü.α".encode(), b"a" * 5000, b"\x80.\x00"])
def test_subjects_no_utf8_or_very_long_pass(subject):
    host = Host(b"1")
    host.feed(msg(b"1", b"a", subject=subject) + msg(b"1", b"b"))
    assert [entry[1] for entry in host.seen] == [subject, b"orders.new"]


# --- what is no protocol ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1\r\n",
        b"MSG a 1 b c 5\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a 1 +5\r\n",
        b"MSG a 1 5_0\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 \r\n",
        b"MSG a 1 \xd9\xa3\r\n",
        b"MSG a 1 " + b"9" * 400 + b"\r\n",
        b"MSG a 1 1073741824\r\n",
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 9 5\r\n",
        b"HMSG a 1 x 5\r\n",
        b"HMSG a 1 5 x\r\n",
        b"HMSG a 1 " + b"9" * 400 + b" 5\r\n",
        b"MSG a 1 3\r\nabcde\r\n",
    ],
)
def test_nonsense_after_delivery(line):
    host = Host(b"1")
    with pytest.raises(ProtocolError):
        host.feed(msg(b"1", b"good") + line)
    assert host.seen == [(b"1", b"orders.new", b"", b"", b"good")]
    host.reader.reset()
    host.feed(msg(b"1", b"next connection"))
    assert host.seen[-1][-1] == b"next connection"


def test_endless_line_refused():
    host = Host()
    with pytest.raises(ProtocolError, match="no end"):
        host.feed(*[b"x" * 1000] * (MAX_CONTROL_LINE // 1000 + 2))


def test_frame_size_limit():
    host = Host(b"1")
    host.reader.max_payload = 1000
    host.feed(msg(b"1", b"x" * 1000))
    assert len(host.seen) == 1
    with pytest.raises(ProtocolError, match="1000 at most"):
        host.feed(b"MSG a 1 %d\r\n" % (1000 + 65 * 1024))


def test_api_answer_may_be_larger():
    host = Host(b"1", b"2")
    host.reader.max_payload = 1000
    host.reader.large.add(b"2")
    answer = msg(b"2", b"x" * 200_000)
    host.feed(*[answer[at : at + 4096] for at in range(0, len(answer), 4096)])
    assert len(host.seen) == 1
    with pytest.raises(ProtocolError, match="1000 at most"):
        host.feed(b"MSG a 1 200000\r\n")
    host.reader.reset()
    with pytest.raises(ProtocolError, match="1000 at most"):
        host.feed(b"MSG a 2 %d\r\n" % (MAX_ANSWER + 1))


def test_new_connection_forgets_frame_cut():
    host = Host(b"1")
    host.feed(msg(b"1", b"lost")[:-4])
    host.reader.reset()
    host.feed(msg(b"1", b"new"))
    assert [entry[-1] for entry in host.seen] == [b"new"]


# --- time ------------------------------------------------------------------------------------------------------


def spent(chunks: list[bytes]) -> float:
    host = Host(b"1")
    host.reader.max_payload = 64 * 1024 * 1024
    started = time.process_time()
    host.feed(*chunks)
    return time.process_time() - started


def test_huge_message_joined_once():
    """Joined at each chunk it would be 512 × 8 MiB to copy: seconds. Once is milliseconds."""
    chunk = 16 * 1024
    body = msg(b"1", b"x" * (8 * 1024 * 1024))
    pieces = [body[at : at + chunk] for at in range(0, len(body), chunk)]
    host = Host(b"1")
    host.reader.max_payload = 64 * 1024 * 1024
    joins = []
    scan = host.reader._scan

    def counted(data):
        joins.append(len(data))
        return scan(data)

    host.reader._scan = counted
    host.feed(*pieces)
    assert len(host.seen) == 1
    assert sum(joins) <= 2 * len(body) + 4 * chunk


@pytest.mark.parametrize(
    "make",
    [
        lambda n: [msg(b"1", b"x" * 10) * n],
        lambda n: [msg(b"1", b"x" * 10)] * n,
        lambda n: [hmsg(b"1", b"NATS/1.0\r\n" + b"A: b\r\n" * n + b"\r\n", b"")],
        lambda n: [b"PING\r\n" * n],
        lambda n: [msg(b"1", b"\r\n" * n)],
    ],
    ids=["one chunk", "many chunks", "headers", "lines", "newlines"],
)
def test_time_is_linear(make):
    """Ten times the input may take ten times as long. The bound is generous, a quadratic reader takes a hundred."""
    small, large = make(1000), make(10_000)
    spent(small)
    assert min(spent(large) for _ in range(5)) < 40 * max(min(spent(small) for _ in range(3)), 1e-4)


def test_random_bytes_only_errors():
    chance = random.Random(1)
    words = [
        b"MSG ",
        b"HMSG ",
        b"a ",
        b"1 ",
        b"5",
        b"\r\n",
        b" ",
        b"PING\r\n",
        b"\x00",
        b"\xff",
        msg(b"1", b"ok"),
    ]
    broken = 0
    for _ in range(3000):
        host = Host(b"1")
        try:
            for _ in range(3):
                host.reader.feed(b"".join(chance.choices(words, k=8)))
        except ProtocolError:
            broken += 1
        assert not host.errors
    assert broken > 100


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def backlog(self) -> int:
        return self.unsent

    async def drain(self) -> None:
        self.unsent = 0


@virtual
async def test_comes_in_one_turn_one_write():
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=transport))
    for number in range(3):
        out.write(b"%d" % number)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"012"]


@virtual
async def test_requests_written_together():
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=transport))
    for number in range(4):
        out.write_now(b"%d" % number)
    assert transport.writes == [b"0"]
    await asyncio.sleep(0)
    assert transport.writes == [b"0", b"123"]
    out.write_now(b"4")
    assert transport.writes == [b"0", b"123"], "nothing was read: more may come"
    await asyncio.sleep(0)
    out.answered = True
    out.write_now(b"5")
    assert transport.writes == [b"0", b"123", b"4", b"5"]


@virtual
async def test_request_keeps_write_order():
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=transport))
    out.write(b"a")
    out.write_now(b"b")
    await asyncio.sleep(0)
    assert transport.writes == [b"ab"]


@virtual
async def test_request_takes_waiting_commands_along():
    """At once and in one write, if bytes were read since the last request. Otherwise at the end of the iteration."""
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=transport))
    out.write(b"a")
    out.write_now(b"b")
    assert transport.writes == [b"ab"]
    out.write(b"c")
    out.write_now(b"d")
    assert transport.writes == [b"ab"]
    await asyncio.sleep(0)
    assert transport.writes == [b"ab", b"cd"]
    assert out.bytes_written == 4


@virtual
async def test_large_payload_is_not_copied():
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=transport))
    payload = bytes(LARGE_WRITE)
    out.write(b"a")
    out.write(b"b")
    out.write_parts(b"PUB ", payload, b"\r\n")
    assert transport.writes == [b"abPUB ", payload, b"\r\n"]
    assert transport.writes[1] is payload


@virtual
async def test_large_command_among_small_ones():
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=transport))
    large = bytes(LARGE_WRITE)
    for command in (b"a", large, b"b", b"c"):
        assert out.write_if_space(command)
    await asyncio.sleep(0)
    assert transport.writes == [b"a", large, b"bc"]
    assert transport.writes[1] is large


@virtual
async def test_full_buffer_blocks():
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=transport))
    assert out.write_if_space(b"x" * (HIGH_WATER + 1))
    assert not out.write_if_space(b"y")
    assert out.is_full
    transport.unsent = HIGH_WATER + 1
    out.flush()
    assert out.is_full
    assert not out.write_if_space(b"y")
    await out.drain()
    assert not out.is_full
    assert out.write_if_space(b"y")


@virtual
async def test_no_write_to_next_connection():
    transport = Transport()
    out = Outbox(SimpleNamespace(transport=None))
    out.write(b"a")
    out.clear()
    out.transport = lambda: transport
    await asyncio.sleep(0)
    assert transport.writes == []

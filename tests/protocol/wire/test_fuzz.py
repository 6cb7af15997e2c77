"""Every parser of external input, on generated and damaged inputs: only the documented errors.

100,000 inputs per target by default, from a fixed seed. ``JSCLIENT_FUZZ`` sets another number, and then the seed is
taken from the clock and printed if an input fails.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient._runtime.connection.wire import FrameReader
from jsclient.errors import ApiError, JetStreamError, NotJetStreamMessageError, ProtocolError
from jsclient.protocol.consumers.ack import Metadata, read_jsack, sequences
from jsclient.protocol.consumers.monitors import GapTracker
from jsclient.protocol.consumers.ordered import OrderedTracker
from jsclient.protocol.consumers.push import PushTracker
from jsclient.protocol.consumers.status import classify
from jsclient.protocol.models.consumer import ConsumerInfo
from jsclient.protocol.models.publish import PubAck, read_pub_ack
from jsclient.protocol.wire.api import read_response
from jsclient.protocol.wire.codec import from_wire
from jsclient.protocol.wire.frames import is_control, is_data
from jsclient.protocol.wire.headers import Headers, inline_status, parse_headers

ROUNDS = int(os.environ.get("JSCLIENT_FUZZ", "100000"))
SEED = 15 if "JSCLIENT_FUZZ" not in os.environ else time.time_ns()

ACK = b"$JS.ACK.ORDERS.worker.1.22.20.1700000000123456789.7"
ACK2 = b"$JS.ACK.hub.aHash.ORDERS.worker.1.22.20.1700000000123456789.7"
BEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 20\r\nNats-Last-Stream: 22\r\n\r\n"
STALLED = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: $JS.FC.ORDERS.worker.a1\r\n\r\n"
FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
GONE = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
PUB_ACK = b'{"stream":"ORDERS","seq":7,"duplicate":true,"domain":"hub"}'
REFUSED = b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'
INFO = (
    b'{"type":"io.nats.jetstream.api.v1.consumer_info_response","stream_name":"ORDERS","name":"worker",'
    b'"created":"2026-01-01T00:00:00.123456789Z","config":{"ack_policy":"explicit","ack_wait":30000000000,'
    b'"deliver_policy":"all","filter_subject":"orders.>","backoff":[1000000000],"metadata":{"a":"b"}},'
    b'"delivered":{"consumer_seq":1,"stream_seq":2},"num_pending":3,"push_bound":true}'
)
WIRE = (
    b"MSG orders.new 1 " + ACK + b" 5\r\nhello\r\nPING\r\nHMSG orders.new 1 81 81\r\n" + BEAT + b"\r\n+OK\r\n"
)

PIECES = [
    b"", b"\r\n", b"\r", b"\n", b"\x00", b" ", b".", b"..", b":", b"\xff\xfe", b"\xd9\xa3", b"-1", b"+1", b"1_0",
    b"9" * 400, b"18446744073709551616", b"null", b"[]", b"{}", b'"', b"\\ud800", b"1e999", b"NaN", b"true",
    b"NATS/1.0", b"0x1", b"$JS.ACK.", b"*", b">", b"\xed\xa0\x80", b"[" * 300, b'{"a":' * 50, b"MSG ", b"HMSG ",
    b"A" * 5000,
]  # fmt: skip


def damaged(chance: random.Random, sample: bytes) -> bytes:
    """A sample with some of its bytes cut, doubled, changed, or replaced."""
    out = bytearray(sample)
    for _ in range(chance.randrange(4)):
        start = chance.randrange(len(out) + 1)
        end = min(len(out), start + chance.choice([0, 1, 1, 2, 8, 60]))
        kind = chance.randrange(5)
        if kind == 0:
            out[start:end] = chance.choice(PIECES)
        elif kind == 1:
            del out[start:end]
        # repeat a part
        elif kind == 2:
            out[start:start] = out[start:end]
        elif kind == 3 and start < len(out):
            out[start] = chance.randrange(256)
        else:
            out[start:end] = chance.randbytes(end - start)
    return bytes(out)


def fuzz(target: Callable[[bytes], object], *samples: bytes, rounds: int = ROUNDS) -> int:
    """Feed damaged samples. How many a documented error refused. Any other error fails and shows the input."""
    chance, refused = random.Random(SEED), 0
    for number in range(rounds):
        data = damaged(chance, samples[number % len(samples)])
        try:
            target(data)
        except (ProtocolError, ApiError, NotJetStreamMessageError) as error:
            refused += bool(str(error))
        except Exception as error:
            raise AssertionError(f"seed {SEED}, input {number}: {data!r}") from error
    return refused


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


@pytest.mark.covers("J66")
def test_jsack_readers_agree():
    def target(data):
        try:
            metadata = read_jsack(data)
        except NotJetStreamMessageError:
            with pytest.raises(NotJetStreamMessageError):
                sequences(data)
            raise
        assert sequences(data) == (
            metadata.stream_seq,
            metadata.consumer_seq,
            metadata.timestamp_ns,
            metadata.num_pending,
        )
        assert isinstance(metadata, Metadata)
        assert 0 <= metadata.num_pending < 2**64
        assert metadata.timestamp

    assert fuzz(target, ACK, ACK2, ACK2 + b".x.y") > ROUNDS // 10


def test_any_header_block_is_read():
    def target(data):
        status, headers = parse_headers(data)
        assert isinstance(headers, Headers)
        assert inline_status(data) == (status.code if status else 0)
        if status is not None:
            assert classify(status.code, status.description)

    assert fuzz(target, BEAT, STALLED, FLOW, GONE, b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n") == 0


def test_api_answer_or_error():
    assert fuzz(lambda data: dict(read_response(data)), REFUSED, INFO, PUB_ACK) > ROUNDS // 10


def test_consumer_info_or_error():
    refused = fuzz(lambda data: from_wire(ConsumerInfo, read_response(data)).config, INFO, rounds=ROUNDS // 2)
    assert refused > ROUNDS // 20


def test_pub_ack_or_error():
    def target(data):
        assert isinstance(read_pub_ack(data), PubAck)

    assert fuzz(target, PUB_ACK, REFUSED) > ROUNDS // 10


class FuzzHost:
    def on_line(self, line):
        pass

    def on_other(self, sid, frame):
        pass

    def on_sink_error(self, error):
        raise AssertionError("a sink raised") from error


def test_wire_gives_frames_or_protocol_error():
    chance = random.Random(SEED)

    def target(data):
        reader = FrameReader(FuzzHost())
        reader.max_payload = 10_000
        frames = []
        reader.sinks[b"1"] = frames.extend

        cut = chance.randrange(len(data) + 1)
        reader.feed(data[:cut])
        reader.feed(data[cut:])
        for frame in frames:
            assert len(frame) == 4
            assert len(frame[3]) <= 10_000 + 64 * 1024

    assert fuzz(target, WIRE, rounds=ROUNDS // 4) > 0


@pytest.mark.covers("J81")
@pytest.mark.parametrize("kind", [PushTracker, OrderedTracker])
def test_tracker_takes_any_frames(kind):
    chance = random.Random(SEED)
    heads = [BEAT, STALLED, FLOW, GONE, b""]
    tracker = kind("ORDERS", "worker", 50, 100_000, gaps=GapTracker() if kind is PushTracker else None)

    def target(data):
        frame = (
            b"orders.new",
            chance.choice([data, ACK, ACK2, b""]),
            damaged(chance, chance.choice(heads)),
            b"",
        )
        tracker.receive([frame], 0.0)
        assert tracker.pending <= 50
        # the runtime would create another consumer now
        if kind is OrderedTracker and tracker.cursor.wants is not None:
            tracker.recreated("again", tracker.cursor.last_stream_seq, 0.0)
        if chance.random() < 0.5:
            taken, _ = tracker.take_frame()
            if taken is not None:
                assert is_data(taken)
                sequences(taken[1])

    def any_of_ours(data):
        try:
            target(data)
        except JetStreamError as error:
            raise ProtocolError(str(error)) from error

    fuzz(any_of_ours, ACK, ACK2, b"$JS.FC.ORDERS.worker.a1", rounds=ROUNDS // 2)


@given(st.binary(max_size=300))
def test_random_bytes_do_no_harm_anywhere(data):
    for target in (
        lambda: read_jsack(data),
        lambda: sequences(data),
        lambda: parse_headers(data),
        lambda: read_response(data),
        lambda: read_pub_ack(data),
        lambda: is_control((data, data, data, b"")),
    ):
        try:
            target()
        except (ProtocolError, ApiError, NotJetStreamMessageError):
            pass


@pytest.mark.parametrize(
    ("target", "make"),
    [
        (sequences, lambda n: b"$JS.ACK." + b"a." * n),
        (sequences, lambda n: ACK2 + b".a" * n + b"."),
        (sequences, lambda n: b"$JS.ACK.S.C." + b"1" * n),
        (parse_headers, lambda n: b"NATS/1.0\r\n" + b"A: b\r\n" * n),
        (parse_headers, lambda n: b"NATS/1.0 100 " + b" " * n),
        (
            parse_headers,
            lambda n: b"NATS/1.0\r\n" + b"".join(b"H%d: b\r\n" % i for i in range(n)),
        ),
        (read_response, lambda n: b"[" * n),
        (read_response, lambda n: b'{"a":"' + b"x" * n + b'"}'),
    ],
)
def test_time_is_linear(target, make):
    """Ten times the input in at most forty times the time: a quadratic parser takes a hundred."""

    def spent(data: bytes) -> float:
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            try:
                target(data)
            except (ProtocolError, ApiError, NotJetStreamMessageError):
                pass
            best = min(best, time.process_time() - started)
        return best

    small, large = make(2000), make(20_000)
    assert spent(large) < 40 * max(spent(small), 1e-4)

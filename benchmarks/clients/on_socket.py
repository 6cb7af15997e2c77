"""The limit: a blocking socket that implements only a part of the protocol, and parses as little as possible.

It counts messages by the consumer sequence in the last control line that it has read. So its rate is the rate at which
the server can deliver or store messages on this machine.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from benchmarks.job import Job, Meter, payload
from benchmarks.pacer import paced
from benchmarks.partner import BEGIN, CREDIT, MORE
from benchmarks.wire import JSACK, Wire, acks, message, publish_many, sequence

VERSION = ""

_REPLY = re.compile(rb"(\$JS\.ACK\.\S+) [\d ]+\r\n")
_AT_ONCE = 1_000  # core messages that are sent at once
_EXPIRES = 30_000_000_000  # ns


def _deliver(wire: Wire, number: int) -> str:
    """Subscribe to a subject to which no consumer of another run delivers."""
    subject = f"deliver.{os.getpid()}.{number}"
    wire.send(f"SUB {subject} 1\r\n".encode())
    return subject


def _consumer(job: Job, **config: Any) -> None:
    """Create a push consumer, on a separate connection, because the server may deliver before it answers."""
    with Wire.of(job) as wire:
        wire.call(
            f"$JS.API.CONSUMER.CREATE.{job.stream}",
            {"stream_name": job.stream, "config": {"ack_policy": "none", "max_deliver": 1, **config}},
        )


def _pull(job: Job, consumer: str, batch: int) -> bytes:
    body = json.dumps({"batch": batch, "expires": _EXPIRES}).encode()
    return b"PUB $JS.API.CONSUMER.MSG.NEXT.%b.%b pull %d\r\n%b\r\n" % (
        job.stream.encode(),
        consumer.encode(),
        len(body),
        body,
    )


def _push(job: Job, meter: Meter) -> None:
    for number, part in enumerate(meter.parts()):
        with Wire.of(job) as wire:
            subject = _deliver(wire, number)
            _consumer(
                job,
                deliver_subject=subject,
                deliver_policy="by_start_sequence",
                opt_start_seq=part.start,
            )
            last = seen = 0
            while seen < part.count:
                stream_seq, consumer_seq = wire.count()
                if consumer_seq:
                    last, seen = stream_seq, consumer_seq
            part.done(seen, last)


def _fetch(job: Job, meter: Meter) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB pull 1\r\n")
        for part in meter.parts():
            request = _pull(job, part.consumer, job.batch)
            last = seen = 0
            for goal in range(job.batch, part.count + 1, job.batch):
                wire.send(request)
                while seen < goal:
                    stream_seq, consumer_seq = wire.count()
                    if consumer_seq:
                        last, seen = stream_seq, consumer_seq
            part.done(seen, last)


def _messages(job: Job, meter: Meter) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB pull 1\r\n")
        for part in meter.parts():
            half = max(1, job.window // 2)
            # Two requests are open at a time, so that the server never waits for the next request.
            request = _pull(job, part.consumer, half)
            wire.send(request + request)
            seen, requests, remainder = 0, 2 * half, b""
            reply = b""
            while seen < part.count:
                data = remainder + wire.read()
                replies = _REPLY.findall(data)
                # A read may end in the middle of a frame: keep it until the frame is complete.
                if not replies:
                    remainder = data
                    continue
                reply = replies[-1]
                remainder = data[data.rindex(reply) + len(reply) :]
                seen += len(replies)
                out = b"PUB " + b" 4\r\n+ACK\r\nPUB ".join(replies) + b" 4\r\n+ACK\r\n"
                # Send the next request when half of the window remains, as a client with a buffer would.
                while requests - seen <= half and requests < part.count:
                    out += request
                    requests += half
                wire.send(out)
            part.done(seen, int(reply.split(b".")[5]))


def _next(job: Job, meter: Meter) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB pull 1\r\n")
        for part in meter.parts():
            request = _pull(job, part.consumer, 1)
            last = seen = 0
            while seen < part.count:
                began = time.perf_counter_ns()
                wire.send(request)
                goal = seen + 1
                while seen < goal:
                    stream_seq, consumer_seq = wire.count()
                    if consumer_seq:
                        last, seen = stream_seq, consumer_seq
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(seen, last)


def _publisher(job: Job, meter: Meter) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB acks 1\r\n")
        for part in meter.parts():
            last = publish_many(wire, job, part.count)
            part.done(part.count, last)


def _publish(job: Job, meter: Meter) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB acks 1\r\n")
        one = message(job, b"acks")
        for part in meter.parts():
            data = b""
            for _ in range(part.count):
                began = time.perf_counter_ns()
                wire.send(one)
                data = wire.read()
                while not acks(data):
                    data += wire.read()
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(part.count, sequence(data))


def _batches(job: Job, meter: Meter) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB acks 1\r\n")
        batch = _batch(job)
        for number, part in enumerate(meter.parts()):
            goal, sent, stored, tail = part.count // job.batch, 0, 0, b""
            while stored < goal:
                while sent < goal and sent - stored < job.window:
                    wire.send(batch.replace(_BATCH, b"%08d.%07d" % (number, sent)))
                    sent += 1
                data = wire.read()
                stored += acks(data)
                tail = (tail + data)[-400:]  # more than an ack
            part.done(stored * job.batch, sequence(tail))


def _batch(job: Job) -> bytes:
    """Return the messages of an atomic batch with the id `_BATCH`. The server answers the last message."""
    data, parts = payload(job), []
    for number in range(1, job.batch + 1):
        reply, commit = (b"acks ", b"Nats-Batch-Commit: 1\r\n") if number == job.batch else (b"", b"")
        block = b"NATS/1.0\r\nNats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n%b\r\n" % (
            _BATCH,
            number,
            commit,
        )
        head = b"HPUB %b %b%d %d\r\n" % (job.subject.encode(), reply, len(block), len(block) + len(data))
        parts += [head, block, data, b"\r\n"]
    return b"".join(parts)


_BATCH = b"-" * 16
_STAMP = re.compile(rb"\r\n(\d{19})")


def _end_to_end(job: Job, meter: Meter) -> None:
    for number, part in enumerate(meter.parts()):
        with Wire.of(job) as wire:
            subject = _deliver(wire, number)
            _consumer(job, deliver_subject=subject, deliver_policy="new")
            with paced(job, part.count):
                part.begin(0)
                seen, data, control = 0, b"", b""
                while seen < part.count:
                    data += wire.read()
                    now = time.monotonic_ns()
                    end = 0
                    for match in _STAMP.finditer(data):
                        part.latencies.append(now - int(match[1]))
                        seen += 1
                        control, end = data[end : match.start()], match.end()
                    data = data[end:]
                part.done(seen, int(control[control.rindex(JSACK) :].split(b".")[5]))


def _core_publish(job: Job, meter: Meter) -> None:
    data = payload(job)
    one = b"PUB %b %d\r\n%b\r\n" % (job.subject.encode(), len(data), data)
    with Wire.of(job) as wire:
        for part in meter.parts():
            for start in range(0, part.count, _AT_ONCE):
                wire.send(one * min(_AT_ONCE, part.count - start))
            wire.send(b"PING\r\n")
            while b"PONG\r\n" not in wire.read():
                pass
            part.done(part.count, part.last)


def _core_subscribe(job: Job, meter: Meter) -> None:
    data = payload(job)
    frame = len(b"MSG %b 1 %d\r\n%b\r\n" % (job.subject.encode(), len(data), data))
    with Wire.of(job) as wire:
        wire.send(b"SUB %b 1\r\n" % job.subject.encode())
        for part in meter.parts():
            count = b"%d" % part.count
            wire.send(b"PUB %b %d\r\n%b\r\n" % (BEGIN.encode(), len(count), count))
            received = credited = 0
            while received < part.count * frame:
                received += len(wire.read())
                if received // (frame * CREDIT) > credited:
                    credited += 1
                    wire.send(b"PUB %b 0\r\n\r\n" % MORE.encode())
            part.done(received // frame, part.last)


WORKS = {
    "core-publish": _core_publish,
    "core-subscribe": _core_subscribe,
    "ordered": _push,
    "callback": _push,
    "messages": _messages,
    "fetch": _fetch,
    "publisher": _publisher,
    "send": _publisher,
    "publish-many": _publisher,
    "publish": _publish,
    "batches": _batches,
    "next": _next,
    "end-to-end": _end_to_end,
}

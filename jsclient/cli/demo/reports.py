"""What a worker process and the one that started it say to each other, over the worker's standard input and output.

A worker digests a batch, sends a `Report`, waits for the `Verdict`, and acks only then. Whatever was acked has been
counted, therefore; and if the worker dies before, the messages are delivered again, and known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import msgspec

from .flights import Flight
from .tally import Row, Tally

__all__ = ["FromWorker", "Ready", "Report", "Setup", "ToWorker", "Verdict", "digest", "frame", "read_frame"]


class Setup(msgspec.Struct, tag=True, array_like=True):
    """The first word to a worker. Not on its command line: URLs may hold a password."""

    servers: list[str]
    name: str
    stream: str
    subject: str
    group: str
    ack_wait: float  # seconds
    max_ack_pending: int


class Ready(msgspec.Struct, tag=True, array_like=True):
    """The worker is subscribed."""


class Report(msgspec.Struct, tag=True, array_like=True):
    """What a batch comes to."""

    sequences: list[int]  # stream sequences, each once; their flights are in `rows`
    redelivered: list[int]  # those seen in the batch with num_delivered over 1
    rows: list[Row]


class Verdict(msgspec.Struct, tag=True, array_like=True):
    """The answer to a report. Nothing in `known`: it was counted. Else nothing was: send it again without these."""

    known: list[int]


FromWorker: TypeAlias = Ready | Report
ToWorker: TypeAlias = Setup | Verdict

Delivery: TypeAlias = tuple[int, int, bytes]
"""Stream sequence, num_delivered, payload."""

_decode_flight: Callable[[bytes], Flight] = msgspec.json.Decoder(Flight).decode


def digest(deliveries: Iterable[Delivery], known: AbstractSet[int] = frozenset()) -> Report:
    """Process a batch, leaving out what is known and what comes a second time in it.

    Raises:
        msgspec.MsgspecError: A payload is no flight.
    """
    seen = set(known)
    sequences: list[int] = []
    redelivered: list[int] = []
    tally = Tally()
    for sequence, delivered, payload in deliveries:
        if delivered > 1:
            redelivered.append(sequence)
        if sequence not in seen:
            seen.add(sequence)
            sequences.append(sequence)
            tally.add(_decode_flight(payload))
    return Report(sequences, redelivered, tally.rows())


def frame(message: msgspec.Struct) -> bytes:
    """A message for the pipe."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read_frame(pipe: asyncio.StreamReader) -> bytes | None:
    """The next message of the pipe; None when the other side is gone, also in the middle of one."""
    try:
        return await pipe.readexactly(int.from_bytes(await pipe.readexactly(4), "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

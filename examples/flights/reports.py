"""The messages between a worker process and its parent, over the worker's standard input and output.

A worker digests a batch, sends a `Report`, waits for the `ReportAnswer`, and then acks. So every acked message is
counted. If the worker dies before the ack, the messages are redelivered, and the ledger recognizes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import msgspec

from .flights import Flight, FlightSums, Row

__all__ = [
    "FromWorker",
    "Ready",
    "Report",
    "ReportAnswer",
    "ToWorker",
    "WorkerSetup",
    "digest",
    "frame",
    "read_frame",
]


class WorkerSetup(msgspec.Struct, tag=True, array_like=True):
    """The first message to a worker. It is not on the command line, because URLs can contain a password."""

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
    """The result of a batch."""

    sequences: list[int]  # stream sequences of the flights in `rows`, each once
    redelivered: list[int]  # sequences in the batch with num_delivered over 1
    rows: list[Row]


class ReportAnswer(msgspec.Struct, tag=True, array_like=True):
    """The answer to a report. If `known` is empty, the report was counted. Otherwise send it again without these."""

    known: list[int]


FromWorker: TypeAlias = Ready | Report
ToWorker: TypeAlias = WorkerSetup | ReportAnswer

Delivery: TypeAlias = tuple[int, int, bytes]
"""Stream sequence, num_delivered, payload."""

_decode_flight: Callable[[bytes], Flight] = msgspec.json.Decoder(Flight).decode


def digest(deliveries: Iterable[Delivery], known: AbstractSet[int] = frozenset()) -> Report:
    """Process a batch without the known sequences, and each sequence once.

    Raises:
        msgspec.MsgspecError: A payload is not a valid flight.
    """
    seen = set(known)
    sequences: list[int] = []
    redelivered: list[int] = []
    tally = FlightSums()
    for sequence, delivered, payload in deliveries:
        if delivered > 1:
            redelivered.append(sequence)
        if sequence not in seen:
            seen.add(sequence)
            sequences.append(sequence)
            tally.add(_decode_flight(payload))
    return Report(sequences, redelivered, tally.rows())


def frame(message: msgspec.Struct) -> bytes:
    """Encode a message for the pipe, with its length."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read_frame(pipe: asyncio.StreamReader) -> bytes | None:
    """Read the next message from the pipe. Returns None if the other side has closed it, even within a message."""
    try:
        return await pipe.readexactly(int.from_bytes(await pipe.readexactly(4), "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None

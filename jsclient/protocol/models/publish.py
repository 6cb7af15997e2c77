"""Acknowledgements of published messages. Source: ADR-22, ADR-50; nats-server server/stream.go (PubAck)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

import msgspec

from ...errors import ApiError, ProtocolError
from ..wire.api import read_response
from ..wire.codec import WireStruct, from_wire

__all__ = ["AckRun", "PubAck", "read_ack_run", "read_pub_ack"]

_IN_PROCESS = 10158
MAX_SEQUENCE: Final = 2**64 - 1


class PubAck(WireStruct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A stream's acknowledgement that it has stored a published message. Returned by `JetStream.publish`.

    Attributes:
        stream: Name of the stream that stored the message.
        seq: Stream sequence of the message. For a batch, the stream sequence of its last message.
        duplicate: Whether the stream had already stored a message with the same ID. ``seq`` is then the sequence of the
            earlier message, and this message wasn't stored.
        domain: JetStream domain, or None if there is none.
        val: New value of the counter as a string, if the message added to a counter. Otherwise None.
        batch: ID of the committed batch, if the message was part of a batch. Otherwise None.
        count: Number of messages in the committed batch. Otherwise None.
    """

    required: ClassVar[frozenset[str]] = frozenset({"stream", "seq"})
    envelope: ClassVar[frozenset[str]] = frozenset({"type"})

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    domain: str | None = None
    val: str | None = None
    batch: str | None = None
    count: int | None = None


quick_pub_ack: Callable[[bytes], PubAck] = msgspec.json.Decoder(PubAck).decode
"""A fast path of `read_pub_ack`. If it raises, or the ack lacks a stream or a valid sequence or has ``extra`` fields,
call `read_pub_ack`."""

quick_pub_acks: Callable[[bytes], list[PubAck]] = msgspec.json.Decoder(list[PubAck]).decode
"""The fast path for a JSON array of acks."""


class AckRun(NamedTuple):
    """The acks of a run of messages that one stream has stored, none of which is a duplicate."""

    stream: str
    sequences: list[int]


_numbers: Callable[[bytes], list[int]] = msgspec.json.Decoder(list[int]).decode
_SEQUENCE = b'"seq":'


def read_ack_run(texts: bytes, count: int) -> AckRun | None:
    """Read a JSON array of acks, each of which begins with its only brace. Return None unless the acks are a run.

    The texts of a run differ only in their sequences, so an array of numbers is read. An object for each ack would
    cost ten times as much.
    """
    end = texts.find(_SEQUENCE) + len(_SEQUENCE)
    begin = texts[1:end]
    try:
        first = quick_pub_ack(begin + b"1}")
        numbers = _numbers(b"[%b]" % texts[end:-2].replace(b"}," + begin, b","))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not first.stream or first.duplicate or first.extra or texts[-2:] != b"}]" or len(numbers) != count:
        return None
    return AckRun(first.stream, numbers) if 0 < min(numbers) <= max(numbers) <= MAX_SEQUENCE else None


def read_pub_ack(data: bytes) -> PubAck:
    """Return the acknowledgement in ``data``.

    Raises:
        ApiError: The server refused the message, or is still storing another message of the same id.
        ProtocolError: The answer is not an acknowledgement.
    """
    try:
        ack = quick_pub_ack(data)
        if 0 < ack.seq <= MAX_SEQUENCE and ack.stream and not ack.extra:
            return ack
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # an error, an unknown field or a malformed answer, which the slow path distinguishes
    ack = from_wire(PubAck, read_response(data))
    if ack.duplicate and not ack.seq:
        # While the first message with an id is still being stored, clusters before 2.11 acknowledge a duplicate with
        # sequence 0. Raise the error with which later versions refuse the duplicate.
        raise ApiError.from_fields(409, _IN_PROCESS, "duplicate message id is in process")
    if not (0 < ack.seq <= MAX_SEQUENCE and ack.stream):
        raise ProtocolError(f"a publish was acknowledged by stream {ack.stream!r} with sequence {ack.seq}")
    return ack

"""The answer to a publish. Source: ADR-22, ADR-50; nats-server server/stream.go (PubAck)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from ...errors import ApiError
from ..wire.api import read_response
from ..wire.codec import WireStruct, from_wire

__all__ = ["PubAck", "read_pub_ack"]

_IN_PROCESS = 10158


class PubAck(WireStruct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A message is stored.

    Attributes:
        stream: Where.
        seq: Its stream sequence; of a batch, that of its last message.
        duplicate: A message with this id was stored before, as ``seq``; this one was not stored.
        domain: The JetStream domain.
        val: The counter's new value, as text.
        batch: The id of the batch that was committed.
        count: Messages in that batch.
    """

    required: ClassVar = frozenset({"stream", "seq"})
    envelope: ClassVar = frozenset({"type"})

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    domain: str | None = None
    val: str | None = None
    batch: str | None = None
    count: int | None = None


quick_pub_ack = msgspec.json.Decoder(PubAck).decode
"""As `read_pub_ack`, for what is most likely an acknowledgement: what it raises, or gives without stream, without
sequence or with ``extra`` fields, is for `read_pub_ack` to judge."""


def read_pub_ack(data: bytes) -> PubAck:
    """The acknowledgement in ``data``.

    Raises:
        ApiError: The server refused the message, or is still storing another one of the same id.
        ProtocolError: It is no acknowledgement.
    """
    try:
        ack = quick_pub_ack(data)
        if ack.seq and ack.stream and not ack.extra:
            return ack
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # an error, a field that is not known here, or nonsense: the long way says which
    ack = from_wire(PubAck, read_response(data))
    if ack.duplicate and not ack.seq:
        # So said a cluster before 2.11.
        raise ApiError.from_fields(409, _IN_PROCESS, "duplicate message id is in process")
    return ack

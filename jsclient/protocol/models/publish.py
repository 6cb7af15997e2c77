"""The answer to a publish. Source: ADR-22, ADR-50; nats-server server/stream.go (PubAck)."""

from __future__ import annotations

from typing import ClassVar

from ..api import read_response
from ..codec import Model, from_wire

__all__ = ["PubAck", "read_pub_ack"]


class PubAck(Model, frozen=True, kw_only=True):
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


def read_pub_ack(data: bytes) -> PubAck:
    """The acknowledgement in ``data``.

    Raises:
        ApiError: The server refused the message.
        ProtocolError: It is no acknowledgement.
    """
    return from_wire(PubAck, read_response(data))

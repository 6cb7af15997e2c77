"""The counters of a connection."""

from __future__ import annotations

import msgspec

__all__ = ["ConnectionStats"]


class ConnectionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a connection since it was opened, and what waits at this moment.

    Attributes:
        messages_received: Messages and control messages of subscriptions, with the answers to requests.
        bytes_received: All bytes of the protocol that were read.
        bytes_sent: All bytes of the protocol that were written. Over a connection of nats-py: of payloads only.
        reconnects: How often the connection was restored.
        subscriptions: NATS subscriptions at this moment, with that for the answers to requests.
        bytes_waiting: Bytes that are written and not sent yet.
        unconfirmed_acks: Acks of which it is unknown whether the server has read them.
    """

    messages_received: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    reconnects: int = 0
    subscriptions: int = 0
    bytes_waiting: int = 0
    unconfirmed_acks: int = 0

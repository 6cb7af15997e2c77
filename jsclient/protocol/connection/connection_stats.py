"""The counters of a connection."""

from __future__ import annotations

import msgspec

__all__ = ["ConnectionStats"]


class ConnectionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a connection since it was opened, and the data that waits at this moment.

    Attributes:
        messages_received: Messages and control messages of subscriptions, including answers to requests.
        bytes_received: All bytes of the protocol that were read.
        bytes_sent: All bytes of the protocol that were written. For a nats-py connection, it counts only payloads.
        reconnects: The number of times that the connection was restored.
        subscriptions: NATS subscriptions at this moment, including the subscription for answers to requests.
        bytes_waiting: Bytes that are written but not sent yet.
        unconfirmed_acks: Acks that the server may not have read yet.
    """

    messages_received: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    reconnects: int = 0
    subscriptions: int = 0
    bytes_waiting: int = 0
    unconfirmed_acks: int = 0

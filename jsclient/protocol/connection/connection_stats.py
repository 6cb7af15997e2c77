"""The counters of a connection."""

from __future__ import annotations

import msgspec

__all__ = ["ConnectionStats"]


class ConnectionStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a connection since it was opened. Returned by `JetStream.stats`.

    Attributes:
        messages_received: Number of messages received by subscriptions, including responses to requests and control
            messages such as heartbeats.
        bytes_received: Number of bytes received, including the overhead of the protocol. For a nats-py connection, only
            payloads are counted.
        bytes_sent: Number of bytes sent, counted in the same way.
        reconnects: Number of times that the connection was restored after it had been lost.
        subscriptions: Number of NATS subscriptions at this moment, including the one that receives responses to
            requests. For a nats-py connection, only the subscriptions of this client are counted.
        bytes_waiting: Number of bytes in the write buffer, which haven't been sent yet. If it keeps growing, the
            application publishes faster than the network allows.
        unconfirmed_acks: Number of acks that the server may not have received yet. If the connection is lost, the event
            `AcksLost` reports them. Always 0 for a nats-py connection, which doesn't track acks.
    """

    messages_received: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    reconnects: int = 0
    subscriptions: int = 0
    bytes_waiting: int = 0
    unconfirmed_acks: int = 0

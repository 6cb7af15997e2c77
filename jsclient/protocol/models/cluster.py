"""Placement of a stream or consumer in a cluster.

Source: nats-server server/stream.go (ClusterInfo, PeerInfo).
"""

from __future__ import annotations

from typing import Any

from ..wire.codec import Model, Seconds, Time

__all__ = ["ClusterInfo", "PeerInfo"]


class PeerInfo(Model, frozen=True, kw_only=True):
    """One server that holds a replica.

    Attributes:
        name: The server's name.
        peer: Its id in the group.
        current: It was seen recently and is up to date.
        offline: It was not seen recently.
        pending: It is assigned but no member of the group yet.
        active: Seconds since it was last active.
        lag: Operations that it has not applied yet.
    """

    name: str = ""
    peer: str | None = None
    current: bool = False
    offline: bool = False
    pending: bool = False
    active: Seconds | None = None
    lag: int = 0


class ClusterInfo(Model, frozen=True, kw_only=True):
    """The group of servers that holds a stream or consumer.

    Attributes:
        name: The cluster.
        raft_group: The group's own name.
        leader: The server that leads it; None during an election.
        leader_since: Time of its election.
        system_account: The group's traffic goes through the system account.
        traffic_account: The account that it goes through.
        replicas: The other servers.
        desired: A move in progress, as described by the server.
    """

    name: str | None = None
    raft_group: str | None = None
    leader: str | None = None
    leader_since: Time | None = None
    system_account: bool = False
    traffic_account: str | None = None
    replicas: list[PeerInfo] | None = None
    desired: dict[str, Any] | None = None

"""Placement of a stream or consumer in a cluster.

Source: nats-server server/stream.go (ClusterInfo, PeerInfo).
"""

from __future__ import annotations

from typing import Any

from ..wire.codec import Model, Seconds, Time

__all__ = ["ClusterInfo", "PeerInfo"]


class PeerInfo(Model, frozen=True, kw_only=True):
    """A server with a replica.

    Attributes:
        name: The server's name.
        peer: Its id in the group.
        current: Whether it was seen recently and is up to date.
        offline: Whether it was not seen recently.
        pending: Whether it is assigned to the group but not a member yet.
        active: Seconds since it was last active.
        lag: Number of operations that it has not applied yet.
    """

    name: str = ""
    peer: str | None = None
    current: bool = False
    offline: bool = False
    pending: bool = False
    active: Seconds | None = None
    lag: int = 0


class ClusterInfo(Model, frozen=True, kw_only=True):
    """The group of servers with the replicas of a stream or consumer.

    Attributes:
        name: The cluster.
        raft_group: The name of the group.
        leader: The leader, None during an election.
        leader_since: Time of its election.
        system_account: Whether the group's traffic uses the system account.
        traffic_account: The account that the traffic uses.
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

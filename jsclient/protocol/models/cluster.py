"""Placement of a stream or consumer in a cluster.

Source: nats-server server/stream.go (ClusterInfo, PeerInfo).
"""

from __future__ import annotations

from typing import Any

from ..wire.codec import Model, Seconds, Time

__all__ = ["ClusterInfo", "PeerInfo"]


class PeerInfo(Model, frozen=True, kw_only=True):
    """A server that has a replica of a stream or consumer. Found in ``replicas`` of `ClusterInfo`.

    Attributes:
        name: Name of the server.
        peer: ID of the server in the Raft group, which consists of all servers that have a replica. None if the server
            doesn't report it.
        current: True if the server was seen recently and its replica is up to date.
        offline: True if the server hasn't been seen recently.
        pending: True if the server is assigned to the Raft group but hasn't joined it yet.
        active: How long ago the replica was last active, in seconds, or None if the server doesn't report it.
        lag: Number of operations that the replica hasn't applied yet.
    """

    name: str = ""
    peer: str | None = None
    current: bool = False
    offline: bool = False
    pending: bool = False
    active: Seconds | None = None
    lag: int = 0


class ClusterInfo(Model, frozen=True, kw_only=True):
    """The servers that have replicas of a stream or consumer, for example as ``stream.cached_info.cluster``.

    Attributes:
        name: Name of the cluster.
        raft_group: Name of the Raft group that these servers form. Useful only for diagnostics.
        leader: Name of the server that is the leader, or None during an election.
        leader_since: Time at which the leader was elected, or None if the server doesn't report it.
        system_account: Whether replication traffic goes through the system account.
        traffic_account: Name of the account through which replication traffic goes, or None if the server doesn't
            report it.
        replicas: The other servers with a replica, without the leader. None if the server reports none.
        desired: Description of a move in progress, as sent by the server. None if there is no move.
    """

    name: str | None = None
    raft_group: str | None = None
    leader: str | None = None
    leader_since: Time | None = None
    system_account: bool = False
    traffic_account: str | None = None
    replicas: list[PeerInfo] | None = None
    desired: dict[str, Any] | None = None

"""The servers that have a stream or a consumer."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jsclient.errors import ProtocolError
from jsclient.protocol.models.cluster import ClusterInfo, PeerInfo
from jsclient.protocol.wire.codec import from_wire, to_wire

WIRE = {
    "name": "C",
    "raft_group": "g",
    "leader": "n1",
    "leader_since": "2026-11-20T18:29:19Z",
    "replicas": [
        {"name": "n2", "current": True, "active": 5_000_000, "peer": "x"},
        {"name": "n3", "current": False, "offline": True, "active": 0, "lag": 7, "peer": "y"},
    ],
}


def test_replicas_and_their_lag():
    cluster = from_wire(ClusterInfo, WIRE)
    assert cluster.leader == "n1"
    assert cluster.leader_since == datetime(2026, 11, 20, 18, 29, 19, tzinfo=UTC)
    assert cluster.replicas == [
        PeerInfo(name="n2", peer="x", current=True, active=0.005),
        PeerInfo(name="n3", peer="y", offline=True, active=0.0, lag=7),
    ]


def test_during_an_election_there_is_no_leader():
    assert from_wire(ClusterInfo, {"name": "C", "replicas": None}).leader is None


def test_unknown_fields_are_kept():
    cluster = from_wire(ClusterInfo, WIRE | {"of_the_future": 1})
    assert to_wire(cluster)["of_the_future"] == 1


@pytest.mark.parametrize("wire", [{"replicas": 7}, {"replicas": [7]}, {"leader": 7}, {"leader_since": "now"}])
def test_invalid_answer_is_an_error(wire):
    with pytest.raises(ProtocolError):
        from_wire(ClusterInfo, wire)

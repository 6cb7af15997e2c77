"""What the server sends about streams, consumers and the account, and configurations made from keywords."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ProtocolError
from jsclient.protocol.models import (
    AccountInfo,
    ClusterInfo,
    ConsumerConfig,
    ConsumerInfo,
    PeerInfo,
    StorageType,
    StreamInfo,
    config_mismatches,
)
from jsclient.protocol.wire.codec import WireStruct, decode, encode, from_wire, to_wire
from tests.protocol.models.kit import ACCOUNT_INFO, JSON, MODELS

STREAM_INFO = b"""{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0,"offset":0,"limit":0,
"config":{"name":"S","subjects":["s.>"],"retention":"limits","max_consumers":-1,"max_msgs":-1,"max_bytes":-1,
"max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,"discard":"old","storage":"file","num_replicas":1,
"duplicate_window":120000000000,"placement":{},"compression":"none","allow_direct":false,"mirror_direct":false,
"sealed":false,"deny_delete":false,"deny_purge":false,"allow_rollup_hdrs":false,"consumer_limits":{},
"allow_msg_ttl":false,"metadata":{"_nats.level":"5"}},"created":"2026-11-20T18:29:19.906461712Z",
"state":{"messages":0,"bytes":0,"first_seq":0,"first_ts":"0001-01-01T00:00:00Z","last_seq":0,
"last_ts":"0001-01-01T00:00:00Z","num_deleted":1,"deleted":[0],"consumer_count":0},
"mirror":{"name":"T","lag":0,"active":-1,"external":{"api":"$JS.x.API","deliver":""}},
"cluster":{"name":"C","raft_group":"g","leader":"n1","leader_since":"2026-11-20T18:29:19Z","system_account":true,
"replicas":[{"name":"n2","current":true,"active":5000000,"peer":"x"}]},
"ts":"2026-11-20T18:29:19.908004185Z","did_create":true}"""


CONSUMER_INFO = b"""{"type":"io.nats.jetstream.api.v1.consumer_info_response","stream_name":"S","name":"a",
"created":"2026-11-20T18:29:20.231835999Z","config":{"name":"a","durable_name":"a","deliver_policy":"all",
"ack_policy":"explicit","ack_wait":30000000000,"max_deliver":-1,"replay_policy":"instant","max_waiting":512,
"max_ack_pending":1000,"num_replicas":0,"metadata":{"_nats.level":"5"},"pause_until":"2026-11-20T19:29:20.2344Z"},
"delivered":{"consumer_seq":3,"stream_seq":7,"last_active":"2026-11-20T18:29:20.5Z"},
"ack_floor":{"consumer_seq":2,"stream_seq":6},"num_ack_pending":1,"num_redelivered":0,"num_waiting":0,
"num_pending":4,"paused":true,"pause_remaining":3599803974272,"push_bound":true,
"priority_groups":[{"group":"A","pinned_client_id":"p","pinned_ts":"2026-11-20T18:29:20Z"}],
"ts":"2026-11-20T18:29:20.430425Z"}"""


def extras(value):
    """Everything that was not known, wherever it is."""
    if isinstance(value, WireStruct):
        fields = [getattr(value, name) for name in value.__struct_fields__ if name != "extra"]
        return [*value.extra, *(name for field in fields for name in extras(field))]
    if isinstance(value, dict):
        return extras([*value.values()])
    return [name for item in value for name in extras(item)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("cls", "answer"), [(StreamInfo, STREAM_INFO), (ConsumerInfo, CONSUMER_INFO), (AccountInfo, ACCOUNT_INFO)]
)
def test_every_field_of_server_known(cls, answer):
    info = from_wire(cls, decode(answer))
    assert extras(info) == []
    assert from_wire(cls, decode(encode(info))) == info


def test_the_info_of_a_stream():
    info = from_wire(StreamInfo, decode(STREAM_INFO))
    assert info.name == "S"
    assert info.did_create
    assert info.created == datetime(2026, 11, 20, 18, 29, 19, 906461, tzinfo=UTC)
    assert (info.config.max_age, info.config.duplicate_window) == (0.0, 120.0)
    assert info.config.storage is StorageType.FILE
    assert (info.state.first_ts, info.state.last_seq) == (None, 0)
    assert info.mirror is not None
    assert info.mirror.active < 0
    assert info.cluster == ClusterInfo(
        name="C",
        raft_group="g",
        leader="n1",
        leader_since=datetime(2026, 11, 20, 18, 29, 19, tzinfo=UTC),
        system_account=True,
        replicas=[PeerInfo(name="n2", peer="x", current=True, active=0.005)],
    )


def test_stream_round_trip():
    wire = decode(STREAM_INFO)["config"] | {"future": [1], "retention": "for_ever"}
    config = from_wire(StreamInfo, {"config": wire}).config
    assert to_wire(config) == wire
    assert to_wire(config.replace(max_msgs=7)) == wire | {"max_msgs": 7}


def test_the_info_of_a_consumer():
    info = from_wire(ConsumerInfo, decode(CONSUMER_INFO))
    assert (info.stream_name, info.name, info.num_pending, info.push_bound, info.paused) == (
        "S",
        "a",
        4,
        True,
        True,
    )
    assert (info.delivered.consumer_seq, info.delivered.stream_seq, info.ack_floor.stream_seq) == (3, 7, 6)
    assert info.pause_remaining == 3599.803974272
    assert info.is_durable
    assert not info.is_push
    assert config_mismatches(ConsumerConfig(durable_name="a"), info.config) == []


def test_push_has_deliver_subject():
    info = ConsumerInfo(config=ConsumerConfig(deliver_subject="x"))
    assert info.is_push
    assert not info.is_durable
    assert not info.push_bound


@pytest.mark.parametrize("missing", ["stream_name", "name", "config"])
def test_info_of_consumer_needs_names(missing):
    answer = decode(CONSUMER_INFO)
    del answer[missing]
    with pytest.raises(ProtocolError, match=f"ConsumerInfo.{missing}"):
        from_wire(ConsumerInfo, answer)


@given(st.sampled_from(MODELS), st.data())
def test_any_answer_record_or_protocol_error(cls, data):
    fields = [name for name in cls.__struct_fields__ if name != "extra"]
    required = dict.fromkeys(cls.required, JSON)
    answer = data.draw(st.dictionaries(st.sampled_from(fields), JSON) | st.fixed_dictionaries(required))
    try:
        record = from_wire(cls, answer)
    except ProtocolError as exc:
        message = str(exc)
    else:
        message = cls.__name__
        assert repr(record)
        assert isinstance(decode(encode(record)), dict)
    assert message.startswith(cls.__name__)

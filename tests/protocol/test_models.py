"""The records of the API: their wire fields, what the server sends, and when two configurations say the same."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ApiError, ConfigError, ProtocolError, WrongLastSequenceError
from jsclient.protocol import models
from jsclient.protocol.models import (
    AccountInfo,
    AckPolicy,
    ClusterInfo,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    DiscardPolicy,
    PeerInfo,
    PersistMode,
    Placement,
    PriorityPolicy,
    PubAck,
    ReplayPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StoreCompression,
    StoredMessage,
    StreamConfig,
    StreamConsumerLimits,
    StreamInfo,
    StreamSource,
    SubjectTransform,
    account,
    config_mismatches,
    consumer,
    read_direct_message,
    read_pub_ack,
    read_stored_message,
    stream_config,
    user_set,
)
from jsclient.protocol.wire.codec import WireStruct, decode, encode, from_wire, to_wire
from jsclient.protocol.wire.headers import Headers

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
MODELS = [cls for cls in vars(models).values() if isinstance(cls, type) and issubclass(cls, WireStruct)]
ALWAYS = {"ack_policy": "explicit", "deliver_policy": "all", "replay_policy": "instant"}

# field of ADR-15, a value as a user gives it, the same on the wire
ADR_15 = [
    ("ack_policy", "all", "all"),
    ("ack_wait", 1.5, 1_500_000_000),
    ("deliver_group", "workers", "workers"),
    ("deliver_policy", DeliverPolicy.NEW, "new"),
    ("deliver_subject", "to.me", "to.me"),
    ("description", "text", "text"),
    ("durable_name", "d", "d"),
    ("filter_subject", "a.*", "a.*"),
    ("flow_control", True, True),
    ("idle_heartbeat", timedelta(seconds=5), 5_000_000_000),
    ("max_ack_pending", 7, 7),
    ("max_deliver", 3, 3),
    ("max_waiting", 8, 8),
    ("opt_start_seq", 2**63, 2**63),
    ("opt_start_time", NOON, "2030-01-31T12:00:00Z"),
    ("rate_limit_bps", 1000, 1000),
    ("replay_policy", "original", "original"),
    ("sample_freq", "50%", "50%"),
]
NEWER = [
    ("name", "n", "n"),
    ("backoff", [1, 2.5], [1_000_000_000, 2_500_000_000]),
    ("filter_subjects", ["a", "b"], ["a", "b"]),
    ("headers_only", True, True),
    ("max_batch", 5, 5),
    ("max_expires", 3, 3_000_000_000),
    ("max_bytes", 1000, 1000),
    ("inactive_threshold", 30, 30_000_000_000),
    ("num_replicas", 3, 3),
    ("mem_storage", True, True),
    ("metadata", {"a": "b"}, {"a": "b"}),
    ("pause_until", "2030-01-31T12:00:00.000000001Z", "2030-01-31T12:00:00.000000001Z"),
    ("priority_groups", ["A"], ["A"]),
    ("priority_policy", "overflow", "overflow"),
    ("priority_timeout", 9, 9_000_000_000),
]

# --- the configuration of a consumer ---------------------------------------------------------------------


@pytest.mark.covers("J9")
@pytest.mark.parametrize(("field", "value", "wire"), ADR_15 + NEWER)
def test_field_of_consumer_on_wire(field, value, wire):
    sent = to_wire(ConsumerConfig(**{field: value}))
    assert sent == ALWAYS | {field: wire}
    assert type(sent[field]) is type(wire)
    back = from_wire(ConsumerConfig, decode(encode(sent)))
    assert to_wire(back) == sent
    assert back.extra == {}


@pytest.mark.covers("J9")
def test_consumer_fields_match_adr():
    known = {field for field, _, _ in ADR_15 + NEWER}
    assert len(ADR_15) == 18
    assert set(ConsumerConfig.__struct_fields__) == known | {"extra"}


@pytest.mark.covers("J10")
def test_policies_always_sent():
    assert to_wire(ConsumerConfig()) == ALWAYS
    assert decode(encode({"stream_name": "S", "config": ConsumerConfig()}))["config"] == ALWAYS
    assert to_wire(ConsumerConfig(ack_policy="none")) == ALWAYS | {"ack_policy": "none"}


@pytest.mark.covers("J10")
def test_a_zero_that_was_set_is_sent():
    wire = to_wire(ConsumerConfig(max_deliver=0, flow_control=False, description="", ack_wait=0))
    assert wire == ALWAYS | {"max_deliver": 0, "flow_control": False, "description": "", "ack_wait": 0}


@pytest.mark.parametrize(
    ("enum", "words"),
    [
        (AckPolicy, "none all explicit flow_control"),
        (DeliverPolicy, "all last new by_start_sequence by_start_time last_per_subject"),
        (ReplayPolicy, "instant original"),
        (PriorityPolicy, "none overflow pinned_client prioritized"),
        (RetentionPolicy, "limits interest workqueue"),
        (StorageType, "file memory"),
        (DiscardPolicy, "old new"),
        (StoreCompression, "none s2"),
        (PersistMode, "default async"),
    ],
)
def test_the_words_of_the_wire(enum, words):
    assert [str(member) for member in enum] == words.split()


def test_unknown_word_kept_or_refused():
    with pytest.raises(ConfigError, match="'sometimes' is none of 'none', 'all', 'explicit', 'flow_control'"):
        ConsumerConfig(ack_policy="sometimes")
    config = from_wire(ConsumerConfig, {"ack_policy": "sometimes"})
    assert config.ack_policy == "sometimes"
    assert to_wire(config.replace(max_deliver=3))["ack_policy"] == "sometimes"


def test_what_a_user_set():
    assert user_set(ConsumerConfig()) == {}
    assert user_set(ConsumerConfig(max_deliver=0, ack_policy="none", extra={"new": 1, "null": None})) == {
        "max_deliver": 0,
        "ack_policy": AckPolicy.NONE,
        "new": 1,
    }


@pytest.mark.parametrize(
    ("config", "filters"),
    [
        (ConsumerConfig(), []),
        (ConsumerConfig(filter_subject=""), []),
        (ConsumerConfig(filter_subject="a"), ["a"]),
        (ConsumerConfig(filter_subjects=["a", "b"]), ["a", "b"]),
    ],
)
def test_filters_however_they_given(config, filters):
    assert config.filters == filters


# --- when a consumer is not the one that was asked for -----------------------------------------------------

OTHER = {
    "ack_policy": "none",
    "ack_wait": 31,
    "deliver_group": "others",
    "deliver_policy": "last",
    "description": "another",
    "durable_name": "e",
    "filter_subject": "b",
    "flow_control": False,
    "idle_heartbeat": 6,
    "max_ack_pending": 8,
    "max_deliver": 4,
    "max_waiting": 9,
    "opt_start_seq": 5,
    "opt_start_time": "2030-01-31T12:00:00.000000001Z",
    "rate_limit_bps": 2000,
    "replay_policy": "instant",
    "sample_freq": "51",
    "backoff": [1, 2],
    "filter_subjects": ["a"],
    "headers_only": False,
    "max_batch": 6,
    "max_expires": 4,
    "max_bytes": 1001,
    "inactive_threshold": 31,
    "num_replicas": 1,
    "mem_storage": False,
    "metadata": {"a": "c"},
    "pause_until": NOON,
    "priority_groups": ["B"],
    "priority_policy": "pinned_client",
    "priority_timeout": 10,
}
COMPARED = [(field, value) for field, value, _ in ADR_15 + NEWER if field not in ("deliver_subject", "name")]


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_field_set_and_differs_mismatch(field, value):
    wanted = ConsumerConfig(**{field: value})
    found = ConsumerConfig(**{field: OTHER[field]})
    assert config_mismatches(wanted, found) == [(field, getattr(wanted, field), getattr(found, field))]


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_field_set_and_absent_there_mismatch(field, value):
    wanted = ConsumerConfig(**{field: value})
    assert config_mismatches(wanted, ConsumerConfig()) == [(field, getattr(wanted, field), None)]


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_field_not_set_not_compared(field, value):
    assert config_mismatches(ConsumerConfig(), ConsumerConfig(**{field: value})) == []


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("field", "value"), COMPARED)
def test_same_value_no_mismatch(field, value):
    wanted = ConsumerConfig(**{field: value})
    assert config_mismatches(wanted, from_wire(ConsumerConfig, to_wire(wanted))) == []


@pytest.mark.covers("J36")
def test_all_mismatches_told_in_order():
    wanted = ConsumerConfig(max_deliver=3, ack_wait=1, description="x", extra={"new": 1})
    found = ConsumerConfig(max_deliver=4, ack_wait=2, description="x", extra={"new": 2})
    assert config_mismatches(wanted, found) == [("new", 1, 2), ("ack_wait", 1.0, 2.0), ("max_deliver", 3, 4)]


@pytest.mark.covers("J37")
def test_deliver_subject_no_mismatch():
    assert config_mismatches(ConsumerConfig(deliver_subject="a"), ConsumerConfig(deliver_subject="b")) == []
    assert config_mismatches(ConsumerConfig(deliver_subject="a"), ConsumerConfig()) == []
    assert config_mismatches(ConsumerConfig(name="a"), ConsumerConfig(name="b")) == []


# What a user sets, and what the server (2.15.1) has after creating the consumer from it.
SERVER_MADE_OF_IT = [
    ({"ack_wait": 0}, {"ack_wait": 30}),
    ({"ack_wait": 5, "backoff": [1, 2]}, {"ack_wait": 1, "backoff": [1, 2]}),
    ({"max_deliver": 0}, {"max_deliver": -1}),
    ({"max_deliver": -1}, {"max_deliver": -1}),
    ({"max_deliver": -5}, {"max_deliver": -1}),
    ({"max_waiting": 0}, {"max_waiting": 512}),
    ({"max_waiting": -1}, {"max_waiting": 512}),
    ({"max_ack_pending": 0}, {"max_ack_pending": 1000}),
    ({"max_ack_pending": -7}, {"max_ack_pending": -1}),
    ({"max_batch": 0}, {"max_batch": 100}),
    ({"max_batch": -1}, {}),
    ({"max_expires": -1}, {}),
    ({"max_bytes": -1}, {}),
    ({"inactive_threshold": 0}, {"inactive_threshold": 5}),
    ({"inactive_threshold": -1}, {}),
    ({"num_replicas": 0}, {"num_replicas": 3}),
    ({"priority_timeout": 0}, {"priority_timeout": 120}),
    ({"idle_heartbeat": 0}, {}),
    ({"idle_heartbeat": -1}, {}),
    ({"rate_limit_bps": 0}, {}),
    ({"flow_control": False, "headers_only": False, "mem_storage": False}, {}),
    ({"flow_control": None}, {"flow_control": False}),
    ({"ack_policy": "flow_control", "flow_control": False, "idle_heartbeat": 5},
     {"ack_policy": "flow_control", "flow_control": True, "idle_heartbeat": 1}),
    ({"description": "", "sample_freq": "", "filter_subject": ""}, {}),
    ({"filter_subjects": [], "backoff": [], "metadata": {}, "priority_groups": []}, {}),
    ({"filter_subjects": ["a"]}, {"filter_subject": "a"}),
    ({"filter_subject": "a"}, {"filter_subjects": ["a"]}),
    ({"filter_subjects": ["b", "a"]}, {"filter_subjects": ["a", "b"]}),
    ({"metadata": {"a": "b"}}, {"metadata": {"a": "b", "_nats.level": "5", "_nats.ver": "2.15.1"}}),
    ({"metadata": {"_nats.x": "y"}}, {"metadata": {"_nats.level": "5"}}),
    ({"metadata": {}}, {"metadata": {"_nats.level": "5"}}),
    ({"sample_freq": "50%"}, {"sample_freq": "50"}),
    ({"priority_policy": "none"}, {}),
    ({"opt_start_time": "2030-01-31T14:00:00.000000001+02:00"}, {"opt_start_time": "2030-01-31T12:00:00.000000001Z"}),
    ({"opt_start_time": NOON}, {"opt_start_time": "2030-01-31T12:00:00Z"}),
    ({"ack_wait": timedelta(seconds=1.5)}, {"ack_wait": 1.5}),
]  # fmt: skip


@pytest.mark.covers("J36")
@pytest.mark.parametrize(("wanted", "found"), SERVER_MADE_OF_IT)
def test_no_conflict_with_own(wanted, found):
    assert config_mismatches(ConsumerConfig(**wanted), ConsumerConfig(**found)) == []


@pytest.mark.covers("J36")
@pytest.mark.parametrize(
    ("wanted", "found", "field"),
    [
        ({"max_deliver": -1}, {"max_deliver": 5}, "max_deliver"),
        ({"max_ack_pending": -1}, {"max_ack_pending": 1000}, "max_ack_pending"),
        ({"idle_heartbeat": 0}, {"idle_heartbeat": 5}, "idle_heartbeat"),
        ({"flow_control": False}, {"flow_control": True}, "flow_control"),
        ({"description": ""}, {"description": "x"}, "description"),
        ({"metadata": {}}, {"metadata": {"a": "b"}}, "metadata"),
        ({"filter_subject": ""}, {"filter_subject": "a"}, "filter_subject"),
        ({"filter_subject": "a"}, {"filter_subjects": ["a", "b"]}, "filter_subject"),
        ({"backoff": [1, 2]}, {"backoff": [2, 1]}, "backoff"),
        ({"ack_wait": 5, "backoff": [1, 2]}, {"ack_wait": 3, "backoff": [1, 2]}, "ack_wait"),
        ({"ack_wait": 1.000_000_001}, {"ack_wait": 1}, "ack_wait"),
        ({"ack_policy": "explicit"}, {"ack_policy": "all"}, "ack_policy"),
    ],
)
def test_what_looks_alike_and_is_not(wanted, found, field):
    mismatches = config_mismatches(ConsumerConfig(**wanted), ConsumerConfig(**found))
    assert [name for name, _, _ in mismatches] == [field]


# --- what the server sends -------------------------------------------------------------------------------

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

ACCOUNT_INFO = b"""{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":10,
"reserved_memory":0,"reserved_storage":0,"streams":1,"consumers":2,"limits":{"max_memory":-1,"max_storage":-1,
"max_streams":-1,"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,
"storage_max_stream_bytes":-1,"max_bytes_required":false},"domain":"hub",
"api":{"level":5,"total":7,"errors":1,"inflight":1},"tiers":{"R1":{"memory":0,"storage":10,"streams":1,
"consumers":2,"limits":{"max_memory":100}}}}"""


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


def test_the_account():
    info = from_wire(AccountInfo, decode(ACCOUNT_INFO))
    assert (info.storage, info.streams, info.api.level, info.domain) == (10, 1, 5, "hub")
    assert info.limits.max_streams == -1
    assert info.tiers["R1"].limits.max_memory == 100


def test_a_stream_from_keywords():
    config = StreamConfig(
        name="S",
        subjects=("a", "b.>"),
        retention="workqueue",
        discard=DiscardPolicy.NEW,
        max_age=timedelta(hours=1),
        placement={"tags": ["eu"]},
        sources=[
            {
                "name": "T",
                "opt_start_time": NOON,
                "subject_transforms": [SubjectTransform(src=">", dest="x.>")],
            }
        ],
        republish=RePublish(src="a", dest="c", headers_only=True),
        consumer_limits={"inactive_threshold": 5},
        persist_mode="async",
    )
    assert config.placement == Placement(tags=["eu"])
    assert config.consumer_limits == StreamConsumerLimits(inactive_threshold=5.0)
    assert isinstance(config.sources[0], StreamSource)
    assert to_wire(config) == {
        "name": "S",
        "subjects": ["a", "b.>"],
        "retention": "workqueue",
        "discard": "new",
        "max_age": 3_600_000_000_000,
        "placement": {"tags": ["eu"]},
        "sources": [
            {
                "name": "T",
                "opt_start_time": "2030-01-31T12:00:00Z",
                "subject_transforms": [{"src": ">", "dest": "x.>"}],
            }
        ],
        "republish": {"src": "a", "dest": "c", "headers_only": True},
        "consumer_limits": {"inactive_threshold": 5_000_000_000},
        "persist_mode": "async",
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


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


# --- the answer to a publish -----------------------------------------------------------------------------


def test_an_acknowledged_publish():
    assert read_pub_ack(b'{"stream":"S","seq":7}') == PubAck(stream="S", seq=7)
    assert read_pub_ack(b'{"stream":"S","seq":7,"duplicate":true,"domain":"hub","new":1}') == PubAck(
        stream="S", seq=7, duplicate=True, domain="hub", extra={"new": 1}
    )
    assert read_pub_ack(b'{"stream":"S","seq":7,"val":"12","batch":"b","count":3}') == PubAck(
        stream="S", seq=7, val="12", batch="b", count=3
    )


def test_a_refused_publish():
    with pytest.raises(WrongLastSequenceError):
        read_pub_ack(b'{"error":{"code":400,"err_code":10071,"description":"x"},"stream":"S","seq":0}')
    with pytest.raises(ProtocolError, match="sequence -1"):
        read_pub_ack(b'{"stream":"S","seq":-1}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"+OK",
        b'{"stream":"S"}',
        b'{"seq":1}',
        b'{"stream":7,"seq":1}',
        b'{"stream":"S","seq":"1"}',
        b'{"stream":"S","seq":true}',
        b'{"stream":"S","seq":0}',
        b'{"stream":"S","seq":-1}',
        b'{"stream":"S","seq":18446744073709551616}',
        b'{"stream":"","seq":1}',
    ],
)
def test_what_is_no_acknowledgement(data):
    with pytest.raises(ProtocolError):
        read_pub_ack(data)


@given(
    st.binary() | st.dictionaries(st.sampled_from(["stream", "seq", "duplicate", "error"]), JSON).map(encode)
)
def test_any_pub_ack_or_error(data):
    try:
        assert isinstance(read_pub_ack(data), PubAck)
    except (ApiError, ProtocolError):
        pass


# --- stored messages -------------------------------------------------------------------------------------

TIME = "2026-11-20T18:29:20.230418711Z"
TIME_NS = 1_795_199_360_230_418_711
STORED = StoredMessage(
    subject="f.2",
    seq=104,
    data=b"pay",
    headers=Headers([("Nats-Subject", "own"), ("A", "b"), ("A", "c")]),
    time=datetime(2026, 11, 20, 18, 29, 20, 230418, tzinfo=UTC),
    time_ns=TIME_NS,
)


def answer(**changes):
    block = b"NATS/1.0\r\nNats-Subject: own\r\nA: b\r\nA: c\r\n\r\n"
    message = {
        "subject": "f.2",
        "seq": 104,
        "hdrs": base64.b64encode(block).decode(),
        "data": base64.b64encode(b"pay").decode(),
        "time": TIME,
    }
    return {"type": "x", "message": message | changes}


def direct(**changes):
    added = {
        "Nats-Stream": "F",
        "Nats-Subject": "f.2",
        "Nats-Sequence": "104",
        "Nats-Time-Stamp": TIME,
    } | changes
    own = [("Nats-Subject", "own"), ("A", "b"), ("A", "c")]
    return Headers([*own, *((name, value) for name, value in added.items() if value is not None)])


def test_both_ways_to_get_message_give_same():
    assert read_stored_message(answer()) == STORED
    assert read_direct_message(direct(), b"pay") == STORED


def test_message_without_headers_and_payload():
    found = read_stored_message(answer(hdrs=None, data=None))
    assert (found.headers, found.data) == ({}, b"")


def test_batch_message_counts_rest():
    extra = {"Nats-Num-Pending": "7", "Nats-Last-Sequence": "103", "Nats-UpTo-Sequence": "200"}
    found = read_direct_message(direct(**extra), b"pay")
    assert found.num_pending == 7
    assert found.headers == STORED.headers


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": None},
        {"subject": 7},
        {"seq": None},
        {"seq": "104"},
        {"seq": True},
        {"hdrs": 7},
        {"hdrs": "%%%"},
        {"hdrs": "é"},
        {"data": "abc"},
        {"data": []},
        {"time": None},
        {"time": "now"},
    ],
)
def test_what_is_no_stored_message(changes):
    with pytest.raises(ProtocolError):
        read_stored_message(answer(**changes))


@pytest.mark.parametrize("broken", [{}, {"message": None}, {"message": []}, {"message": {}}])
def test_an_answer_without_a_message(broken):
    with pytest.raises(ProtocolError):
        read_stored_message(broken)


@pytest.mark.parametrize(
    "headers",
    [
        Headers(),
        direct(**{"Nats-Sequence": None}),
        direct(**{"Nats-Sequence": "-1"}),
        direct(**{"Nats-Sequence": "1_0"}),
        direct(**{"Nats-Sequence": "٣"}),
        direct(**{"Nats-Sequence": "9" * 400}),
        direct(**{"Nats-Time-Stamp": None}),
        direct(**{"Nats-Time-Stamp": "now"}),
        direct(**{"Nats-Subject": ""}),
        direct(**{"Nats-Num-Pending": "many"}),
    ],
)
def test_what_is_no_direct_message(headers):
    with pytest.raises(ProtocolError):
        read_direct_message(headers, b"")


@given(st.dictionaries(st.sampled_from(["subject", "seq", "hdrs", "data", "time"]), JSON))
def test_any_stored_message_or_error(changes):
    try:
        assert isinstance(read_stored_message(answer(**changes)), StoredMessage)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("module", "enum"),
    [
        *((consumer, enum) for enum in (AckPolicy, DeliverPolicy, ReplayPolicy, PriorityPolicy)),
        *(
            (stream_config, enum)
            for enum in (RetentionPolicy, DiscardPolicy, StorageType, StoreCompression, PersistMode)
        ),
    ],
    ids=lambda value: value.__name__.rpartition(".")[2],
)
def test_texts_of_enums(module, enum):
    """Type checkers see a misspelt text: those of the aliases are those of the enum, and the fields take no other."""
    texts = getattr(module, f"{enum.__name__}Text")
    assert list(get_args(texts)) == [member.value for member in enum]
    fields = consumer.ConsumerFields if module is consumer else stream_config.StreamFields
    assert f"{enum.__name__} | {enum.__name__}Text | None" in str(fields.__annotations__)
    assert f"{enum.__name__} | str" not in str(fields.__annotations__)


@pytest.mark.parametrize(
    ("limits", "used", "reserved", "words"),
    [
        ({"max_storage": 100}, 90, 20, "limit of the account is 100 bytes in files, of which 90 are taken"),
        (
            {"max_storage": 100},
            100,
            0,
            "of which 100 are taken: purge messages, or raise max_file of the account",
        ),
        ({"max_storage": 100}, 90, 10, "the server has not enough bytes left in files"),
        ({"max_storage": -1}, 90, 10, "raise max_file_store of its configuration"),
        ({}, 90, 10, "and the stream would reserve 10: lower max_bytes of the stream, purge"),
    ],
)
def test_whose_storage_is_full(limits, used, reserved, words):
    tier = {"storage": used, "limits": account.AccountLimits(**limits)}
    for info in (
        account.AccountInfo(**tier),
        account.AccountInfo(tiers={"R1": account.AccountTier(), "R3": account.AccountTier(**tier)}),
    ):
        assert words in account.storage_advice(info, reserved=reserved, in_memory=False)
    text = account.storage_advice(account.AccountInfo(**tier), reserved=reserved, in_memory=True)
    assert "max_memory_store" in text  # the limit of files is not that of memory

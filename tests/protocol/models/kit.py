"""Answers of a server, for the tests of models."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from jsclient.protocol import models
from jsclient.protocol.models import (
    DeliverPolicy,
)
from jsclient.protocol.wire.codec import WireStruct

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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


TIME = "2026-11-20T18:29:20.230418711Z"


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


ACCOUNT_INFO = b"""{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":10,
"reserved_memory":0,"reserved_storage":0,"streams":1,"consumers":2,"limits":{"max_memory":-1,"max_storage":-1,
"max_streams":-1,"max_consumers":-1,"max_ack_pending":-1,"memory_max_stream_bytes":-1,
"storage_max_stream_bytes":-1,"max_bytes_required":false},"domain":"hub",
"api":{"level":5,"total":7,"errors":1,"inflight":1},"tiers":{"R1":{"memory":0,"storage":10,"streams":1,
"consumers":2,"limits":{"max_memory":100}}}}"""

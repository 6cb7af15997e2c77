"""The configuration of a stream: from keywords, and to the wire and back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jsclient.errors import ProtocolError
from jsclient.protocol.models.stream_config import (
    DiscardPolicy,
    Placement,
    RePublish,
    StorageType,
    StreamConfig,
    StreamConsumerLimits,
    StreamSource,
    SubjectTransform,
)
from jsclient.protocol.wire.codec import from_wire, to_wire
from tests.protocol.models.kit import NOON


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


@pytest.mark.parametrize(
    ("field", "value", "wire"),
    [
        ("max_age", 1.5, 1_500_000_000),
        ("duplicate_window", timedelta(minutes=2), 120_000_000_000),
        ("subject_delete_marker_ttl", 0.001, 1_000_000),
        ("max_bytes", -1, -1),
        ("sealed", False, False),
        ("discard", "new", "new"),
        ("storage", StorageType.MEMORY, "memory"),
        ("mirror", StreamSource(name="T", opt_start_seq=7), {"name": "T", "opt_start_seq": 7}),
    ],
)
def test_field_on_the_wire(field, value, wire):
    """Durations are seconds here and nanoseconds there. A field that is not set is not sent."""
    config = StreamConfig(name="S", **{field: value})
    assert to_wire(config) == {"name": "S", field: wire}
    assert to_wire(from_wire(StreamConfig, {"name": "S", field: wire})) == {"name": "S", field: wire}


def test_unknown_fields_survive_a_change():
    config = from_wire(StreamConfig, {"name": "S", "max_msgs": 5, "of_the_future": [1]})
    assert config.extra == {"of_the_future": [1]}
    assert to_wire(config.replace(max_msgs=6)) == {"name": "S", "max_msgs": 6, "of_the_future": [1]}


@pytest.mark.parametrize("wire", [{"name": 7}, {"max_msgs": "many"}, {"placement": []}, {"sources": [7]}])
def test_field_of_a_wrong_type_is_an_error(wire):
    with pytest.raises(ProtocolError, match="StreamConfig"):
        from_wire(StreamConfig, wire)

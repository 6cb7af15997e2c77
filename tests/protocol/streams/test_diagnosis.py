"""Why a stream gives its readers nothing: each reason from infos as servers send them, and none for an idle one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jsclient.errors import ApiError, PermissionDeniedError, RequestTimeoutError, StreamNotFoundError
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.streams.diagnosis import cannot_look_at_stream, diagnose_stream
from jsclient.protocol.wire.codec import from_wire

NOW = datetime(2026, 11, 24, 12, 0, 0, tzinfo=UTC)
S = 1_000_000_000
LAGS = {"name": "T", "lag": 40, "active": S}


def at(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


def stream(config: dict | None = None, *, last: float = 60, **fields) -> StreamInfo:
    """The info of a stream whose last message was stored ``last`` seconds ago."""
    state = {"messages": 9, "bytes": 900, "first_seq": 1, "last_seq": 9, "consumer_count": 0}
    return from_wire(
        StreamInfo,
        {
            "config": {"name": "S", "subjects": ["orders.>"], **(config or {})},
            "created": at(3600),
            "state": {**state, "first_ts": at(3600), "last_ts": at(last)},
            "ts": at(0),
            **fields,
        },
    )


def codes(info: StreamInfo, **options) -> list[str]:
    return [found.code for found in diagnose_stream(info, after=25.0, **options)]


def test_idle_stream_is_no_stand_still():
    assert codes(stream()) == []


@pytest.mark.parametrize(
    ("state", "last", "reported"),
    [
        ({"lag": 0, "active": S}, 60, False),
        ({"lag": 40, "active": S}, 1, False),  # it stores
        ({"lag": 40, "active": S}, 60, True),
        ({"lag": 0, "active": 60 * S}, 60, True),
        ({"lag": 0, "active": -1}, 60, True),
    ],
)
def test_mirror(state, last, reported):
    assert codes(stream(mirror={"name": "T", **state}, last=last)) == (["mirror"] if reported else [])


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"max_msgs": 9, "discard": "new"}, "max_msgs"),
        ({"max_bytes": 950, "discard": "new"}, "max_bytes"),
        ({"max_msgs": 9, "discard": "old"}, ""),
        ({"max_msgs": 90, "max_bytes": -1, "discard": "new"}, ""),
    ],
)
def test_mirror_that_is_full(config, name):
    (finding,) = diagnose_stream(stream(config, mirror=LAGS), after=25.0)
    assert ("discard='new' refuses more" in finding.evidence) == bool(name)
    assert finding.fix.startswith(f"raise {name} of stream 'S'" if name else "look whether stream 'T' exists")


def test_no_leader():
    peers = [{"name": "n1", "current": True, "active": 0}, {"name": "n2", "offline": True, "active": 0}]
    (finding,) = diagnose_stream(stream(cluster={"name": "c", "replicas": peers}), after=25.0)
    assert (finding.code, finding.what) == ("no_leader", "the stream has no leader")
    assert "n2" in finding.evidence


def test_records_that_cannot_be_read():
    error = RequestTimeoutError("the history", 5.0)
    (finding,) = diagnose_stream(stream(), after=25.0, failure=error)
    assert finding.code == "no_answer"
    assert str(error) in finding.evidence


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StreamNotFoundError(404, 10059, "stream not found"), "stream_deleted"),
        (PermissionDeniedError("publish", "$JS.API.STREAM.INFO.S"), "could_not_look"),
        (ApiError(503, 10008, "JetStream system temporarily unavailable"), "no_leader"),
        (RequestTimeoutError("stream info", 5.0), "no_answer"),
    ],
)
def test_no_info(error, code):
    finding = cannot_look_at_stream(error, "S")
    assert finding.code == code
    assert finding.fix

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from jsclient.errors import ConfigError, InvalidNameError, ProtocolError
from jsclient.protocol.core.services import (
    EndpointInfo,
    EndpointStats,
    ServiceInfo,
    ServiceStats,
    check_group,
    check_metadata,
    check_queue_group,
    check_service_name,
    check_version,
    endpoint_subject,
    error_headers,
    ping_response,
    read_info,
    read_stats,
    response,
    verb_subjects,
)


@pytest.mark.parametrize("name", ["a", "Orders-2", "a_b", "0"])
def test_names(name):
    assert check_service_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "a\n", "*", ">", None, 1])
def test_bad_names(name):
    with pytest.raises(InvalidNameError, match="service"):
        check_service_name(name)


@pytest.mark.parametrize("version", ["0.0.0", "1.2.3", "1.0.0-alpha.1", "1.0.0+build.5", "1.0.0-rc.1+x"])
def test_versions(version):
    assert check_version(version) == version


@pytest.mark.parametrize(
    "version", ["", "1", "1.0", "v1.0.0", "01.0.0", "1.0.0-", "1.0.0 ", "1.0.0\n", None, 1.0]
)
def test_bad_versions(version):
    with pytest.raises(ConfigError, match="semantic version"):
        check_version(version)


@pytest.mark.parametrize("metadata", [[], {"a": 1}, {1: "a"}, "a"])
def test_bad_metadata(metadata):
    with pytest.raises(ConfigError, match="metadata"):
        check_metadata(metadata)


def test_metadata_is_copied():
    metadata = {"a": "b"}
    copy = check_metadata(metadata)
    metadata["a"] = "c"
    assert copy == {"a": "b"}
    assert check_metadata(None) == {}


@pytest.mark.parametrize("prefix", ["", ">", "a.>", "a b", ".a", "a."])
def test_bad_groups(prefix):
    with pytest.raises(InvalidNameError):
        check_group(prefix)


def test_subjects():
    assert endpoint_subject("", "a.*") == "a.*"
    assert endpoint_subject("v1.*", "a") == "v1.*.a"
    assert check_group("v1.*") == "v1.*"
    assert check_queue_group("") == ""
    with pytest.raises(InvalidNameError):
        endpoint_subject("v1", "a b")
    with pytest.raises(InvalidNameError):
        check_queue_group("a b")
    assert verb_subjects("PING", "orders", "1") == ["$SRV.PING", "$SRV.PING.orders", "$SRV.PING.orders.1"]


def test_info_on_the_wire():
    info = ServiceInfo(
        name="orders",
        id="1",
        version="1.0.0",
        endpoints=[EndpointInfo(name="a", subject="b", queue_group="q")],
    )
    assert json.loads(response(info)) == {
        "type": "io.nats.micro.v1.info_response",
        "name": "orders",
        "id": "1",
        "version": "1.0.0",
        "description": "",
        "metadata": {},
        "endpoints": [{"name": "a", "subject": "b", "queue_group": "q", "metadata": {}}],
    }
    assert json.loads(ping_response(info)) == {
        "type": "io.nats.micro.v1.ping_response",
        "name": "orders",
        "id": "1",
        "version": "1.0.0",
        "metadata": {},
    }


def test_stats_on_the_wire():
    stats = ServiceStats(
        name="orders",
        id="1",
        version="1.0.0",
        started=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        endpoints=[
            EndpointStats(name="a", num_requests=2, processing_time=0.5, average_processing_time=0.25)
        ],
    )
    fields = json.loads(response(stats))
    assert fields["type"] == "io.nats.micro.v1.stats_response"
    assert fields["started"] == "2026-01-02T03:04:05Z"
    (endpoint,) = fields["endpoints"]
    assert (endpoint["processing_time"], endpoint["average_processing_time"]) == (500_000_000, 250_000_000)
    assert endpoint["last_error"] == ""
    again = read_stats(response(stats))
    assert again.started == stats.started
    assert again.endpoints[0].average_processing_time == 0.25


def test_info_of_another_client():
    """Its unknown fields are kept, and a null does not count as a value."""
    info = read_info(
        b'{"name": "x", "id": "1", "version": "1.0.0", "metadata": null, "endpoints": null, "new": 1}'
    )
    assert (info.name, info.metadata, info.endpoints, info.extra) == ("x", None, None, {"new": 1})


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"name": 1}', b'{"endpoints": [1]}'])
def test_bad_answers(data):
    with pytest.raises(ProtocolError):
        read_info(data)
    with pytest.raises(ProtocolError):
        read_stats(data)


def test_error_is_one_line():
    headers = error_headers(400, "no\r\nX: injected\x00 \u2028way")
    assert headers == {"Nats-Service-Error": "no X: injected way", "Nats-Service-Error-Code": "400"}

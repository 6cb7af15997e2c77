"""The options that all buckets have, and the fields of the stream that they become."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.buckets.stream_fields import check_options, seconds_of, shared_fields, user_metadata
from jsclient.protocol.models.stream_config import StoreCompression, StreamConfig

SAME_NAME = {
    "description": "settings",
    "max_bytes": 1000,
    "storage": "memory",
    "num_replicas": 3,
    "placement": None,
    "republish": None,
    "metadata": {"team": "a"},
    "allow_atomic": True,
    "extra": {"future": 1},
}


def test_fields_of_the_same_name():
    assert shared_fields(SAME_NAME) == SAME_NAME
    assert shared_fields({"max_bytes": 0}) == {"max_bytes": 0}


def test_other_options_are_not_shared():
    assert shared_fields({"history": 3, "mirror": "a", "sources": ["b"], "max_value_size": 10}) == {}


@pytest.mark.parametrize(
    ("compression", "fields"), [(True, {"compression": StoreCompression.S2}), (False, {}), (None, {})]
)
def test_compression(compression, fields):
    assert shared_fields({"compression": compression}) == fields


@pytest.mark.parametrize("ttl", [60, 0.5, timedelta(hours=1)], ids=str)
def test_ttl_is_an_age(ttl):
    assert shared_fields({"ttl": ttl}) == {"max_age": ttl}


def test_without_ttl():
    assert shared_fields({"ttl": None}) == {}


@pytest.mark.parametrize("ttl", [0, -1, timedelta(0), "1", float("nan")], ids=str)
def test_bad_ttl(ttl):
    with pytest.raises(ConfigError, match="ttl"):
        shared_fields({"ttl": ttl})


@pytest.mark.parametrize(
    ("value", "seconds"), [(5, 5), (0.25, 0.25), (timedelta(minutes=2, milliseconds=500), 120.5)], ids=str
)
def test_seconds(value, seconds):
    assert seconds_of(value) == seconds


def test_unknown_option():
    with pytest.raises(TypeError, match=r"a bucket.*'histori'.*history"):
        check_options("a bucket", {"ttl": 1, "histori": 2}, iter(["ttl", "history"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mirror": "a"},
        {"sources": ["b"]},
        {"mirror": "a", "sources": []},
        {"mirror": None, "sources": ["b"]},
    ],
    ids=str,
)
def test_known_options(options):
    check_options("a bucket", options, ["mirror", "sources"])


def test_mirror_with_sources():
    with pytest.raises(ConfigError, match="mirror and sources"):
        check_options("a bucket", {"mirror": "a", "sources": ["b"]}, ["mirror", "sources"])


def test_metadata_of_the_user():
    metadata = {"_nats.level": "1", "team": "a", "_nats": "kept", "x._nats.y": "kept"}
    config = StreamConfig(name="KV_b", metadata=metadata)
    assert user_metadata(config) == {"team": "a", "_nats": "kept", "x._nats.y": "kept"}
    assert user_metadata(StreamConfig(name="KV_b")) == {}

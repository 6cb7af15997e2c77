from __future__ import annotations

from datetime import timedelta

import pytest

from jsclient.errors import ConfigError, InvalidNameError, NotABucketError
from jsclient.protocol.buckets.bucket_config import BucketStatus, bucket_config, check_bucket_stream
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.models.stream_config import (
    ExternalStream,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jsclient.protocol.wire.codec import to_wire


def test_smallest():
    assert to_wire(bucket_config("cfg")) == {
        "name": "KV_cfg",
        "subjects": ["$KV.cfg.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }


@pytest.mark.parametrize(
    ("ttl", "window"), [(0.5, 0.5), (timedelta(minutes=1), 60.0), (120, 120.0), (timedelta(days=1), 120.0)]
)
def test_ttl(ttl, window):
    config = bucket_config("cfg", ttl=ttl)
    assert config.duplicate_window == window


def test_markers():
    config = bucket_config("cfg", limit_marker_ttl=timedelta(seconds=5))
    assert (config.allow_msg_ttl, config.subject_delete_marker_ttl) == (True, 5.0)


@pytest.mark.parametrize(
    "options",
    [
        {"history": 0},
        {"history": 65},
        {"history": "1"},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": "1"},
        {"limit_marker_ttl": 0.9},
        {"mirror": "a", "sources": ["b"]},
        {"storage": "tape", "max_bytes": "1"},
    ],
    ids=str,
)
def test_bad_options(options):
    with pytest.raises(ConfigError):
        bucket_config("cfg", **options)


def test_unknown_option():
    with pytest.raises(TypeError, match="max_value_size"):
        bucket_config("cfg", max_value=1)


@pytest.mark.parametrize(
    "mirror", ["origin", "KV_origin", StreamSource(name="origin"), StreamSource(name="KV_origin")]
)
def test_mirror(mirror):
    config = bucket_config("copy", mirror=mirror)
    assert config.mirror is not None
    assert (config.mirror.name, config.mirror_direct, config.subjects) == ("KV_origin", True, None)


def test_options_of_caller_stay():
    mirror = StreamSource(name="origin")
    bucket_config("copy", mirror=mirror)
    assert mirror.name == "origin"


def test_sources():
    external = ExternalStream(api="$JS.hub.API")
    transforms = [SubjectTransform(src="a", dest="b")]
    config = bucket_config(
        "all",
        sources=[
            "one",
            StreamSource(name="KV_two"),
            StreamSource(name="all", external=external),
            StreamSource(name="three", subject_transforms=transforms),
        ],
    )
    assert config.sources == [
        StreamSource(name="KV_one", subject_transforms=[SubjectTransform(src="$KV.one.>", dest="$KV.all.>")]),
        StreamSource(name="KV_two", subject_transforms=[SubjectTransform(src="$KV.two.>", dest="$KV.all.>")]),
        StreamSource(name="KV_all", external=external),
        StreamSource(name="three", subject_transforms=transforms),
    ]


def test_bad_name():
    with pytest.raises(InvalidNameError, match="bucket"):
        bucket_config("a.b")


def test_status():
    config = bucket_config("cfg", history=3, ttl=60, compression=True, metadata={"team": "a"})
    shown = config.replace(metadata={"team": "a", "_nats.level": "1"})
    status = BucketStatus.of(StreamInfo(config=shown))
    assert (status.bucket, status.history, status.ttl, status.limit_marker_ttl) == ("cfg", 3, 60.0, 0.0)
    assert (status.is_compressed, status.metadata, status.values) == (True, {"team": "a"}, 0)


@pytest.mark.parametrize(
    "config",
    [StreamConfig(name="cfg", max_msgs_per_subject=1), StreamConfig(name="KV_cfg", max_msgs_per_subject=-1)],
)
def test_not_a_bucket(config):
    with pytest.raises(NotABucketError):
        check_bucket_stream(StreamInfo(config=config))

"""The stream of an object store, and its status."""

from __future__ import annotations

import pytest

from jsclient import ConfigError, InvalidNameError, NotABucketError, StreamConfig, StreamSource
from jsclient.protocol.buckets.object_config import ObjectStoreStatus, check_object_stream, object_config
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.wire.codec import from_wire


def info_of(config):
    state = {"messages": 3, "bytes": 7, "first_seq": 1, "last_seq": 3, "consumer_count": 0}
    return from_wire(StreamInfo, {"config": config, "state": state})


def test_fields():
    config = object_config(
        "blobs", ttl=5, max_bytes=9, compression=True, storage="memory", metadata={"a": "b"}
    )
    assert (config.name, config.subjects) == ("OBJ_blobs", ["$O.blobs.C.>", "$O.blobs.M.>"])
    assert (config.discard, config.allow_rollup_hdrs, config.allow_direct) == ("new", True, True)
    assert (config.max_age, config.max_bytes, config.compression, config.storage) == (5, 9, "s2", "memory")
    assert object_config("blobs").max_age is None


@pytest.mark.parametrize("mirror", ["blobs", "OBJ_blobs", StreamSource(name="blobs")], ids=str)
def test_mirror(mirror):
    config = object_config("copy", mirror=mirror)
    assert (config.mirror.name, config.mirror_direct, config.subjects) == ("OBJ_blobs", True, None)


def test_bad_options():
    with pytest.raises(TypeError, match="an object store has no option 'ttll'; did you mean 'ttl'"):
        object_config("blobs", ttll=5)
    with pytest.raises(ConfigError):
        object_config("blobs", ttl=0)
    with pytest.raises(InvalidNameError):
        object_config("a.b")
    with pytest.raises(InvalidNameError):
        object_config("a", mirror="a.b")


def test_status():
    config = {"name": "OBJ_b", "subjects": ["$O.b.C.>", "$O.b.M.>"], "sealed": True, "max_age": 5_000_000_000}
    status = ObjectStoreStatus.of(info_of(config))
    assert (status.bucket, status.is_sealed, status.ttl, status.size) == ("b", True, 5.0, 7)
    assert (status.storage, status.num_replicas, status.is_compressed, status.metadata) == (
        "file",
        1,
        False,
        {},
    )


@pytest.mark.parametrize(
    "config", [{"name": "OBJ_b", "subjects": ["x"]}, {"name": "KV_b"}, {"name": "OBJ_a b"}], ids=str
)
def test_no_object_store(config):
    with pytest.raises(NotABucketError):
        check_object_stream(info_of(config))


def test_stream_of_mirror():
    assert check_object_stream(info_of({"name": "OBJ_b", "mirror": {"name": "OBJ_a"}})) == "b"
    assert isinstance(object_config("b"), StreamConfig)

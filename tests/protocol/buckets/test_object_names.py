"""Names of object stores and objects, and their subjects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient import ConfigError, InvalidNameError, StreamConfig, StreamSource
from jsclient.protocol.buckets.object_names import (
    ObjectSpace,
    check_object_name,
    nuid_of,
    object_bucket_of,
    object_stream_of,
)


def test_streams():
    assert object_stream_of("a-b") == "OBJ_a-b"
    assert object_bucket_of("OBJ_a-b") == "a-b"
    assert [object_bucket_of(name) for name in ("KV_a", "OBJ_", "OBJ_a.b", "a")] == [None] * 4
    with pytest.raises(InvalidNameError):
        object_stream_of("a.b")


def test_subjects():
    """The example of ADR-20, with padding."""
    space = ObjectSpace.of("blobs", None)
    assert space.info_subject("naïve") == "$O.blobs.M.bmHDr3Zl"
    assert space.info_subject("a") == "$O.blobs.M.YQ=="
    assert space.chunk_subject("x") == "$O.blobs.C.x"
    assert space.infos == "$O.blobs.M.>"


@given(st.text(min_size=1, max_size=200).filter(lambda text: text.isprintable()))
def test_name_of_subject(name):
    space = ObjectSpace.of("blobs", None)
    assert space.name_of(space.info_subject(name)) == name


@pytest.mark.parametrize("subject", ["$O.blobs.M.é", "$O.blobs.M.abcde", "$O.blobs.M._w==", "other"])
def test_names_that_cannot_be_read(subject):
    assert ObjectSpace.of("blobs", None).name_of(subject) == ""


@pytest.mark.parametrize("bad", ["", None, 1, b"a", "\ud800"], ids=repr)
def test_bad_names(bad):
    with pytest.raises(InvalidNameError, match="object"):
        check_object_name(bad)


def test_longest_name():
    space = ObjectSpace.of("blobs", None)
    assert space.info_subject("x" * 2600)
    with pytest.raises(InvalidNameError, match="control line"):
        space.info_subject("x" * 2700)


def test_mirror_has_subjects_of_origin():
    config = StreamConfig(name="OBJ_copy", mirror=StreamSource(name="OBJ_blobs"))
    space = ObjectSpace.of("copy", config)
    assert (space.bucket, space.infos) == ("copy", "$O.blobs.M.>")
    with pytest.raises(ConfigError, match="mirror"):
        space.check_writable()
    ObjectSpace.of("blobs", StreamConfig(name="OBJ_blobs")).check_writable()


@given(st.integers(0, 2**130 - 1))
def test_nuid(number):
    nuid = nuid_of(number)
    assert len(nuid) == 22
    assert nuid.isascii()
    assert nuid.isalnum()


def test_nuids_differ():
    assert len({nuid_of(number * 2**100 + number) for number in range(1000)}) == 1000

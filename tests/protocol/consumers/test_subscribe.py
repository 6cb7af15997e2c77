"""The consumer that a subscribe call would create."""

from __future__ import annotations

import msgspec
import pytest

from jsclient.protocol.consumers.subscribe import creation_config
from jsclient.protocol.consumers.subscribe_request import SubscribeRequest, check_request
from jsclient.protocol.models.consumer import AckPolicy, ConsumerConfig


def created(**fields) -> ConsumerConfig:
    return creation_config(check_request(SubscribeRequest(**fields)))


@pytest.mark.covers("J44")
def test_users_config_unchanged():
    mine = ConsumerConfig(ack_wait=5.0, max_deliver=3, description="mine", deliver_policy="new")
    before = msgspec.structs.asdict(mine)
    result = created(subject="a", queue="q", config=mine, max_pending=5)
    assert msgspec.structs.asdict(mine) == before
    for field, value in before.items():
        if value is not None:
            assert getattr(result, field) == value


@pytest.mark.covers("J47")
def test_the_filter_is_the_subject():
    assert created(subject="a.*").filter_subject == "a.*"
    assert created(stream="S").filter_subject is None
    several = created(stream="S", config=ConsumerConfig(filter_subjects=["a", "b"]))
    assert (several.filter_subject, several.filter_subjects) == (None, ["a", "b"])


@pytest.mark.covers("J48")
def test_acks_explicit_unless_told_otherwise():
    assert created(subject="a").ack_policy is AckPolicy.EXPLICIT
    assert created(subject="a", pull=True).ack_policy is AckPolicy.EXPLICIT
    assert created(subject="a", config=ConsumerConfig(ack_policy="none")).ack_policy == "none"


@pytest.mark.covers("J48")
def test_small_queue_bounds_may_be_unacked():
    assert created(subject="a", max_pending=10).max_ack_pending == 10
    assert created(subject="a").max_ack_pending is None
    assert created(subject="a", max_pending=5000).max_ack_pending is None
    assert (
        created(subject="a", max_pending=10, config=ConsumerConfig(max_ack_pending=99)).max_ack_pending == 99
    )
    none = ConsumerConfig(ack_policy="none")
    assert created(subject="a", max_pending=10, config=none).max_ack_pending is None


@pytest.mark.covers("J49")
def test_deliver_group_queue():
    assert created(subject="a", queue="q").deliver_group == "q"
    assert created(subject="a").deliver_group is None

"""The subscribe calls that are refused before a request is sent."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.consumers.subscribe import subscribe_workflow
from jsclient.protocol.consumers.subscribe_request import FLOW_CONTROL_WINDOW, SubscribeRequest, check_request
from jsclient.protocol.models.consumer import AckPolicy, ConsumerConfig


def refused(match: str = "", **fields) -> ConfigError:
    """The error of a request that does not come to its first step."""
    steps = subscribe_workflow(SubscribeRequest(**fields))
    with pytest.raises(ConfigError, match=match or None) as caught:
        next(steps)
    return caught.value


@pytest.mark.covers("J3", "J4")
def test_queue_with_idle_heartbeat_refused():
    refused("idle heartbeat", subject="a", queue="q", config=ConsumerConfig(idle_heartbeat=1.0))
    refused("idle heartbeat", subject="a", config=ConsumerConfig(idle_heartbeat=1.0, deliver_group="q"))


@pytest.mark.covers("J3", "J5")
def test_queue_with_flow_control_refused():
    refused("flow control", subject="a", queue="q", config=ConsumerConfig(flow_control=True))


@pytest.mark.covers("J3", "J6", "J14")
@pytest.mark.parametrize("fields", [{}, {"durable": "d"}, {"consumer": "c"}, {"queue": "q"}])
@pytest.mark.parametrize("pull", [True, False])
def test_neither_subject_nor_stream_refused(fields, pull):
    refused("neither a subject nor a stream", pull=pull, **fields)


@pytest.mark.covers("J3", "J7", "J8")
@pytest.mark.parametrize("policy", ["none", "all", AckPolicy.NONE, AckPolicy.ALL])
def test_pull_needs_explicit_acks(policy):
    refused("ack policy", subject="a", pull=True, config=ConsumerConfig(ack_policy=policy))


@pytest.mark.covers("J3", "J46")
@pytest.mark.parametrize("fields", [{"deliver_subject": "x"}, {"deliver_group": "g"}])
def test_pull_subscription_nothing_of_push(fields):
    refused("pull subscription", subject="a", pull=True, config=ConsumerConfig(**fields))


@pytest.mark.parametrize("name", ["subject", "stream", "consumer", "durable", "queue"])
def test_empty_text_is_refused(name):
    fields = {"subject": "a", name: ""}
    assert f"{name} is an empty text" in str(refused(**fields))


def test_empty_durable_of_the_config_refused():
    refused("config.durable_name is an empty text", subject="a", config=ConsumerConfig(durable_name=""))


ILLEGAL_NAMES = ["a.b", "a b", "a*", ">", "a\r\nPUB x", "a/b", "a\\b", "", "\x00", "x" * 300]


@pytest.mark.covers("J3")
@pytest.mark.parametrize("name", [name for name in ILLEGAL_NAMES if name])
@pytest.mark.parametrize("field", ["stream", "consumer", "durable", "queue"])
def test_illegal_name_refused_first(field, name):
    error = refused(subject="a", **{field: name})
    assert isinstance(error, InvalidNameError)
    assert error.value == name


@pytest.mark.covers("J26")
@pytest.mark.parametrize("name", ["a.b", "a*", "a>", "orders.workers"])
def test_queue_as_durable_checked(name):
    refused(subject="a", queue=name)
    assert check_request(SubscribeRequest(subject="a", queue="a.b", durable="d")).durable == "d"


@pytest.mark.covers("J3")
@pytest.mark.parametrize("name", ILLEGAL_NAMES)
def test_illegal_name_in_config_refused_too(name):
    assert isinstance(refused(subject="a", config=ConsumerConfig(name=name)), InvalidNameError)
    if name:
        refused(subject="a", config=ConsumerConfig(durable_name=name))


@pytest.mark.covers("J3")
@pytest.mark.parametrize("subject", [" ", "a b", "a..b", ".a", "a.", "a.>.b", "a\r\nb", "a\x00"])
def test_illegal_subject_refused(subject):
    for fields in (
        {"subject": subject},
        {"subject": "a", "config": ConsumerConfig(deliver_subject=subject)},
        {"stream": "S", "config": ConsumerConfig(filter_subject=subject)},
        {"stream": "S", "config": ConsumerConfig(filter_subjects=["ok", subject])},
    ):
        assert isinstance(refused(**fields), InvalidNameError)


@pytest.mark.parametrize("subject", ["a.*", "a.>", ">"])
def test_wildcard_read_not_deliver(subject):
    assert check_request(SubscribeRequest(subject=subject)).subject == subject
    refused(subject="a", config=ConsumerConfig(deliver_subject=subject))


@pytest.mark.covers("J3")
@pytest.mark.parametrize(
    "fields",
    [
        {"subject": "a", "config": ConsumerConfig(filter_subject="b")},
        {"durable": "a", "config": ConsumerConfig(durable_name="b")},
        {"queue": "a", "config": ConsumerConfig(deliver_group="b")},
        {"consumer": "a", "durable": "b"},
        {"consumer": "a", "config": ConsumerConfig(durable_name="b")},
        {"consumer": "a", "config": ConsumerConfig(name="b")},
        {"durable": "a", "config": ConsumerConfig(name="b")},
    ],
)
def test_said_twice_must_agree(fields):
    refused(**({"stream": "S"} | fields))


def test_said_twice_and_agrees_said_once():
    request = SubscribeRequest(
        subject="a",
        durable="d",
        queue="q",
        config=ConsumerConfig(filter_subject="a", durable_name="d", deliver_group="q"),
    )
    actual = check_request(request)
    assert (actual.subject, actual.durable, actual.queue) == ("a", "d", "q")


@pytest.mark.covers("J24")
def test_queue_alone_becomes_durable_name():
    assert check_request(SubscribeRequest(subject="a", queue="q")).durable == "q"
    assert check_request(SubscribeRequest(subject="a", queue="q", durable="d")).durable == "d"
    assert check_request(SubscribeRequest(subject="a", queue="q", consumer="c")).durable is None


def test_bound_below_window_refused():
    config = ConsumerConfig(flow_control=True, idle_heartbeat=1.0)
    refused("max_pending_bytes", subject="a", config=config, max_pending_bytes=FLOW_CONTROL_WINDOW - 1)
    for fields in (
        {"config": config, "max_pending_bytes": FLOW_CONTROL_WINDOW},
        {"config": ConsumerConfig(), "max_pending_bytes": 1},
        {"ordered": True, "max_pending_bytes": 1},
    ):
        check_request(SubscribeRequest(subject="a", **fields))


@pytest.mark.covers("J95")
@pytest.mark.parametrize(
    ("unacked", "max_pending", "fits"),
    [(9, 10, True), (10, 10, True), (11, 10, False), (-1, 10, False), (None, 10, True), (None, 1, True)],
)
def test_unacked_of_ack_all_must_fit(unacked, max_pending, fits):
    """Under flow control with ack policy all, a message that was dropped may be acked by a later one."""
    config = ConsumerConfig(flow_control=True, idle_heartbeat=1.0, ack_policy="all", max_ack_pending=unacked)
    if fits:
        check_request(SubscribeRequest(subject="a", config=config, max_pending=max_pending))
    else:
        refused("max_pending", subject="a", config=config, max_pending=max_pending)


@pytest.mark.parametrize("field", ["max_pending", "max_pending_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1"])
def test_bound_whole_number_of_one_or_more(field, value):
    refused(field, subject="a", **{field: value})

"""Whether an existing consumer fits: the table of ADR-15."""

from __future__ import annotations

from itertools import product

import pytest

from jsclient.errors import (
    BindError,
    ConfigMismatchError,
    DuplicateSubscriptionError,
    NotQueueConsumerError,
    PullConsumerError,
    PushConsumerError,
    QueueFlowControlError,
    QueueHeartbeatError,
    QueueMismatchError,
    QueueRequiredError,
    SubjectMismatchError,
)
from jsclient.protocol.consumers.subscribe import check_binding
from jsclient.protocol.consumers.subscribe_request import SubscribeRequest
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.strategies import info

PUSH = {"deliver_subject": "_INBOX.there"}


def refusal(request: SubscribeRequest, existing) -> type[BindError] | None:
    refused = None
    try:
        check_binding(request, existing)
    except BindError as error:
        refused = error
    if refused is None:
        return None
    assert (refused.stream, refused.consumer) == ("ORDERS", "worker")
    assert "ORDERS" in str(refused)
    assert "worker" in str(refused)
    return type(refused)


def request(**fields) -> SubscribeRequest:
    return SubscribeRequest(**({"subject": "orders.new"} | fields))


ANY = (True, False)


@pytest.mark.parametrize(
    ("queue", "group", "bound", "error"),
    [
        *[
            pytest.param(
                None, None, True, DuplicateSubscriptionError, marks=pytest.mark.covers("J27"), id="bound"
            )
        ],
        *[
            pytest.param(None, "g", bound, QueueRequiredError, marks=pytest.mark.covers("J28"))
            for bound in ANY
        ],
        *[
            pytest.param("q", "g", bound, QueueMismatchError, marks=pytest.mark.covers("J29"))
            for bound in ANY
        ],
        *[
            pytest.param("q", group, bound, NotQueueConsumerError, marks=pytest.mark.covers("J30"))
            for bound, group in product(ANY, (None, ""))
        ],
        *[pytest.param("q", "q", bound, None, marks=pytest.mark.covers("J31")) for bound in ANY],
        *[pytest.param(None, group, False, None, marks=pytest.mark.covers("J32")) for group in (None, "")],
    ],
)
def test_queue_group_and_push_bound(queue, group, bound, error):
    existing = info(push_bound=bound, deliver_group=group, **PUSH)
    assert refusal(request(queue=queue), existing) is error


@pytest.mark.covers("J27", "J28", "J29", "J30")
@pytest.mark.parametrize(
    ("queue", "group", "bound", "words"),
    [
        (None, None, True, "duplicate subscription"),
        (None, "g", False, "non queue subscription for a consumer created for a queue group"),
        ("q", "g", False, "different queue group"),
        ("q", None, False, "consumer created without a deliver group"),
    ],
)
def test_errors_say_in_words_of_adr(queue, group, bound, words):
    with pytest.raises(BindError, match=words):
        check_binding(request(queue=queue), info(push_bound=bound, deliver_group=group, **PUSH))


@pytest.mark.covers("J33")
@pytest.mark.parametrize("pull", ANY)
def test_other_filter_is_mismatch(pull):
    push = {} if pull else PUSH
    for filter_subject, error in [
        ("orders.old", SubjectMismatchError),
        ("orders.>", SubjectMismatchError),
        ("orders.new", None),
        ("", None),
        (None, None),
    ]:
        assert refusal(request(pull=pull), info(filter_subject=filter_subject, **push)) is error
    for several, error in [
        (["orders.old", "orders.new"], SubjectMismatchError),
        (["orders.new"], None),
        ([], None),
    ]:
        assert refusal(request(pull=pull), info(filter_subjects=several, **push)) is error


@pytest.mark.covers("J33")
def test_without_subject_any_filter_fits():
    assert refusal(request(subject=None, stream="ORDERS"), info(filter_subject="a", **PUSH)) is None


@pytest.mark.covers("J34")
def test_pull_refuses_push_consumer():
    with pytest.raises(PushConsumerError, match="cannot create a pull subscription for a push consumer"):
        check_binding(request(pull=True), info(**PUSH))
    assert refusal(request(pull=True), info()) is None


@pytest.mark.covers("J35")
@pytest.mark.parametrize("deliver_subject", [None, ""])
def test_push_refuses_pull_consumer(deliver_subject):
    with pytest.raises(PullConsumerError, match="a pull subscription is required"):
        check_binding(request(), info(deliver_subject=deliver_subject))


@pytest.mark.covers("J38")
def test_queue_refuses_flow_control():
    existing = info(deliver_group="q", flow_control=True, idle_heartbeat=1.0, **PUSH)
    with pytest.raises(QueueFlowControlError, match="flow control is not supported over queues"):
        check_binding(request(queue="q"), existing)
    assert refusal(request(), info(flow_control=True, idle_heartbeat=1.0, **PUSH)) is None


@pytest.mark.covers("J39")
def test_queue_refuses_heartbeats():
    with pytest.raises(QueueHeartbeatError, match="heartbeats are not supported over queues"):
        check_binding(request(queue="q"), info(deliver_group="q", idle_heartbeat=1.0, **PUSH))
    assert refusal(request(), info(idle_heartbeat=1.0, **PUSH)) is None


@pytest.mark.covers("J55")
def test_pull_ignores_push_fields():
    existing = info(push_bound=True, flow_control=True, idle_heartbeat=1.0)
    assert refusal(request(pull=True), existing) is None


# --- the configuration ---------------------------------------------------------------------------------------

DIFFERENT = {
    "ack_policy": ("all", "explicit"),
    "ack_wait": (5.0, 30.0),
    "deliver_group": ("g", "q"),
    "deliver_policy": ("new", "all"),
    "description": ("mine", "theirs"),
    "durable_name": ("other", "worker"),
    "filter_subject": ("orders.new", "orders.old"),
    "flow_control": (True, None),
    "idle_heartbeat": (1.0, 2.0),
    "max_ack_pending": (10, 1000),
    "max_deliver": (3, -1),
    "max_waiting": (7, 512),
    "opt_start_seq": (17, 18),
    "opt_start_time": ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
    "rate_limit_bps": (1000, 2000),
    "replay_policy": ("original", "instant"),
    "sample_freq": ("10", "100"),
}


@pytest.mark.covers("J36")
@pytest.mark.parametrize("field", DIFFERENT)
def test_mismatch_names_both_values(field):
    mine, theirs = DIFFERENT[field]
    config = ConsumerConfig(**{field: mine})
    request = SubscribeRequest(stream="ORDERS", queue="q", config=config)
    existing = info(**({"deliver_group": "q", field: theirs} | PUSH))
    if field in {"flow_control", "idle_heartbeat"}:  # not over queues
        request = SubscribeRequest(stream="ORDERS", config=config)
        existing = info(**({field: theirs} | PUSH))
    with pytest.raises(ConfigMismatchError) as caught:
        check_binding(request, existing)
    assert caught.value.mismatches == [(field, getattr(config, field), getattr(existing.config, field))]
    assert f"{field}: wanted" in str(caught.value)
    assert repr(getattr(config, field)) in str(caught.value)


@pytest.mark.covers("J36")
@pytest.mark.parametrize("field", DIFFERENT)
def test_field_user_did_not_set_not_compared(field):
    theirs = DIFFERENT[field][1]
    fields = {"deliver_group": None} | PUSH | {field: theirs}
    queue = "q" if field == "deliver_group" else None
    assert refusal(SubscribeRequest(stream="ORDERS", queue=queue), info(**fields)) is None


@pytest.mark.covers("J36")
def test_all_differs_reported_at_once():
    config = ConsumerConfig(ack_wait=5.0, max_deliver=3, description="same", replay_policy="original")
    with pytest.raises(ConfigMismatchError) as caught:
        check_binding(request(config=config), info(ack_wait=30.0, max_deliver=-1, description="same", **PUSH))
    assert [field for field, _, _ in caught.value.mismatches] == ["ack_wait", "max_deliver", "replay_policy"]


@pytest.mark.covers("J37")
def test_another_deliver_subject_no_mismatch():
    config = ConsumerConfig(deliver_subject="my.inbox", ack_wait=30.0)
    assert refusal(request(config=config), info(ack_wait=30.0, **PUSH)) is None

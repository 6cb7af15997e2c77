"""The subscribe workflow with scripted answers: the order of the steps, and the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jsclient.errors import (
    ApiError,
    ClosedError,
    ConfigMismatchError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    DuplicateSubscriptionError,
    JetStreamError,
    NoMatchingStreamError,
    NoRespondersError,
    NotQueueConsumerError,
    PermissionDeniedError,
    PullConsumerError,
    PushConsumerError,
    QueueMismatchError,
    RequestTimeoutError,
    SubjectMismatchError,
)
from jsclient.protocol.consumers.subscribe import (
    Binding,
    Create,
    FindStream,
    Listen,
    LookUp,
    StopListening,
    subscribe_workflow,
)
from jsclient.protocol.consumers.subscribe_request import SubscribeRequest
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.strategies import info

NOT_FOUND = ConsumerNotFoundError(404, 10014, "consumer not found")
IN_USE = ConsumerExistsError(400, 10013, "consumer name already in use")
EXISTS = ConsumerExistsError(400, 10148, "consumer already exists")
NO_CONSUMER = [
    ApiError(404, 10059, "stream not found"),
    NOT_FOUND,
    RequestTimeoutError("look up"),
    NoRespondersError(),
    PermissionDeniedError("publish", "$JS.API.CONSUMER.INFO.ORDERS.c"),
]
THERE = {"deliver_subject": "_INBOX.there"}


def create_reply(step: Create):
    """The server's answer to a create: the configuration of the request, under a name."""
    return info(
        step.config.durable_name or "made1", **{f: getattr(step.config, f) for f in ("deliver_subject",)}
    )


def play(*answers: object, **fields: object) -> tuple[list[object], Binding | JetStreamError]:
    """Run the workflow: each answer is given, thrown (an error) or called with the step. The steps and the end."""
    steps: list[object] = []
    workflow = subscribe_workflow(SubscribeRequest(**({"subject": "orders.new"} | fields)))
    try:
        step = next(workflow)
        for answer in answers:
            steps.append(step)
            if isinstance(answer, Callable):
                answer = answer(step)  # noqa: PLW2901
            step = workflow.throw(answer) if isinstance(answer, BaseException) else workflow.send(answer)
        raise AssertionError(f"continues with {step}")
    except StopIteration as done:
        return steps, done.value
    except JetStreamError as error:
        return steps, error


# --- the stream ----------------------------------------------------------------------------------------------


@pytest.mark.covers("J16")
def test_only_stream_holds_subject_used():
    steps, binding = play(["ORDERS"], "_INBOX.mine", create_reply)
    assert steps[0] == FindStream("orders.new")
    assert steps[2].stream == "ORDERS"
    assert isinstance(binding, Binding)


@pytest.mark.covers("J17", "J18")
@pytest.mark.parametrize("names", [[], ["A", "B"], ["A", "B", "C"]])
@pytest.mark.parametrize("pull", [True, False])
def test_no_stream_or_many(names, pull):
    steps, error = play(names, pull=pull)
    assert steps == [FindStream("orders.new")]
    assert isinstance(error, NoMatchingStreamError)
    assert "matching stream" in str(error)
    assert error.streams == tuple(names)


@pytest.mark.covers("J19")
@pytest.mark.parametrize(
    "error", [ApiError(503, 10008, "no quorum"), RequestTimeoutError("find"), NoRespondersError()]
)
def test_error_of_lookup_raised(error):
    assert play(error) == ([FindStream("orders.new")], error)


@pytest.mark.covers("J20")
def test_named_stream_needs_no_lookup():
    steps, _ = play("_INBOX.mine", create_reply, stream="ORDERS")
    assert [type(step) for step in steps] == [Listen, Create]
    assert steps[1].config.filter_subject == "orders.new"


@pytest.mark.covers("J20", "J33")
def test_subject_is_checked_against_named_stream():
    _, error = play(info(filter_subject="orders.old", **THERE), stream="ORDERS", consumer="worker")
    assert isinstance(error, SubjectMismatchError)


# --- a consumer by name --------------------------------------------------------------------------------------


@pytest.mark.covers("J21", "J40")
def test_bound_consumer_not_created():
    steps, binding = play(info(**THERE), "_INBOX.there", stream="ORDERS", consumer="worker")
    assert steps == [LookUp("ORDERS", "worker"), Listen("_INBOX.there", None)]
    assert binding == Binding(
        stream="ORDERS",
        consumer="worker",
        info=info(**THERE),
        created=False,
        deliver_subject="_INBOX.there",
        is_named=True,
    )


@pytest.mark.covers("J21", "J31", "J40")
def test_queue_consumer_listened_to_in_group():
    existing = info(deliver_group="q", push_bound=True, **THERE)
    steps, binding = play(existing, "_INBOX.there", stream="ORDERS", consumer="worker", queue="q")
    assert steps[-1] == Listen("_INBOX.there", "q")
    assert not binding.created


@pytest.mark.covers("J21")
def test_bound_pull_not_listened():
    steps, binding = play(info(), stream="ORDERS", consumer="worker", pull=True)
    assert steps == [LookUp("ORDERS", "worker")]
    assert not binding.created


@pytest.mark.covers("J22")
@pytest.mark.parametrize("error", NO_CONSUMER, ids=lambda error: type(error).__name__)
def test_missing_push_is_error(error):
    assert play(error, stream="ORDERS", consumer="c") == ([LookUp("ORDERS", "c")], error)


@pytest.mark.covers("J23")
@pytest.mark.parametrize("error", NO_CONSUMER, ids=lambda error: type(error).__name__)
def test_missing_pull_used_anyway(error):
    steps, binding = play(error, stream="ORDERS", consumer="c", pull=True)
    assert steps == [LookUp("ORDERS", "c")]
    assert binding == Binding(stream="ORDERS", consumer="c", info=None, created=False)


def test_connection_closed_no_lookup_failed():
    _, error = play(ClosedError("closed"), stream="ORDERS", consumer="c", pull=True)
    assert isinstance(error, ClosedError)


@pytest.mark.covers("J36")
def test_config_mismatch_stops():
    steps, error = play(
        info(ack_wait=30.0, **THERE), stream="ORDERS", consumer="worker", config=ConsumerConfig(ack_wait=1.0)
    )
    assert len(steps) == 1
    assert isinstance(error, ConfigMismatchError)


# --- a durable, or a queue -----------------------------------------------------------------------------------


@pytest.mark.covers("J21", "J43")
def test_durable_exists_bound_to():
    steps, binding = play(info("d", durable_name="d", **THERE), "_INBOX.there", stream="ORDERS", durable="d")
    assert [type(step) for step in steps] == [LookUp, Listen]
    assert not binding.created
    assert binding.is_durable


@pytest.mark.covers("J43", "J50", "J52")
@pytest.mark.parametrize("how", [{"durable": "d"}, {"config": ConsumerConfig(durable_name="d")}])
def test_durable_does_not_exist_created(how):
    steps, binding = play(NOT_FOUND, "_INBOX.mine", create_reply, stream="ORDERS", **how)
    assert [type(step) for step in steps] == [LookUp, Listen, Create]
    assert steps[2].config.durable_name == "d"
    assert binding.created


@pytest.mark.covers("J43")
@pytest.mark.parametrize("pull", [True, False])
@pytest.mark.parametrize(
    "error", [e for e in NO_CONSUMER if e is not NOT_FOUND], ids=lambda e: type(e).__name__
)
def test_uncertain_durable_not_created(error, pull):
    assert play(error, stream="ORDERS", durable="d", pull=pull) == ([LookUp("ORDERS", "d")], error)


@pytest.mark.covers("J24", "J49")
def test_queue_created_by_name():
    steps, _ = play(NOT_FOUND, "_INBOX.mine", create_reply, stream="ORDERS", queue="q")
    assert steps[:2] == [LookUp("ORDERS", "q"), Listen(None, "q")]
    assert (steps[2].config.durable_name, steps[2].config.deliver_group) == ("q", "q")


# --- creating ------------------------------------------------------------------------------------------------


@pytest.mark.covers("J40", "J41", "J45", "J51", "J52", "J53")
def test_listens_before_create():
    steps, binding = play("_INBOX.mine", create_reply, stream="ORDERS")
    assert steps[0] == Listen(None, None)
    assert isinstance(steps[1], Create)
    assert steps[1].config.deliver_subject == "_INBOX.mine"
    assert steps[1].config.durable_name is None
    assert (binding.consumer, binding.created, binding.deliver_subject) == ("made1", True, "_INBOX.mine")
    assert not binding.is_durable


@pytest.mark.covers("J40")
def test_own_deliver_subject():
    config = ConsumerConfig(deliver_subject="my.orders")
    steps, _ = play("my.orders", create_reply, stream="ORDERS", config=config)
    assert steps[0] == Listen("my.orders", None)
    assert steps[1].config.deliver_subject == "my.orders"


@pytest.mark.covers("J46")
def test_pull_create_without_inbox():
    steps, binding = play(create_reply, stream="ORDERS", pull=True)
    assert [type(step) for step in steps] == [Create]
    assert steps[0].config.deliver_subject is None
    assert binding.created


@pytest.mark.covers("J44")
def test_users_configuration_as():
    mine = ConsumerConfig(ack_wait=5.0)
    play("_INBOX.mine", create_reply, stream="ORDERS", config=mine, queue=None)
    assert mine == ConsumerConfig(ack_wait=5.0)


@pytest.mark.covers("J11", "J12", "J13", "J60", "J99")
@pytest.mark.parametrize("code", [10080, 10094, 10108, 10026, 10059])
@pytest.mark.parametrize("how", [{}, {"pull": True}])
def test_any_other_error_of_create_raised_as(code, how):
    error = ApiError.from_fields(400, code, "refused")
    answers = [error] if how else ["_INBOX.mine", error]
    assert play(*answers, stream="ORDERS", **how)[1] is error


@pytest.mark.covers("J60")
def test_ephemeral_exists_is_error():
    assert play("_INBOX.mine", EXISTS, stream="ORDERS")[1] is EXISTS


# --- somebody was faster -------------------------------------------------------------------------------------


@pytest.mark.covers("J54", "J57", "J58", "J59")
@pytest.mark.parametrize("error", [IN_USE, EXISTS])
def test_queue_race_loser_joins(error):
    existing = info("q", durable_name="q", deliver_group="q", push_bound=True, **THERE)
    steps, binding = play(
        NOT_FOUND, "_INBOX.mine", error, None, existing, "_INBOX.there", stream="ORDERS", queue="q"
    )
    assert [type(step) for step in steps] == [LookUp, Listen, Create, StopListening, LookUp, Listen]
    assert steps[-1] == Listen("_INBOX.there", "q")
    assert not binding.created
    assert binding.deliver_subject == "_INBOX.there"


@pytest.mark.covers("J54", "J56")
@pytest.mark.parametrize("error", [IN_USE, EXISTS])
@pytest.mark.parametrize("bound", [True, False])
def test_plain_race_loser_fails(error, bound):
    existing = info("d", durable_name="d", push_bound=bound, **THERE)
    steps, end = play(NOT_FOUND, "_INBOX.mine", error, None, existing, stream="ORDERS", durable="d")
    assert [type(step) for step in steps] == [LookUp, Listen, Create, StopListening, LookUp]
    assert isinstance(end, DuplicateSubscriptionError)


@pytest.mark.covers("J54", "J55", "J59")
@pytest.mark.parametrize("error", [IN_USE, EXISTS])
def test_pull_subscription_lost_race_goes_on(error):
    existing = info("d", durable_name="d", push_bound=True, flow_control=True)
    steps, binding = play(NOT_FOUND, error, existing, stream="ORDERS", durable="d", pull=True)
    assert [type(step) for step in steps] == [LookUp, Create, LookUp]
    assert not binding.created


@pytest.mark.covers("J54")
@pytest.mark.parametrize(
    ("fields", "request_", "error"),
    [
        ({"filter_subject": "orders.old"}, {"queue": "q"}, SubjectMismatchError),
        ({"deliver_group": "other"}, {"queue": "q"}, QueueMismatchError),
        ({"deliver_group": None}, {"queue": "q"}, NotQueueConsumerError),
        ({"deliver_subject": None}, {"queue": "q"}, PullConsumerError),
        ({"ack_wait": 1.0}, {"queue": "q", "config": ConsumerConfig(ack_wait=2.0)}, ConfigMismatchError),
    ],
)
def test_race_winner_must_fit(fields, request_, error):
    existing = info("q", **({"deliver_group": "q"} | THERE | fields))
    assert (
        type(play(NOT_FOUND, "_INBOX.mine", EXISTS, None, existing, stream="ORDERS", **request_)[1]) is error
    )


@pytest.mark.covers("J55")
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (THERE, PushConsumerError),
        ({"filter_subject": "orders.old"}, SubjectMismatchError),
        ({"ack_wait": 1.0}, ConfigMismatchError),
    ],
)
def test_pull_race_checks_winner(fields, error):
    config = ConsumerConfig(ack_wait=2.0) if "ack_wait" in fields else ConsumerConfig()
    end = play(
        NOT_FOUND, EXISTS, info("d", **fields), stream="ORDERS", durable="d", pull=True, config=config
    )[1]
    assert type(end) is error


@pytest.mark.covers("J54")
def test_consumer_deleted_after_race_is_error():
    assert (
        play(NOT_FOUND, "_INBOX.mine", EXISTS, None, NOT_FOUND, stream="ORDERS", durable="d")[1] is NOT_FOUND
    )

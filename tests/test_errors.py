"""The tree of errors: its shape, and that each prints, pickles and names what it is about."""

from __future__ import annotations

import inspect
import pickle
from copy import deepcopy

import pytest

import jsclient
from jsclient import errors
from jsclient.errors import (
    ApiError,
    ConfigError,
    ConfigMismatchError,
    InvalidNameError,
    JetStreamError,
    NoMatchingStreamError,
    RequestTimeoutError,
    StatusError,
    counted,
)

CLASSES = [
    value
    for name, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, BaseException) and not name.startswith("_")
]

# Of each class its base, as the module's docstring and the design have it.
TREE = {
    "ApiError": "JetStreamError",
    "StreamNotFoundError": "ApiError",
    "ConsumerNotFoundError": "ApiError",
    "MessageNotFoundError": "ApiError",
    "StreamExistsError": "ApiError",
    "ConsumerExistsError": "ApiError",
    "WrongLastSequenceError": "ApiError",
    "BatchNotEnabledError": "ApiError",
    "BatchIncompleteError": "ApiError",
    "BatchTooLargeError": "ApiError",
    "BatchHeaderError": "ApiError",
    "BatchDuplicateError": "ApiError",
    "TooManyBatchesError": "ApiError",
    "BatchAbandonedError": "PublishError",
    "BatchNotAtomicError": "PublishError",
    "IngestError": "PublishError",
    "TooManyResultsError": "StatusError",
    "ConfigError": "JetStreamError",
    "InvalidNameError": "ConfigError",
    "NoMatchingStreamError": "JetStreamError",
    "BindError": "JetStreamError",
    "DuplicateSubscriptionError": "BindError",
    "QueueRequiredError": "BindError",
    "QueueMismatchError": "BindError",
    "NotQueueConsumerError": "BindError",
    "SubjectMismatchError": "BindError",
    "PushConsumerError": "BindError",
    "PullConsumerError": "BindError",
    "ConfigMismatchError": "BindError",
    "QueueFlowControlError": "BindError",
    "QueueHeartbeatError": "BindError",
    "StatusError": "JetStreamError",
    "ConsumerDeletedError": "StatusError",
    "PullLimitError": "StatusError",
    "BadRequestError": "StatusError",
    "NoRespondersError": "StatusError",
    "RequestTimeoutError": "JetStreamError",
    "DrainTimeoutError": "JetStreamError",
    "ClosedError": "JetStreamError",
    "NotJetStreamMessageError": "JetStreamError",
    "PositionInvalidError": "JetStreamError",
    "HistoryTruncatedError": "JetStreamError",
    "ProducerFencedError": "JetStreamError",
    "TopicNotFoundError": "JetStreamError",
    "TopicMismatchError": "JetStreamError",
    "PublisherExistsError": "JetStreamError",
    "EpochCompletedError": "JetStreamError",
    "EpochsLostError": "JetStreamError",
    "IterationFailed": "JetStreamError",
    "ProtocolError": "JetStreamError",
    "AnswerLostError": "ProtocolError",
    "PublishError": "JetStreamError",
    "TooManyInFlightError": "JetStreamError",
}


def example_of(kind: type[BaseException]) -> BaseException:
    """An error with something in every field, in the order of its constructor."""
    values = {
        "code": 409,
        "err_code": 10058,
        "retryable": True,
        "streams": ["A", "B"],
        "mismatches": [("ack_wait", 1.0, 2.0)],
        "silent_for": 3.5,
        "timeout": 2.0,
        "size": 100,
        "limit": 10,
        "first_available": 7,
        "failures": [("orders.new", "refused")],
        "reported": 3,
        "epochs": [3, 5],
        "frontier": [6],
        "expected": 4,
        "found": 5,
        "sent": 6,
        "stored": 5,
    }
    if not inspect.isfunction(kind.__init__):  # inherited from a built-in exception
        return kind("text")
    names = list(inspect.signature(kind).parameters)
    return kind(*[values.get(name, f"<{name}>") for name in names])


@pytest.mark.parametrize(("name", "base"), TREE.items())
def test_tree_of_design(name, base):
    bases = [kind for kind in getattr(errors, name).__mro__[1:] if not kind.__name__.startswith("_")]
    assert bases[0] is getattr(errors, base)


def test_one_root_and_bases():
    assert all(issubclass(kind, JetStreamError) for kind in CLASSES)
    assert issubclass(ConfigError, ValueError)
    assert issubclass(RequestTimeoutError, TimeoutError)
    assert issubclass(errors.NotJetStreamMessageError, ValueError)
    assert issubclass(errors.DisconnectedError, ConnectionError)
    assert issubclass(errors.ConnectError, ConnectionError)


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_described_in_tree(kind):
    assert kind.__doc__
    assert kind.__name__ in errors.__all__
    assert kind.__name__ in (errors.__doc__ or "")
    assert getattr(jsclient, kind.__name__) is kind


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_pickle_with_fields(kind):
    error = example_of(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert str(error).strip()
    assert vars(copy) == vars(error)
    assert "object at 0x" not in str(error)


@pytest.mark.parametrize(
    ("err_code", "kind"),
    [
        (10059, errors.StreamNotFoundError),
        (10014, errors.ConsumerNotFoundError),
        (10037, errors.MessageNotFoundError),
        (10071, errors.WrongLastSequenceError),
        (10164, errors.WrongLastSequenceError),
        (10058, errors.StreamExistsError),
        (10148, errors.ConsumerExistsError),
        (10013, errors.ConsumerExistsError),
        (10105, errors.ConsumerExistsError),
        (10174, errors.BatchNotEnabledError),
        (10205, errors.BatchNotEnabledError),
        (10176, errors.BatchIncompleteError),
        (10199, errors.BatchTooLargeError),
        (10177, errors.BatchHeaderError),
        (10201, errors.BatchDuplicateError),
        (10210, errors.TooManyBatchesError),
        (10211, errors.TooManyBatchesError),
        (99999, ApiError),
        (0, ApiError),
    ],
)
def test_api_errors_by_number(err_code, kind):
    error = ApiError.from_fields(404, err_code, "stream not found")
    assert type(error) is kind
    assert (error.code, error.err_code, error.description) == (404, err_code, "stream not found")
    assert str(err_code) in str(error)


@pytest.mark.covers("J36")
def test_mismatch_names_fields():
    mismatches = [("ack_wait", 1.0, 2.0), ("max_deliver", 3, None), ("description", "mine", "theirs")]
    error = ConfigMismatchError("ORDERS", "worker", mismatches)
    assert error.mismatches == mismatches
    for field, expected, actual in mismatches:
        assert f"{field}: wanted {expected!r}, found {actual!r}" in str(error)
    assert "ORDERS" in str(error)
    assert pickle.loads(pickle.dumps(error)).mismatches == mismatches


@pytest.mark.covers("J17", "J18")
def test_no_matching_stream_names():
    assert "no matching stream" in str(NoMatchingStreamError("a.b"))
    several = str(NoMatchingStreamError("a.b", ["ONE", "TWO"]))
    assert "ONE, TWO" in several
    assert "matching stream" in several


def test_long_values_shortened():
    assert len(str(InvalidNameError("stream", "x" * 10_000, "too long"))) < 200
    assert "\n" not in str(InvalidNameError("stream", "a\nb", "no"))
    assert len(str(errors.NotJetStreamMessageError("x" * 10_000))) < 300


def test_statuses_say_retryable():
    assert not StatusError(409, "x").retryable
    assert errors.NoRespondersError().retryable


def test_503_is_a_sentence():
    assert str(errors.NoRespondersError(503, "")) == "no responders (status 503)"
    error = errors.NoRespondersError(503, "", True, "S", "c")
    assert str(error).startswith(
        "no server answered the pull request of consumer 'c' of stream 'S': the consumer"
    )
    assert str(error).endswith("(status 503)")
    assert error.retryable


def test_repr_omits_defaults():
    assert repr(errors.ApiError(400, 10168, "x")) == "ApiError(400, 10168, 'x')"
    assert (
        repr(errors.ConsumerNotFoundError(404, 10014, "x", "S"))
        == "ConsumerNotFoundError(404, 10014, 'x', 'S')"
    )
    assert repr(errors.NoRespondersError()) == "NoRespondersError()"


def test_api_error_says_where_and_what_to_do():
    error = errors.ApiError.from_fields(404, 10014, "consumer not found", "S", "c")
    advice = "check both names, or create the consumer first"
    assert str(error) == f"consumer 'c' of stream 'S' not found (code 404, err_code 10014); {advice}"
    error = errors.ApiError.from_fields(404, 10059, "stream not found", "ORDRES")
    assert str(error).startswith(
        "stream 'ORDRES' not found (code 404, err_code 10059); check the name, or create"
    )
    error = errors.ApiError.from_fields(400, 10166, "per-message TTL is disabled")
    assert str(error).endswith("(code 400, err_code 10166); create the stream with allow_msg_ttl=True")
    assert str(error.with_advice("wait")).endswith("err_code 10166); wait")


def test_failed_publish_is_a_tuple_with_more():
    info = errors.FailedPublishInfo("a", RequestTimeoutError("late"), 7, "id")
    error = errors.PublishesFailedError([info])
    for one in (info, *pickle.loads(pickle.dumps(error)).failures, *deepcopy(error).failures):
        subject, reason = one
        assert (subject, one.subject, one.number, one.msg_id) == ("a", "a", 7, "id")
        assert one.error is reason is one[1]
        assert repr(one) == f"FailedPublishInfo('a', {reason!r}, number=7, msg_id='id')"
    assert info == ("a", info.error)
    assert str(errors.PublishesFailedError([("a", info.error)])) == str(error)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 messages wait"), (1, "1 message waits"), (1200, "1,200 messages wait")],
)
def test_counted_with_a_verb(number: int, text: str) -> None:
    assert counted(number, "message waits", "messages wait") == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 acks"), (1, "1 ack"), (2, "2 acks")])
def test_counted_with_regular_plural(number: int, text: str) -> None:
    assert counted(number, "ack") == text


def test_many_failures_for_one_reason_say_it_once():
    refused = errors.PublishError("the stream is full: raise max_msgs")
    failures = [*((index, refused) for index in range(3, 12)), (12, errors.PublishError("another"))]
    assert str(errors.PublishManyError(failures, sent=13, stored=3)) == (
        "3 of 13 sent messages are stored; failures by index: "
        "3, 4, 5, 6, 7, and 4 more: the stream is full: raise max_msgs; 12: another"
    )
    assert str(errors.PublishManyError([(0, refused)], sent=1, stored=0)).startswith(
        "0 of 1 sent message is stored;"
    )


def test_one_publish_that_failed():
    assert (
        str(errors.PublishesFailedError([("s", errors.PublishError("e"))], 0)) == "1 publish failed: 's': e"
    )

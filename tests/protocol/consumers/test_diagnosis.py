"""Why a consumer delivers no messages: each reason from infos as servers send them, and none for an idle consumer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jsclient.errors import (
    ApiError,
    ConsumerNotFoundError,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jsclient.protocol.consumers.diagnosis import (
    Local,
    cannot_look,
    cannot_replace,
    diagnose,
    handler_due,
    is_cause,
)
from jsclient.protocol.models.consumer import ConsumerInfo
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.wire.codec import from_wire

NOW = datetime(2026, 11, 23, 20, 0, 0, tzinfo=UTC)
HERE = Local(after=25.0)
S = 1_000_000_000


def at(seconds_ago: float) -> str:
    return (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


def consumer(config: dict | None = None, *, last: float | None = 60, **fields) -> ConsumerInfo:
    """The info of a consumer whose last delivery was ``last`` seconds ago."""
    delivered = {"consumer_seq": 5, "stream_seq": 5}
    return from_wire(
        ConsumerInfo,
        {
            "stream_name": "S",
            "name": "c",
            "created": at(3600),
            "config": {
                "durable_name": "c", "name": "c", "deliver_policy": "all", "ack_policy": "explicit",
                "ack_wait": 30 * S, "max_deliver": -1, "max_waiting": 512, "max_ack_pending": 1000,
                "replay_policy": "instant", "num_replicas": 0, **(config or {}),
            },
            "delivered": delivered if last is None else {**delivered, "last_active": at(last)},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_ack_pending": 0, "num_redelivered": 0, "num_waiting": 1, "num_pending": 7,
            "ts": at(0),
            **fields,
        },
    )  # fmt: skip


def stream(config: dict | None = None, *, last: float = 60, **fields) -> StreamInfo:
    return from_wire(
        StreamInfo,
        {
            "config": {"name": "S", "subjects": ["orders.>"], **(config or {})},
            "state": {"messages": 9, "first_seq": 1, "last_seq": 9, "last_ts": at(last)},
            "ts": at(0),
            **fields,
        },
    )


def codes(info, stream=None, local=HERE) -> list[str]:
    return [finding.code for finding in diagnose(info, stream, local) if is_cause(finding)]


# --- each reason -------------------------------------------------------------------------------------------------

PINNED = {"priority_groups": ["g"], "priority_policy": "pinned_client", "priority_timeout": 60 * S}
PIN = [{"group": "g", "pinned_client_id": "abc", "pinned_ts": at(90)}]


@pytest.mark.parametrize(
    ("code", "info", "evidence"),
    [
        (
            "paused",
            consumer({"pause_until": "2026-11-23T21:00:00Z"}, paused=True, pause_remaining=3600 * S),
            ["3600 s", "7 messages"],
        ),
        (
            "max_ack_pending",
            consumer({"max_ack_pending": 5}, num_ack_pending=5, num_redelivered=2),
            ["5 of 5", "2 of them", "other clients hold them all", "7 messages wait"],
        ),
        ("pinned", consumer(PINNED, priority_groups=PIN), ["'abc'", "2026-11-23 19:58:30 UTC", "7 messages"]),
        (
            "no_interest",
            consumer({"deliver_subject": "d"}, push_bound=False),
            ["'d'", "the server knows nobody", "7 messages"],
        ),
        (
            "no_leader",
            consumer(cluster={"name": "C", "leader": "", "replicas": [{"name": "n2", "offline": True}]}),
            ["n2"],
        ),
    ],
)
def test_reason_reported_with_evidence_and_fix(code, info, evidence):
    finding = diagnose(info, None, HERE)[0]
    assert finding.code == code
    assert is_cause(finding)
    for text in evidence:
        assert text in finding.evidence
    assert finding.what
    assert finding.fix


def test_until_when_it_is_paused():
    info = consumer({"pause_until": "2026-11-23T21:00:00Z"}, paused=True, pause_remaining=3600 * S)
    assert diagnose(info, None, HERE)[0].what == "the consumer is paused until 2026-11-23T21:00:00Z"


def test_pause_without_messages_is_no_stall():
    assert codes(consumer(paused=True, pause_remaining=S, num_pending=0)) == []


@pytest.mark.parametrize(
    ("received", "held", "said"),
    [
        (0, None, "other clients hold them all"),
        (2, None, "this client holds 2 at most, other clients hold the rest"),
        (9, None, "this client received as many"),
        (9, 3, "this client holds 3 at most"),
        (9, 0, "other clients hold them all"),
    ],
)
def test_who_holds_the_unacked(received, held, said):
    info = consumer({"max_ack_pending": 5}, num_ack_pending=5)
    (finding,) = diagnose(info, None, Local(after=25.0, received=received, held=held))
    assert said in finding.evidence


def test_work_in_hand_is_not_held():
    """As many as the consumer allows are with handlers here."""
    info = consumer({"max_ack_pending": 5}, num_ack_pending=5)
    assert codes(info, local=Local(after=25.0, held=5, running=40.0)) == []


@pytest.mark.parametrize("count", [1, 2])
def test_filter_that_matches_nothing(count):
    field = {"filter_subject": "order.x"} if count == 1 else {"filter_subjects": ["order.x", "bills.>"]}
    (finding,) = diagnose(consumer(field, num_pending=0), stream(), HERE)
    assert finding.code == "filter"
    assert "'order.x'" in finding.evidence
    assert "'orders.>'" in finding.evidence


NOTHING = {"consumer_seq": 0, "stream_seq": 0}


@pytest.mark.parametrize(
    ("policy", "delivered", "messages", "reported"),
    [
        ("all", NOTHING, 9, True),
        ("last", NOTHING, 9, True),
        ("last_per_subject", NOTHING, 1, True),
        ("all", NOTHING, 0, False),  # a fresh stream
        ("all", {"consumer_seq": 1, "stream_seq": 1}, 9, False),  # it has matched before
        ("new", NOTHING, 9, False),
    ],
)
def test_filter_that_no_stored_message_matches(policy, delivered, messages, reported):
    config = {"filter_subject": "orders.nwe", "deliver_policy": policy}
    info = consumer(config, num_pending=0, delivered=delivered)
    state = {"messages": messages, "first_seq": 1, "last_seq": 9, "num_subjects": 2, "last_ts": at(60)}
    finding = [one for one in diagnose(info, stream(state=state), HERE) if is_cause(one)]
    assert [one.code for one in finding] == (["filter"] if reported else [])
    if reported:
        assert "on 2 other subjects" in finding[0].evidence


@pytest.mark.parametrize(
    ("filters", "config"),
    [
        ({"filter_subject": "orders.*"}, {}),
        ({"filter_subjects": ["order.x", "orders.eu.>"]}, {}),
        ({}, {}),
        ({"filter_subject": "other"}, {"subject_transform": {"src": "orders.>", "dest": "other"}}),
        ({"filter_subject": "other"}, {"sources": [{"name": "T"}]}),
        ({"filter_subject": "other"}, {"subjects": [], "mirror": {"name": "T"}}),
    ],
)
def test_filter_that_may_match(filters, config):
    assert codes(consumer(filters, num_pending=0), stream(config)) == []


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        ({"lag": 0, "active": S}, False),
        ({"lag": 40, "active": S}, True),  # the stream's last message is old
        ({"lag": 0, "active": 60 * S}, True),
        ({"lag": 0, "active": -1}, True),
        ({"lag": 0, "active": S, "error": {"code": 404, "description": "stream not found"}}, True),
    ],
)
@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_copy_that_does_not_follow(state, reported, kind):
    one = {"name": "T", **state}
    info = stream(mirror=one) if kind == "mirror" else stream(sources=[one])
    finding = diagnose(consumer(num_pending=0), info, HERE)
    assert [one.code for one in finding] == (["mirror"] if reported else [])
    if reported:
        assert f"its {kind} 'T'" in finding[0].what


def test_copy_that_stores_follows():
    assert codes(consumer(num_pending=0), stream(mirror={"name": "T", "lag": 40, "active": S}, last=1)) == []


def test_hanging_handler_comes_first():
    info = consumer({"max_ack_pending": 5}, num_ack_pending=5)
    local = Local(after=25.0, held=1, running=61.0, waiting=3)
    assert codes(info, local=local) == ["handler", "max_ack_pending"]
    finding = diagnose(info, None, local)[0]
    assert "has run for 61 s" in finding.evidence
    assert "3 messages wait" in finding.evidence


@pytest.mark.parametrize(
    ("running", "longest", "waiting", "pending", "reported"),
    [
        (61, 0, 1, 0, True),
        (61, 0, 0, 1, True),
        (61, 0, 0, 0, False),  # nothing waits for it
        (59, 0, 1, 1, False),
        (61, 40, 1, 1, False),  # they are slow: it is not twice as long as one before it
        (81, 40, 1, 1, True),
    ],
)
def test_when_a_handler_hangs(running, longest, waiting, pending, reported):
    local = Local(after=25.0, asks=False, running=running, longest=longest, waiting=waiting)
    assert codes(consumer(num_pending=pending), local=local) == (["handler"] if reported else [])


def test_backoff_replaces_ack_wait():
    info = consumer({"backoff": [S, 5 * S]})
    assert codes(info, local=Local(after=25.0, asks=False, running=3.0)) == ["handler"]
    assert handler_due(info, Local(after=25.0, running=0.5)) == 1.5
    assert handler_due(info, Local(after=25.0, running=2.5)) is None
    assert handler_due(info, Local(after=25.0)) is None


def test_subscription_on_another_subject():
    info = consumer({"deliver_subject": "new"}, push_bound=True)
    (finding,) = diagnose(info, None, Local(after=25.0, subject="old"))
    assert finding.code == "no_interest"
    assert "listens on 'old'" in finding.evidence
    assert "another client listens there" in finding.evidence
    assert codes(info, local=Local(after=25.0, subject="new")) == []


def test_two_looks_without_explanation():
    before = consumer()
    later = consumer(ts=(NOW + timedelta(seconds=25)).isoformat())
    assert codes(later, local=Local(after=25.0, before=before)) == ["unexplained"]
    moved = consumer(
        ts=(NOW + timedelta(seconds=25)).isoformat(), delivered={"consumer_seq": 6, "stream_seq": 6}
    )
    assert codes(moved, local=Local(after=25.0, before=before)) == []
    soon = consumer(ts=(NOW + timedelta(seconds=5)).isoformat())  # a pause has just ended
    assert codes(soon, local=Local(after=25.0, before=before)) == []
    assert codes(later, local=Local(after=25.0, before=consumer(num_pending=0))) == []


# --- nothing to tell ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "info",
    [
        consumer(num_pending=0),
        consumer(num_pending=0, num_ack_pending=3),  # being handled
        consumer({"max_ack_pending": 5}, num_pending=0, num_ack_pending=5),
        consumer({"max_ack_pending": 5}, num_ack_pending=5, last=3),  # other subscribers continue
        consumer(PINNED, priority_groups=PIN, last=3),  # the pinned client continues
        consumer({"priority_groups": ["g"], "priority_policy": "overflow"}),  # waits for its threshold
        consumer({"priority_groups": ["g"], "priority_policy": "prioritized"}),
        consumer({"replay_policy": "original"}),
        consumer({"deliver_subject": "d", "rate_limit_bps": 1024}, push_bound=True),
        consumer({"deliver_subject": "d"}, push_bound=True),
        consumer({"max_ack_pending": -1}, num_ack_pending=500),
    ],
)
def test_nothing_owed_nothing_reported(info):
    assert codes(info, stream()) == []


def test_own_pin_is_none_of_others():
    info = consumer(PINNED, priority_groups=PIN)
    assert codes(info, local=Local(after=25.0, pins=frozenset({"abc"}))) == []


def test_program_that_does_not_ask_is_owed_nothing():
    info = consumer({"max_ack_pending": 5}, num_ack_pending=5)
    assert codes(info, local=Local(after=25.0, asks=False)) == []


# --- for one who does not read -----------------------------------------------------------------------------------


def test_nobody_pulls():
    assert codes(consumer(num_waiting=0), local=None) == ["no_request"]
    assert codes(consumer(num_waiting=0, num_pending=0), local=None) == []
    full = consumer({"max_ack_pending": 5}, num_waiting=0, num_ack_pending=5)
    assert codes(full, local=None) == ["max_ack_pending"]


# --- infos that cannot be read -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (ConsumerNotFoundError(404, 10014, "consumer not found"), "deleted", "error"),
        (StreamNotFoundError(404, 10059, "stream not found"), "stream_deleted", "error"),
        (RequestTimeoutError("no answer", 5.0), "no_answer", "error"),
        (PermissionDeniedError("publish", "$JS.API.CONSUMER.INFO.S.c"), "could_not_look", "unknown"),
    ],
)
def test_finding_of_failed_lookup(error, code, level):
    finding = cannot_look(error, "S", "c")
    assert (finding.code, finding.level) == (code, level)
    assert finding.evidence
    assert finding.fix


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(400, 10026, "maximum consumers limit reached"), "consumer_limit"),
        (RequestTimeoutError("create the ordered consumer", 5.0), "no_consumer"),
    ],
)
def test_why_a_lost_consumer_is_not_replaced(error, code):
    finding = cannot_replace(error, "S")
    assert (finding.code, finding.level) == (code, "error")
    assert str(error) in finding.evidence
    assert "'S'" in finding.fix


def test_looks_at_two_consumers_are_not_compared():
    """An ordered reader has another consumer at each look, and each has delivered nothing."""
    before = consumer(ts=at(25))
    assert codes(consumer(), local=Local(after=25.0, before=before)) == ["unexplained"]
    before = consumer(ts=at(25), name="before")
    assert codes(consumer(), local=Local(after=25.0, before=before)) == []

"""Publishes that are sent again: no stream answers, or the first attempt makes the second one fail. Source: ADR-22."""

from __future__ import annotations

import pytest

from jsclient.errors import (
    ApiError,
    NoRespondersError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jsclient.protocol.publishing.in_flight import (
    ATTEMPT,
    PAUSE,
    AnsweredSubjects,
    question,
    reply_of,
)
from jsclient.protocol.publishing.publish_window import PublishWindow
from jsclient.protocol.wire.headers import parse_headers
from tests.protocol.publishing.kit import (
    ACKED,
    ack,
    answers,
    errors,
    nobody,
    numbers,
    refusal,
    reply,
    reply_with,
    send,
    window,
)

# --- no stream -----------------------------------------------------------------------------------------------


def test_unknown_subject_gets_three_attempts():
    under = window()
    send(under)
    now, at = 0.0, 1
    for tries in (2, 3):
        assert answers(under, [nobody(at if isinstance(at, bytes) else 1)], now) == ([], [], [])
        assert under.next_check == now + PAUSE
        assert under.check_publishes(now + PAUSE - 0.01) == ([], [])
        now += PAUSE
        failures, sends = under.check_publishes(now)
        assert failures == []
        [(at, entry)] = sends
        assert (at, entry.ticket.name, entry.payload) == (reply_of(reply(1), tries), "1", b"12345")
    assert errors(answers(under, [nobody(at)], now)[2]) == [("1", NoRespondersError)]
    assert (under.in_flight, under.size, under.resent) == ({}, 0, 2)


def election(under, seconds: float, *, timeout: float) -> tuple[list[float], list[str], list]:
    """When attempts of publish 1 went out while no stream answers for these seconds, and what became of it."""
    now, at, attempts = 0.0, reply(1), [0.0]
    while True:
        stored, _, failures = answers(under, [nobody(at) if now < seconds else ack(at)], now)
        if stored or failures:
            assert now < timeout
            return attempts, stored, errors(failures)
        now = under.next_check
        failures, sends = under.check_publishes(now)
        assert failures == []
        if sends:
            [(at, _)] = sends
            attempts.append(now)


def test_election_retry_with_id():
    under = window()
    send(under, with_id=True, timeout=20.0)
    attempts, stored, _ = election(under, 8.0, timeout=20.0)
    assert stored == ["1"]
    assert attempts == [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert (under.in_flight, under.size) == ({}, 0)


@pytest.mark.parametrize("first", [ack(9), refusal(9, 10071)], ids=["ack", "refusal"])
def test_election_retry_if_answered(first):
    under = window()
    send(under, 9)
    under.answers([first], 0.0)
    send(under, timeout=20.0)
    ACKED.clear()
    assert election(under, 8.0, timeout=20.0)[1:] == (["1"], [])


@pytest.mark.parametrize("timeout", [0.3, 1.0, 2.0, 5.0, 20.0])
def test_late_election_no_responders(timeout):
    under = window()
    send(under, with_id=True, timeout=timeout)
    attempts, _, failed = election(under, 100.0, timeout=timeout)
    assert failed == [("1", NoRespondersError)]
    assert timeout - attempts[-1] <= PAUSE


def test_answered_subjects_limited():
    under = window()
    for number in range(3 * AnsweredSubjects.LIMIT):
        under.answered.add(b"s.%d" % number)
        assert len(under.answered.subjects) <= AnsweredSubjects.LIMIT
    assert b"s.%d" % number in under.answered
    assert b"s.0" not in under.answered


def test_ack_flood_stays_bounded():
    under = window()
    count = 2 * AnsweredSubjects.LIMIT
    for number in range(count):
        send(under, number).subject = b"s.%d" % number
    under.answers([ack(number) for number in range(count)], 0.0)
    assert len(under.answered.subjects) <= AnsweredSubjects.LIMIT


def test_answer_repeated_counts_once():
    under = window()
    send(under)
    assert answers(under, [nobody(1)] * 5, 0.0) == ([], [], [])
    assert answers(under, [nobody(1)] * 5, 0.1) == ([], [], [])
    assert numbers(under.check_publishes(PAUSE)[1]) == ["1"]


def test_retry_may_be_stored():
    under = window()
    send(under)
    answers(under, [nobody(1)], 0.0)
    [(at, _)] = under.check_publishes(PAUSE)[1]
    assert answers(under, [ack(at)], 0.3)[0] == ["1"]


def test_answer_to_earlier_try_counts_if_ack():
    under = window()
    send(under, with_id=True, timeout=30)
    [(second, _)] = under.check_publishes(ATTEMPT)[1]
    assert second == reply_of(reply(1), 2)
    assert answers(under, [refusal(1, 10077), nobody(1), reply_with(1, b"x")], 2.1) == ([], [], [])
    assert answers(under, [ack(1)], 2.2)[0] == ["1"]


@pytest.mark.parametrize("late", [refusal(1, 10077), refusal(1, 10071), nobody(1), reply_with(1, b"x")])
def test_late_refusal_of_earlier_try(late):
    """The first attempt is refused after the second one went out: the second one's answer decides."""
    under = window()
    entry = send(under, with_id=True, timeout=30)
    [(second, _)] = under.check_publishes(ATTEMPT)[1]
    expected = (entry.header, entry.payload, entry.due)
    assert answers(under, [late], 2.1) == ([], [], [])
    assert (entry.waits, entry.header, entry.payload, entry.due) == (False, *expected), "still on the wire"
    assert under.check_publishes(2.5) == ([], []), "nothing is sent again for it"
    assert answers(under, [ack(second)], 2.6)[0] == ["1"]


def test_no_time_for_another_try():
    under = window()
    send(under, timeout=0.2)
    assert errors(answers(under, [nobody(1)], 0.0)[2]) == [("1", NoRespondersError)]


def test_time_over_while_waits_for_next_try():
    under = window()
    send(under, timeout=5)
    answers(under, [nobody(1)], 1.0)
    under.disconnected()
    assert errors(under.check_publishes(5.0)[0]) == [("1", NoRespondersError)]


# --- a second try that fails by the first -----------------------------------------------------------------------


def uncertain_window() -> tuple[PublishWindow[str], bytes]:
    """A window whose publish asks whether it was stored, and the subject to which the answer goes."""
    under = window()
    send(under, with_id=True, timeout=30)
    [(second, _)] = under.check_publishes(2.0)[1]
    assert answers(under, [refusal(second, 10071)], 2.1) == ([], [], [])
    assert under.next_check == 2.1
    [(third, entry)] = under.check_publishes(2.1)[1]
    assert parse_headers(entry.header)[1] == {
        "Nats-Msg-Id": "an id",
        "Nats-Expected-Last-Msg-Id": "never an id",
        "Nats-Rollup": "none",
    }
    assert entry.payload == b""
    assert under.size == entry.size == len(entry.header)
    return under, third


def test_it_was_stored_before():
    under, at = uncertain_window()
    assert answers(under, [ack(at, duplicate=True)], 2.2)[0] == ["1"]
    assert under.size == 0


@pytest.mark.parametrize("code", [10070, 10111])  # one server, a cluster
def test_it_was_not(code):
    under, at = uncertain_window()
    assert errors(answers(under, [refusal(at, code)], 2.2)[2]) == [("1", WrongLastSequenceError)]


def test_outcome_stays_unknown():
    under, at = uncertain_window()
    assert errors(answers(under, [refusal(at, 10077)], 2.2)[2]) == [("1", RequestTimeoutError)]


@pytest.mark.parametrize("code", [10023, 10002, 10077])
def test_late_limit_is_inconclusive(code):
    """The server judges limits before ids."""
    for answer, outcome in ((10070, ApiError), (code, RequestTimeoutError)):
        under = window()
        send(under, with_id=True, timeout=30)
        [(second, _)] = under.check_publishes(2.0)[1]
        assert answers(under, [refusal(second, code)], 2.1) == ([], [], [])
        [(third, _)] = under.check_publishes(2.1)[1]
        [(_, error)] = answers(under, [refusal(third, answer)], 2.2)[2]
        assert type(error) is outcome
        assert outcome is RequestTimeoutError or error.err_code == code


def test_overtaken_id_stays_taken():
    """10070 comes when the message is applied. Its id was remembered before. The next try is answered "in process"."""
    under = window()
    send(under, 1, with_id=True, timeout=30)
    send(under, 2, with_id=True, timeout=30)
    assert answers(under, [refusal(2, 10070)], 0.1) == ([], [], [])
    [(second, _)] = under.check_publishes(0.1 + PAUSE)[1]
    [(entry, error)] = answers(under, [refusal(second, 10158)], 0.4)[2]
    assert (entry.number, error.err_code) == (2, 10070)


def test_old_cluster_still_storing():
    """A duplicate without a sequence: it is unknown whether the message was stored."""
    under = window()
    send(under, with_id=True)
    assert answers(under, [reply_with(1, b'{"stream":"S","seq":0,"duplicate":true}')], 0.0) == ([], [], [])
    [(at, _)] = under.check_publishes(PAUSE)[1]
    assert answers(under, [ack(at, duplicate=True)], 0.3)[0] == ["1"]


def test_failed_first_try_is_not_checked():
    under = window()
    send(under, with_id=True)
    assert errors(answers(under, [refusal(1, 10071)], 0.1)[2]) == [("1", WrongLastSequenceError)]


def test_question_keeps_id_and_nothing_else():
    block = b"NATS/1.0\r\nA: b\r\nNats-Msg-Id: \xc3\xbc 1\r\nNats-Expected-Last-Sequence: 4\r\n\r\n"
    assert parse_headers(question(block, "x"))[1] == {
        "Nats-Msg-Id": "ü 1",
        "Nats-Expected-Last-Msg-Id": "x",
        "Nats-Rollup": "none",
    }

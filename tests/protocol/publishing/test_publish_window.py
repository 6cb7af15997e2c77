"""The window of publishes: the meaning of each answer, of silence and of a disconnect. Source: ADR-22."""

from __future__ import annotations

import random

import pytest

from jsclient.errors import (
    ApiError,
    DisconnectedError,
    ProtocolError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jsclient.protocol.models import PubAck
from jsclient.protocol.publishing.in_flight import (
    PAUSE,
    first_reply,
    reply_of,
)
from jsclient.protocol.publishing.publish_window import NEVER
from tests.protocol.publishing.kit import (
    NO_RESPONDERS,
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

# --- answers -----------------------------------------------------------------------------------------------


def test_an_ack_ends_a_publish():
    under = window()
    send(under, 1)
    send(under, 2)
    assert under.size == 10
    assert answers(under, [ack(2, 9), ack(1, 8, duplicate=True, domain="hub")], 0.1) == (
        ["2", "1"],
        [PubAck(stream="ORDERS", seq=9), PubAck(stream="ORDERS", seq=8, duplicate=True, domain="hub")],
        [],
    )
    assert (under.in_flight, under.size, under.stored) == ({}, 0, 2)


def test_late_answers_ignored():
    under = window()
    send(under, 1)
    answers(under, [ack(1)], 0.1)
    late = [ack(1), refusal(1, 10077), nobody(1), ack(9), ack(b"other"), reply_with(b"_INBOX.x.1-2", b"x")]
    assert answers(under, late, 0.2) == ([], [], [])
    assert under.stored == 1


def test_ack_with_field_not_known_ack():
    under = window()
    send(under)
    assert answers(under, [ack(1, new="x")], 0.1)[1] == [PubAck(stream="ORDERS", seq=7, extra={"new": "x"})]


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (refusal(1, 10077, 503), ApiError),
        (refusal(1, 10071), WrongLastSequenceError),
        (reply_with(1, b""), ProtocolError),
        (reply_with(1, b"+OK"), ProtocolError),
        (reply_with(1, {"stream": "ORDERS"}), ProtocolError),
        (reply_with(1, {"stream": "ORDERS", "seq": "7"}), ProtocolError),
        (reply_with(1, b"\xff{"), ProtocolError),
        (reply_with(1, b"[" * 5000), ProtocolError),
    ],
)
def test_an_error_ends_a_publish(frame, error):
    for with_id in (False, True):
        under = window()
        send(under, with_id=with_id)
        tickets, acks, failures = answers(under, [frame], 0.1)
        assert (tickets, acks, errors(failures)) == ([], [], [("1", error)])
        assert (under.in_flight, under.size, under.stored) == ({}, 0, 0)


def test_status_ack_and_503_payload():
    under = window()
    send(under)
    send(under, 2)
    frames = [(reply(1), b"", NO_RESPONDERS, ack(1)[3]), (reply(2), b"", NO_RESPONDERS, b"x")]
    tickets, _, failures = answers(under, frames, 0.1)
    assert (tickets, errors(failures)) == (["1"], [("2", ProtocolError)])


# --- silence -------------------------------------------------------------------------------------------------


def test_silence_without_id_unknown():
    under = window()
    send(under, 1, timeout=5)
    send(under, 2, timeout=1)
    assert under.next_check == 1
    assert errors(under.check_publishes(1.0)[0]) == [("2", RequestTimeoutError)]
    assert under.next_check == 5
    assert errors(under.check_publishes(5.0)[0]) == [("1", RequestTimeoutError)]
    assert under.next_check == NEVER
    assert under.size == 0


def test_tries_get_more_time():
    under = window()
    send(under, with_id=True, timeout=20)
    sent, now = [], 0.0
    while under.next_check < NEVER:
        now = under.next_check
        failures, sends = under.check_publishes(now)
        sent += [now] * len(sends)
    assert sent == [2, 6, 14]
    assert (now, errors(failures)) == (20, [("1", RequestTimeoutError)])


def test_silence_after_refusals():
    """An election: silence, then no responders for a while, then a try that goes down with a leader."""
    under = window()
    send(under, with_id=True, timeout=60)
    [(at, _)] = under.check_publishes(2.0)[1]
    now = 2.0
    for _ in range(12):
        assert answers(under, [nobody(at)], now) == ([], [], [])
        now = under.next_check
        [(at, _)] = under.check_publishes(now)[1]
    begin, sent = now, []
    while now < 56:
        now = under.next_check
        sent += [now - begin] * len(under.check_publishes(now)[1])
    assert sent == [4, 12, 20, 28, 36, 44][: len(sent)]
    assert len(sent) >= 5


def test_looks_are_some_time_apart():
    under = window()
    for number in range(1, 100):
        send(under, number, timeout=1 + number / 10_000)
    looks = []
    while under.next_check < NEVER:
        looks.append(under.next_check)
        under.check_publishes(under.next_check)
    assert len(looks) == 2


def test_uncertain_publish_ends_unknown():
    """An earlier try may have been stored, so it must not be said that no stream took it."""
    under = window()
    send(under, with_id=True, timeout=5)
    [(at, _)] = under.check_publishes(2.0)[1]
    now = 2.0
    for _ in range(5):
        assert answers(under, [nobody(at)], now) == ([], [], [])
        now = under.next_check
        [(at, _)] = under.check_publishes(now)[1]
    assert errors(answers(under, [nobody(at)], 4.9)[2]) == [("1", RequestTimeoutError)]


def test_first_try_still_being_stored():
    under = window()
    send(under, with_id=True)
    assert answers(under, [refusal(1, 10158)], 0.0) == ([], [], [])
    [(at, _)] = under.check_publishes(PAUSE)[1]
    assert answers(under, [ack(at, duplicate=True)], 0.3)[0] == ["1"]
    send(under, 2, with_id=True, timeout=0.1)
    assert errors(answers(under, [refusal(2, 10158)], 0.0)[2]) == [("2", RequestTimeoutError)]


def test_without_id_not_being_stored():
    under = window()
    send(under)
    assert errors(answers(under, [refusal(1, 10158)], 0.0)[2]) == [("1", ApiError)]
    assert under.in_flight == {}


# --- the connection --------------------------------------------------------------------------------------------


def test_lost_connection_resends_ids():
    under = window()
    for number in range(1, 7):
        send(under, number, with_id=number % 2 == 0)
    answers(under, [ack(2)], 0.1)
    assert errors(under.disconnected()) == [(n, DisconnectedError) for n in "135"]
    assert under.check_publishes(1.0) == ([], [])
    assert numbers(under.connected(2.5)) == ["4", "6"]
    assert under.connected(2.5) == []
    assert under.check_publishes(2.5) == ([], [])
    assert under.next_check == 4.5
    assert answers(under, [ack(reply_of(reply(4), 2), duplicate=True), ack(reply_of(reply(6), 2))], 2.6)[
        0
    ] == ["4", "6"]
    assert under.size == 0


def test_waiting_try_survives():
    """The message was not stored, so this is no repetition, with or without an id. Later it would be overtaken."""
    under = window()
    for number in range(1, 5):
        send(under, number, with_id=number != 2)
    answers(under, [nobody(2), nobody(3)], 0.0)
    assert under.disconnected() == []
    assert under.check_publishes(PAUSE) == ([], [])
    under = window()
    for number in range(1, 5):
        send(under, number, with_id=number != 2)
    answers(under, [nobody(2), nobody(3)], 0.0)
    assert under.disconnected() == []
    assert numbers(under.connected(0.1)) == ["1", "2", "3", "4"]


def test_unsent_goes_next():
    under = window()
    send(under, with_id=True)
    under.disconnected()
    [(_, entry)] = under.connected(1.0)
    under.not_sent(entry)
    under.disconnected()
    assert under.resent == 0
    assert numbers(under.connected(1.5)) == ["1"]


def test_offline_at_deadline_unknown():
    under = window()
    send(under, with_id=True)
    under.disconnected()
    assert errors(under.check_publishes(5.0)[0]) == [("1", RequestTimeoutError)]


# --- who does not wait any more -----------------------------------------------------------------------------------


def test_unawaited_publish_stays_in_flight():
    under = window()
    for entry in (send(under, 1, with_id=True), send(under, 2), send(under, 3, with_id=True)):
        entry.ticket.over = True
    assert under.check_publishes(2.0) == ([], [])
    assert len(under.in_flight) == 3
    answers(under, [nobody(3)], 2.1)
    assert errors(under.disconnected()) == [("1", DisconnectedError), ("2", DisconnectedError)]
    assert (under.connected(3.0), under.size) == ([], 0)


def test_ack_nobody_waits_for_frees_window():
    under = window()
    send(under, 1).ticket.over = True
    send(under, 2, with_id=True)
    [(at, entry)] = under.check_publishes(2.0)[1]
    entry.ticket.over = True
    assert answers(under, [ack(1), ack(at, new=1)], 2.1) == ([], [], [])
    assert (under.in_flight, under.size, under.stored) == ({}, 0, 2)


def test_forgotten_with_its_waiter():
    under = window()
    ticket = send(under, 1).ticket
    answers(under, [nobody(1)], 0.0)
    ticket.over = True
    assert under.check_publishes(PAUSE) == ([], [])
    assert (under.in_flight, under.size, under.next_check) == ({}, 0, NEVER)


# --- small things ----------------------------------------------------------------------------------------------------


def test_unsendable_leaves_window():
    under = window()
    send(under, 1)
    under.remove(reply(1))
    under.remove(reply(1))
    assert (under.in_flight, under.size) == ({}, 0)
    send(under, 2)
    under.remove(reply_of(reply(2), 3))
    assert under.size == 0


def test_older_ones():
    under = window()
    assert not under.has_older(9)
    send(under, 1)
    send(under, 2)
    assert under.has_older(1)
    answers(under, [ack(1)], 0.1)
    assert not under.has_older(1)
    assert under.has_older(2)


@pytest.mark.parametrize(
    "subject", [b"", b"-", b"x", b"x-", b"-7", b"x-y", b"x-" + b"9" * 5000, b"x-\xb2", b"x-1-2"]
)
def test_any_subject_is_read(subject):
    first, number = first_reply(subject)
    assert isinstance(first, bytes)
    assert number >= 0


def test_any_answer_is_an_outcome():
    chance = random.Random(22)
    acks = [b'{"stream":"S","seq":1}', b'{"stream":"S","seq":0}', b'{"stream":"","seq":1}']
    odd = [
        b'{"stream":"S","seq":-1,"extra":{"a":1}}',
        b'{"error":null,"stream":"S","seq":1}',
        b'{"error":{}}',
    ]
    pieces = [*acks, *odd, b"", b"{}", b"[]", b"null", b"\xff", b'"', b"{" * 200]
    for _ in range(3000):
        under = window()
        send(under, with_id=chance.random() < 0.5)
        body = chance.choice(pieces) + chance.choice(pieces)
        header = chance.choice([b"", NO_RESPONDERS, b"NATS/1.0\r\n\r\n", b"\xff"])
        tickets, acks, failures = answers(under, [(reply(1), b"", header, body)], 0.1)
        assert len(tickets) == len(acks)
        assert len(tickets) + len(failures) + len(under.in_flight) == 1

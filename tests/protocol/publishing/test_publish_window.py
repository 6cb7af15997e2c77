"""The window of publishes: what each answer, silence and disconnect means. Source: ADR-22."""

from __future__ import annotations

import random

import msgspec
import pytest

from jsclient.errors import (
    ApiError,
    DisconnectedError,
    NoRespondersError,
    ProtocolError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jsclient.protocol.models import PubAck
from jsclient.protocol.publishing.in_flight import (
    ATTEMPT,
    PAUSE,
    AnsweredSubjects,
    InFlight,
    first_reply,
    question,
    reply_of,
)
from jsclient.protocol.publishing.publish_window import NEVER, PublishWindow
from jsclient.protocol.wire.headers import parse_headers

ID = b"NATS/1.0\r\nNats-Msg-Id: an id\r\n\r\n"
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


ACKED: list[tuple[str, PubAck]] = []
"""What tickets were given, since it was last looked at."""


class Ticket:
    """Stands for a future."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, ack: PubAck) -> None:
        assert not self.over
        self.over = True
        ACKED.append((self.name, ack))


def window() -> PublishWindow[Ticket]:
    ACKED.clear()
    return PublishWindow("never an id")


def answers(under, frames, now) -> tuple[list[str], list[PubAck], list]:
    """Whose publishes were stored, their acks, and what failed."""
    failures = under.answers(frames, now)
    tickets, acks = [name for name, _ in ACKED], [ack for _, ack in ACKED]
    ACKED.clear()
    return tickets, acks, failures


def reply(number: int) -> bytes:
    return b"_INBOX.x.%d" % number


def send(under, number=1, *, now=0.0, timeout=5.0, with_id=False, payload=b"12345"):
    """A publish goes out; its ticket is its number as text."""
    header = ID if with_id else b""
    due = min(now + timeout, now + ATTEMPT) if with_id else now + timeout
    size = len(header) + len(payload)
    entry = InFlight(
        Ticket(str(number)),
        b"orders.new",
        header,
        payload,
        size,
        number,
        now + timeout,
        due,
        repeatable=with_id,
    )
    under.add(reply(number), entry)
    return entry


def reply_with(to, body) -> tuple[bytes, bytes, bytes, bytes]:
    subject = to if isinstance(to, bytes) else reply(to)
    return subject, b"", b"", body if isinstance(body, bytes) else msgspec.json.encode(body)


def ack(to, seq=7, **fields):
    return reply_with(to, {"stream": "ORDERS", "seq": seq, **fields})


def refusal(to, err_code, code=400):
    return reply_with(to, {"error": {"code": code, "err_code": err_code, "description": "no"}})


def nobody(to):
    subject = to if isinstance(to, bytes) else reply(to)
    return subject, b"", NO_RESPONDERS, b""


def errors(failures) -> list[tuple[str, type[Exception]]]:
    return [(entry.ticket.name, type(error)) for entry, error in failures]


def numbers(sends) -> list[str]:
    return [entry.ticket.name for _, entry in sends]


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


# --- no stream -----------------------------------------------------------------------------------------------


def test_unknown_subject_gets_three_attempts():
    under = window()
    send(under)
    now, at = 0.0, 1
    for tries in (2, 3):
        assert answers(under, [nobody(at if isinstance(at, bytes) else 1)], now) == ([], [], [])
        assert under.next_check == now + PAUSE
        assert under.tick(now + PAUSE - 0.01) == ([], [])
        now += PAUSE
        failures, sends = under.tick(now)
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
        failures, sends = under.tick(now)
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
    assert numbers(under.tick(PAUSE)[1]) == ["1"]


def test_retry_may_be_stored():
    under = window()
    send(under)
    answers(under, [nobody(1)], 0.0)
    [(at, _)] = under.tick(PAUSE)[1]
    assert answers(under, [ack(at)], 0.3)[0] == ["1"]


def test_answer_to_earlier_try_counts_if_ack():
    under = window()
    send(under, with_id=True, timeout=30)
    [(second, _)] = under.tick(ATTEMPT)[1]
    assert second == reply_of(reply(1), 2)
    assert answers(under, [refusal(1, 10077), nobody(1), reply_with(1, b"x")], 2.1) == ([], [], [])
    assert answers(under, [ack(1)], 2.2)[0] == ["1"]


@pytest.mark.parametrize("late", [refusal(1, 10077), refusal(1, 10071), nobody(1), reply_with(1, b"x")])
def test_late_refusal_of_earlier_try(late):
    """The first attempt is refused after the second one went out: the second one's answer decides."""
    under = window()
    entry = send(under, with_id=True, timeout=30)
    [(second, _)] = under.tick(ATTEMPT)[1]
    wanted = (entry.header, entry.payload, entry.due)
    assert answers(under, [late], 2.1) == ([], [], [])
    assert (entry.waits, entry.header, entry.payload, entry.due) == (False, *wanted), "still on the wire"
    assert under.tick(2.5) == ([], []), "nothing is sent again for it"
    assert answers(under, [ack(second)], 2.6)[0] == ["1"]


def test_no_time_left_for_another_try():
    under = window()
    send(under, timeout=0.2)
    assert errors(answers(under, [nobody(1)], 0.0)[2]) == [("1", NoRespondersError)]


def test_time_over_while_waits_for_next_try():
    under = window()
    send(under, timeout=5)
    answers(under, [nobody(1)], 1.0)
    under.disconnected()
    assert errors(under.tick(5.0)[0]) == [("1", NoRespondersError)]


# --- silence -------------------------------------------------------------------------------------------------


def test_silence_without_id_unknown():
    under = window()
    send(under, 1, timeout=5)
    send(under, 2, timeout=1)
    assert under.next_check == 1
    assert errors(under.tick(1.0)[0]) == [("2", RequestTimeoutError)]
    assert under.next_check == 5
    assert errors(under.tick(5.0)[0]) == [("1", RequestTimeoutError)]
    assert under.next_check == NEVER
    assert under.size == 0


def test_tries_get_more_time():
    under = window()
    send(under, with_id=True, timeout=20)
    sent, now = [], 0.0
    while under.next_check < NEVER:
        now = under.next_check
        failures, sends = under.tick(now)
        sent += [now] * len(sends)
    assert sent == [2, 6, 14]
    assert (now, errors(failures)) == (20, [("1", RequestTimeoutError)])


def test_silence_after_refusals():
    """An election: silence, then nobody for a while, then a try that goes down with a leader."""
    under = window()
    send(under, with_id=True, timeout=60)
    [(at, _)] = under.tick(2.0)[1]
    now = 2.0
    for _ in range(12):
        assert answers(under, [nobody(at)], now) == ([], [], [])
        now = under.next_check
        [(at, _)] = under.tick(now)[1]
    begin, sent = now, []
    while now < 56:
        now = under.next_check
        sent += [now - begin] * len(under.tick(now)[1])
    assert sent == [4, 12, 20, 28, 36, 44][: len(sent)]
    assert len(sent) >= 5


def test_looks_are_some_time_apart():
    under = window()
    for number in range(1, 100):
        send(under, number, timeout=1 + number / 10_000)
    looks = []
    while under.next_check < NEVER:
        looks.append(under.next_check)
        under.tick(under.next_check)
    assert len(looks) == 2


def test_doubt_ends_unknown():
    """An earlier try may have been stored, so it must not be said that no stream took it."""
    under = window()
    send(under, with_id=True, timeout=5)
    [(at, _)] = under.tick(2.0)[1]
    now = 2.0
    for _ in range(5):
        assert answers(under, [nobody(at)], now) == ([], [], [])
        now = under.next_check
        [(at, _)] = under.tick(now)[1]
    assert errors(answers(under, [nobody(at)], 4.9)[2]) == [("1", RequestTimeoutError)]


def test_first_try_still_being_stored():
    under = window()
    send(under, with_id=True)
    assert answers(under, [refusal(1, 10158)], 0.0) == ([], [], [])
    [(at, _)] = under.tick(PAUSE)[1]
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
    assert under.tick(1.0) == ([], [])
    assert numbers(under.connected(2.5)) == ["4", "6"]
    assert under.connected(2.5) == []
    assert under.tick(2.5) == ([], [])
    assert under.next_check == 4.5
    assert answers(under, [ack(reply_of(reply(4), 2), duplicate=True), ack(reply_of(reply(6), 2))], 2.6)[
        0
    ] == ["4", "6"]
    assert under.size == 0


def test_waiting_try_survives():
    """Nothing was stored, so it is no repetition, with or without an id. It goes at once, else others overtook it."""
    under = window()
    for number in range(1, 5):
        send(under, number, with_id=number != 2)
    answers(under, [nobody(2), nobody(3)], 0.0)
    assert under.disconnected() == []
    assert under.tick(PAUSE) == ([], [])
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
    assert errors(under.tick(5.0)[0]) == [("1", RequestTimeoutError)]


# --- a second try that fails by the first -----------------------------------------------------------------------


def asked() -> tuple[PublishWindow[str], bytes]:
    """A window whose publish asks whether it was stored, and where the answer goes."""
    under = window()
    send(under, with_id=True, timeout=30)
    [(second, _)] = under.tick(2.0)[1]
    assert answers(under, [refusal(second, 10071)], 2.1) == ([], [], [])
    assert under.next_check == 2.1
    [(third, entry)] = under.tick(2.1)[1]
    assert parse_headers(entry.header)[1] == {
        "Nats-Msg-Id": "an id",
        "Nats-Expected-Last-Msg-Id": "never an id",
        "Nats-Rollup": "none",
    }
    assert entry.payload == b""
    assert under.size == entry.size == len(entry.header)
    return under, third


def test_it_was_stored_before():
    under, at = asked()
    assert answers(under, [ack(at, duplicate=True)], 2.2)[0] == ["1"]
    assert under.size == 0


@pytest.mark.parametrize("code", [10070, 10111])  # one server, a cluster
def test_it_was_not(code):
    under, at = asked()
    assert errors(answers(under, [refusal(at, code)], 2.2)[2]) == [("1", WrongLastSequenceError)]


def test_whether_cannot_be_found_out():
    under, at = asked()
    assert errors(answers(under, [refusal(at, 10077)], 2.2)[2]) == [("1", RequestTimeoutError)]


@pytest.mark.parametrize("code", [10023, 10002, 10077])
def test_late_limit_is_inconclusive(code):
    """The server judges limits before ids."""
    for answer, outcome in ((10070, ApiError), (code, RequestTimeoutError)):
        under = window()
        send(under, with_id=True, timeout=30)
        [(second, _)] = under.tick(2.0)[1]
        assert answers(under, [refusal(second, code)], 2.1) == ([], [], [])
        [(third, _)] = under.tick(2.1)[1]
        [(_, error)] = answers(under, [refusal(third, answer)], 2.2)[2]
        assert type(error) is outcome
        assert outcome is RequestTimeoutError or error.err_code == code


def test_overtaken_id_stays_taken():
    """10070 comes when the message is applied; its id was remembered before. The next try is told "in process"."""
    under = window()
    send(under, 1, with_id=True, timeout=30)
    send(under, 2, with_id=True, timeout=30)
    assert answers(under, [refusal(2, 10070)], 0.1) == ([], [], [])
    [(second, _)] = under.tick(0.1 + PAUSE)[1]
    [(entry, error)] = answers(under, [refusal(second, 10158)], 0.4)[2]
    assert (entry.number, error.err_code) == (2, 10070)


def test_old_cluster_still_storing():
    """A duplicate without a sequence: nothing is known to be stored."""
    under = window()
    send(under, with_id=True)
    assert answers(under, [reply_with(1, b'{"stream":"S","seq":0,"duplicate":true}')], 0.0) == ([], [], [])
    [(at, _)] = under.tick(PAUSE)[1]
    assert answers(under, [ack(at, duplicate=True)], 0.3)[0] == ["1"]


def test_first_try_fails_not_asked_about():
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


# --- who does not wait any more -----------------------------------------------------------------------------------


def test_unawaited_keeps_place():
    under = window()
    for entry in (send(under, 1, with_id=True), send(under, 2), send(under, 3, with_id=True)):
        entry.ticket.over = True
    assert under.tick(2.0) == ([], [])
    assert len(under.in_flight) == 3
    answers(under, [nobody(3)], 2.1)
    assert errors(under.disconnected()) == [("1", DisconnectedError), ("2", DisconnectedError)]
    assert (under.connected(3.0), under.size) == ([], 0)


def test_ack_nobody_waits_for_frees_place():
    under = window()
    send(under, 1).ticket.over = True
    send(under, 2, with_id=True)
    [(at, entry)] = under.tick(2.0)[1]
    entry.ticket.over = True
    assert answers(under, [ack(1), ack(at, new=1)], 2.1) == ([], [], [])
    assert (under.in_flight, under.size, under.stored) == ({}, 0, 2)


def test_forgotten_with_its_waiter():
    under = window()
    ticket = send(under, 1).ticket
    answers(under, [nobody(1)], 0.0)
    ticket.over = True
    assert under.tick(PAUSE) == ([], [])
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

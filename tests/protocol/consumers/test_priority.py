"""Priority groups: the fields of a request, and the pin of a pinned client."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import BadRequestError, ConfigError, InvalidNameError, StatusError
from jsclient.protocol.consumers.consume import ConsumeTracker, SendPull
from jsclient.protocol.consumers.fetch import Pull, PullRequest, default_expires, encode_pull
from jsclient.protocol.consumers.priority import (
    GroupRequest,
    Pin,
    check_group_name,
    group_request,
    pins_clients,
)
from jsclient.protocol.consumers.push import Emit
from jsclient.protocol.consumers.status import Ending
from jsclient.protocol.events import ErrorRaised, Pinned, Unpinned
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.strategies import CONSUMER, STREAM, data, status

OVERFLOW = ConsumerConfig(priority_groups=["a", "b"], priority_policy="overflow")
PINNED = ConsumerConfig(priority_groups=["a"], priority_policy="pinned_client")
PRIORITIZED = ConsumerConfig(priority_groups=["a"], priority_policy="prioritized")
PLAIN = ConsumerConfig()
WRONG, MISMATCH = "Nats-Wrong-Pin-Id", "Nats-Pin-Id mismatch"


# --- what a request says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-z_0/9=", "x" * 16])
def test_a_legal_name_passes(name):
    assert check_group_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 17, "a b", "a.b", "a*", "ä", "a\n", "a\r\nb", None, 7, b"a", ["a"]]
)
def test_an_illegal_name_is_refused(name):
    with pytest.raises(InvalidNameError, match="group"):
        check_group_name(name)


@pytest.mark.row(86, 87, 89)
@pytest.mark.parametrize(
    ("config", "options", "request_"),
    [
        (None, {}, None),
        (PLAIN, {}, None),
        (ConsumerConfig(priority_groups=[]), {}, None),
        (OVERFLOW, {"group": "a"}, GroupRequest("a")),
        (OVERFLOW, {"group": "b", "min_pending": 1}, GroupRequest("b", 1)),
        (OVERFLOW, {"group": "a", "min_ack_pending": 2**63 - 1}, GroupRequest("a", None, 2**63 - 1)),
        (PINNED, {"group": "a"}, GroupRequest("a")),
        (PRIORITIZED, {"group": "a", "priority": 0}, GroupRequest("a", priority=0)),
        (PRIORITIZED, {"group": "a", "priority": 9}, GroupRequest("a", priority=9)),
        (None, {"group": "z", "min_pending": 3, "priority": 1}, GroupRequest("z", 3, None, 1)),
    ],
)
def test_what_can_work_passes(config, options, request_):
    assert group_request(config, **{"group": None, **options}) == request_


@pytest.mark.row(86, 87, 89)
@pytest.mark.parametrize(
    ("config", "options", "says"),
    [
        (OVERFLOW, {}, "priority groups .a, b.: give one of them as group="),
        (PINNED, {}, "give one of them as group="),
        (OVERFLOW, {"group": "c"}, "groups a, b"),
        (PLAIN, {"group": "a"}, "no priority groups"),
        (None, {"min_pending": 1}, "min_pending is given without a group"),
        (PLAIN, {"min_ack_pending": 1}, "without a group"),
        (OVERFLOW, {"priority": 1}, "without a group"),
        (None, {"group": "a", "min_pending": 0}, "integer from 1 to"),
        (None, {"group": "a", "min_pending": -1}, "integer from 1 to"),
        (None, {"group": "a", "min_pending": 2**63}, "integer from 1 to"),
        (None, {"group": "a", "min_ack_pending": True}, "integer from 1 to"),
        (None, {"group": "a", "min_ack_pending": 1.0}, "integer from 1 to"),
        (None, {"group": "a", "priority": -1}, "0 to 9"),
        (None, {"group": "a", "priority": 10}, "0 to 9"),
        (None, {"group": "a", "priority": False}, "0 to 9"),
        (PINNED, {"group": "a", "min_pending": 1}, "overflow; the consumer's is pinned_client"),
        (PRIORITIZED, {"group": "a", "min_ack_pending": 1}, "overflow"),
        (OVERFLOW, {"group": "a", "priority": 0}, "prioritized; the consumer's is overflow"),
    ],
)
def test_what_cannot_work_is_refused(config, options, says):
    with pytest.raises(ConfigError, match=says):
        group_request(config, **{"group": None, **options})


def test_unknown_policy_allows_all():
    config = PLAIN.replace(priority_groups=["a"])
    future = ConsumerConfig.__reduce__(config.replace())[1][1] | {"priority_policy": "of_2050"}
    config = config.__reduce__()[0](ConsumerConfig, future)
    assert group_request(config, "a", min_pending=1, priority=1) == GroupRequest("a", 1, None, 1)


@pytest.mark.row(86, 87, 89)
def test_only_what_was_given_is_sent():
    assert json.loads(encode_pull(Pull(1))) == {"batch": 1}
    assert json.loads(encode_pull(Pull(1, group=GroupRequest("a")))) == {"batch": 1, "group": "a"}
    assert json.loads(encode_pull(Pull(1, group=GroupRequest("a", 5, 6, 0), pin="p"))) == {
        "batch": 1,
        "group": "a",
        "min_pending": 5,
        "min_ack_pending": 6,
        "priority": 0,
        "id": "p",
    }


@pytest.mark.parametrize(
    ("config", "expires"),
    [
        (None, 30.0),
        (PINNED, 30.0),
        (PINNED.replace(priority_timeout=120.0), 30.0),
        (PINNED.replace(priority_timeout=10.0), 5.0),
    ],
)
def test_pin_renewed_in_time(config, expires):
    assert default_expires(config) == expires


# --- the pin -----------------------------------------------------------------------------------------------------


def block(*pins: str, name: str = "Nats-Pin-Id") -> bytes:
    """A header block with these pins."""
    return b"NATS/1.0\r\nA: b\r\n" + b"".join(f"{name}: {pin}\r\n".encode() for pin in pins) + b"\r\n"


def pin() -> Pin:
    return Pin(STREAM, CONSUMER, "a")


def pinned(pin_id: str) -> Pinned:
    return Pinned(stream=STREAM, consumer=CONSUMER, group="a", pin_id=pin_id)


def unpinned(pin_id: str) -> Unpinned:
    return Unpinned(stream=STREAM, consumer=CONSUMER, group="a", pin_id=pin_id)


def test_whether_consumer_pins_clients():
    assert [pins_clients(config) for config in (None, PINNED, OVERFLOW, PRIORITIZED, PLAIN)] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.row(87)
def test_pin_told_when_comes_and_when_goes():
    mine = pin()
    assert mine.message(block("one")) == pinned("one")
    assert mine.message(block("one")) is None
    assert mine.id == "one"
    assert mine.refused(423, "one") == unpinned("one")
    assert mine.id is None
    assert mine.message(block("two")) == pinned("two")


@pytest.mark.row(87)
def test_last_line_servers():
    """One that was stored with the message stands before it."""
    mine = pin()
    mine.message(block("stored", "stored too", "server"))
    assert mine.id == "server"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"NATS/1.0\r\n\r\n",
        block("x", name="nats-pin-id"),
        block("x", name="X-Nats-Pin-Id"),
        block(""),
        block("a b"),
        block("x" * 129),
        b"NATS/1.0\r\nNats-Pin-Id: unfinished",
        b"NATS/1.0\r\nNats-Pin-Id: \xff\xfe\r\n\r\n",
        b"NATS/1.0\r\nA: Nats-Pin-Id: x\r\n\r\n",
    ],
)
def test_no_pin_changes_nothing(header):
    mine = pin()
    mine.message(block("good"))
    assert mine.message(header) is None
    assert (mine.id, mine.seen) == ("good", 1)


@given(st.binary(max_size=200))
def test_any_bytes_are_read(junk):
    pin().message(b"NATS/1.0\r\nNats-Pin-Id: " + junk)


@pytest.mark.row(87)
def test_late_refusal_changes_nothing():
    mine = pin()
    mine.message(block("one"))
    mine.message(block("two"))
    assert mine.refused(423, "one") is None
    assert mine.refused(423, None) is None
    assert mine.id == "two"


def test_unpinned_header_is_data():
    mine = pin()
    mine.message(block("poison"))
    assert mine.refused(400, "poison") == unpinned("poison")
    assert mine.message(block("poison")) is None
    assert mine.id is None


# --- one request -------------------------------------------------------------------------------------------------


@pytest.mark.row(87)
@pytest.mark.parametrize("text", [WRONG, MISMATCH])
def test_refused_pin_or_refusal(text):
    request = PullRequest(Pull(1, 5.0, pin="p"), 0.0)
    request.status(423, text, 1.0)
    assert (request.ending, request.is_unpinned, request.settled) == (Ending.UNPINNED, True, True)
    with_pin = PullRequest(Pull(2, 5.0), 0.0)
    with_pin.data(0.5)
    with_pin.pin = "p"
    with_pin.status(423, text, 1.0)
    assert with_pin.is_unpinned
    without = PullRequest(Pull(1, 5.0), 0.0)
    without.status(423, text, 1.0)
    assert (without.is_unpinned, type(without.error)) == (False, StatusError)


def test_pinless_consumer_retry():
    request = PullRequest(Pull(1, 5.0, pin="p"), 0.0)
    request.status(400, "Bad Request - Not a Pinned Client Priority consumer", 1.0)
    assert request.is_unpinned
    assert type(request.error) is BadRequestError


# --- a continuous reader -----------------------------------------------------------------------------------------


class reading:  # noqa: N801  reads as: read = reading(10, 5)
    """A tracker that has asked for its first messages."""

    def __init__(self, batch: int = 10, threshold: int = 5, **fields) -> None:
        self.pin = pin()
        self.pull = Pull(batch, 30.0, group=GroupRequest("a"), **fields)
        self.tracker = ConsumeTracker(STREAM, CONSUMER, self.pull, threshold, self.pin)
        self.asks = [command for command in self.tracker.connected(0.0) if isinstance(command, SendPull)]
        self.events = []

    def arrives(self, *frames) -> None:
        self.carry_out(self.tracker.receive(list(frames), 0.0) + self.tracker.next_requests())

    def take(self, count: int) -> None:
        for _ in range(count):
            self.carry_out(self.tracker.take_frame()[1])

    def carry_out(self, commands) -> None:
        self.asks += [command for command in commands if isinstance(command, SendPull)]
        self.events += [command.event for command in commands if isinstance(command, Emit)]

    @property
    def shown(self) -> list[tuple[int, str | None]]:
        """The amount that each request asked for, and the pin it showed."""
        return [(ask.pull.batch, ask.pull.pin) for ask in self.asks]


def message(number: int, pin_id: str):
    return data(number, header=block(pin_id))


def refusal(number: int, text: str = WRONG, code: int = 423, **fields):
    _, reply, header, payload = status(code, text, **fields)
    return f"_INBOX.reader.{number}".encode(), reply, header, payload


def unserved(messages: int):
    return {"Nats_Pending_Messages": messages, "Nats_Pending_Bytes": 0}


@pytest.mark.row(87)
def test_requests_show_pin_as_soon_as_came():
    read = reading()
    read.arrives(*[message(number, "one") for number in range(1, 11)])
    read.take(6)
    assert read.shown == [(10, None), (5, "one")]
    assert [ask.number for ask in read.asks] == [1, 2]
    assert read.events == [pinned("one")]


@pytest.mark.row(87)
def test_refused_amount_asked_again():
    """One request waits, the other is refused as it comes. The first may have been given its pin by the server."""
    read = reading()
    read.arrives(*[message(number, "one") for number in range(1, 9)])
    read.take(8)
    assert read.shown == [(10, None), (5, "one")]
    read.arrives(refusal(2, MISMATCH))
    assert read.shown[2:] == [(8, None)]
    assert read.events[1:] == [unpinned("one")]
    read.arrives(refusal(1, WRONG, **unserved(2)))
    assert read.events[2:] == []
    assert read.tracker.buffer.owed == 8
    assert read.tracker.buffer.paused_until is None


@pytest.mark.row(87)
def test_pin_given_while_waiting():
    read = reading(10, 0)
    read.arrives(message(1, "one"))
    read.take(1)
    read.arrives(refusal(1, WRONG, **unserved(9)))
    assert read.shown == [(10, None), (10, None)]
    assert read.events == [pinned("one"), unpinned("one")]


@pytest.mark.row(87)
def test_late_refusal_keeps_new_pin():
    read = reading(10, 9)
    read.arrives(message(1, "one"))
    read.take(1)
    read.arrives(message(2, "two"))
    read.take(1)
    assert read.shown == [(10, None), (1, "one"), (1, "two")]
    read.arrives(refusal(2, WRONG, **unserved(1)))
    assert read.shown[3:] == [(1, "two")]
    assert read.pin.id == "two"
    # It is unknown which of the two pins answered the first request. The next message will show it.
    read.arrives(refusal(1, WRONG, **unserved(8)))
    assert (read.shown[4:], read.pin.id) == ([(8, "two")], "two")
    read.arrives(refusal(5, MISMATCH))
    assert (read.shown[5:], read.pin.id) == ([(8, None)], None)
    assert read.events == [pinned("one"), pinned("two"), unpinned("two")]


@pytest.mark.row(83, 87)
def test_strange_refusals_not_hot():
    read = reading()
    for number in range(1, 4):
        read.arrives(refusal(len(read.asks)))
        assert len(read.asks) == number
        assert read.tracker.buffer.paused_until is not None
        read.tracker.tick(read.tracker.buffer.paused_until)
        read.carry_out(read.tracker.next_requests())
    assert [type(event) for event in read.events] == [ErrorRaised] * 3


@pytest.mark.parametrize("number", ["0", "3", "x", "-1", "1" * 30, "²"])
def test_unmatched_refusal_is_plain(number):
    read = reading()
    read.arrives(message(1, "one"))
    read.arrives(refusal(number))
    assert read.pin.id == "one"
    assert read.tracker.buffer.paused_until is not None


@pytest.mark.row(83, 87)
@pytest.mark.parametrize("first", ["oldest", "newest"])
def test_each_refused_asked_once(first):
    """More than it remembers of them: what is known of old ones must not make it spin."""
    read = reading(500, 499)
    for number in range(1, 301):
        read.arrives(message(number, "one"))
        read.take(1)
    before = len(read.asks)
    numbers = range(1, before + 1)
    for number in numbers if first == "oldest" else reversed(numbers):
        read.arrives(refusal(number, WRONG, **unserved(200 if number == 1 else 1)))
    assert read.events == [pinned("one"), unpinned("one")]
    assert len(read.asks) == 2 * before
    assert {pin_id for _, pin_id in read.shown[before + 1 :]} == {None}
    assert read.tracker.buffer.owed == 500


def test_unknown_old_pin_is_requested_again():
    read = reading(100, 99)
    for number in range(1, 51):
        read.arrives(message(number, f"pin{number}"))
        read.take(1)
    read.arrives(refusal(1, WRONG, **unserved(50)))
    read.arrives(refusal(3, MISMATCH))
    assert read.pin.id == "pin50"
    assert {pin_id for _, pin_id in read.shown[-2:]} == {"pin50"}
    assert read.tracker.buffer.paused_until is None


def test_pinless_consumer_remembered():
    read = reading(10, 0)
    read.arrives(*[message(number, "poison") for number in range(1, 11)])
    read.take(10)
    read.arrives(refusal(2, "Bad Request - Not a Pinned Client Priority consumer", 400))
    read.arrives(*[message(number, "poison") for number in range(11, 21)])
    read.take(10)
    assert read.shown == [(10, None), (10, "poison"), (10, None), (10, None)]
    assert read.tracker.error is None


def test_pin_without_group_is_header():
    tracker = ConsumeTracker(STREAM, CONSUMER, Pull(10, 30.0), 5)
    tracker.connected(0.0)
    assert tracker.receive([message(number, "one") for number in range(1, 11)], 0.0) == []
    asks = [command for _ in range(10) for command in tracker.take_frame()[1]]
    assert [ask.pull for ask in asks] == [Pull(5, 30.0)] or all(ask.pull.pin is None for ask in asks)
    commands = tracker.receive([refusal(1)], 0.0)
    assert [type(command.event) for command in commands] == [ErrorRaised]

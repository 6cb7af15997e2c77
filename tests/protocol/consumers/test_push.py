"""The tracker of a push subscription: its messages, its answers, its reports."""

from __future__ import annotations

import msgspec
import pytest

from jsclient.errors import (
    ConsumerDeletedError,
    JetStreamError,
    NoRespondersError,
    NotJetStreamMessageError,
    StatusError,
)
from jsclient.protocol.consumers.monitors import GapTracker, HeartbeatMonitor
from jsclient.protocol.consumers.push import AnswerFlowControl, Emit, PushTracker
from jsclient.protocol.events import (
    ConsumerReset,
    ErrorRaised,
    Event,
    FlowControlRefused,
    FlowControlStalled,
    ForeignMessage,
    GapDetected,
    HeartbeatMissed,
    SlowConsumer,
)
from tests.support.strategies import FC, data, flow_control, foreign, heartbeat, status


def tracker(**fields) -> PushTracker:
    limits = {"max_pending": 100, "max_pending_bytes": 10_000}
    return PushTracker("ORDERS", "worker", **(limits | fields))


def watching(**fields) -> PushTracker:
    return tracker(gaps=GapTracker("ORDERS", "worker", 0), heartbeat=HeartbeatMonitor(1.0), **fields)


def events_of(commands) -> list[Event]:
    assert all(isinstance(command, Emit) for command in commands), commands
    return [command.event for command in commands]


def drained(push: PushTracker) -> list[object]:
    """All that is taken: payloads, errors and the subjects answered, in order."""
    out: list[object] = []
    while push.waits:
        try:
            frame, commands = push.take_frame()
        except JetStreamError as error:
            out.append(type(error))
            continue
        out += [command.subject for command in commands]
        out += [frame[3]] if frame else []
    return out


def messages(*numbers: int):
    return [data(number, payload=b"%d" % number) for number in numbers]


# --- control is never data, data is never control ----------------------------------------------------------


@pytest.mark.parametrize("make", [tracker, watching])
def test_first_batch_is_taken_whole(make, monkeypatch):
    single = []
    one = PushTracker._data
    monkeypatch.setattr(
        PushTracker, "_data", lambda *arguments: single.append(arguments[1]) or one(*arguments)
    )
    push = make()
    frames = messages(*range(1, 51))
    assert push.receive(frames, 0.0) == []
    assert single == frames[:1]
    assert drained(push) == [frame[3] for frame in frames]


@pytest.mark.covers("J107")
def test_unknown_status_100_reported_once():
    push = watching()
    frames = [status(100, "Something New"), status(100), *messages(1), heartbeat(1, 1)]
    (event,) = events_of(push.receive(frames, 0.0))
    assert (event.error.code, event.error.description) == (100, "Something New")
    assert drained(push) == [b"1"]


@pytest.mark.covers("J81")
@pytest.mark.parametrize(
    "frame",
    [
        heartbeat(1, 1),
        flow_control(),
        status(404, "No Messages"),
        status(408, "Request Timeout"),
        status(409, "Consumer Deleted"),
        status(503),
        status(777, "New"),
        foreign(),
    ],
)
def test_no_status_comes_out(frame):
    push = watching()
    push.receive([*messages(1), frame, *messages(2)], 0.0)
    assert [item for item in drained(push) if item in (b"1", b"2")] == [b"1", b"2"]
    assert push.received == 2


@pytest.mark.covers("J81")
@pytest.mark.parametrize(
    "header", [heartbeat(9, 9)[2], flow_control()[2], status(409, "Consumer Deleted")[2]]
)
@pytest.mark.parametrize("payload", [b"", b"x"])
def test_data_is_never_status(header, payload):
    push = watching()
    frame = data(1, payload=payload, header=header)
    assert push.receive([frame], 0.0) == []
    assert push.take_frame() == (frame, [])


@pytest.mark.covers("J66")
def test_broken_jsack_then_next():
    push = tracker()
    push.receive([*messages(1), (b"orders.new", b"$JS.ACK.x", b"", b"odd"), *messages(2)], 0.0)
    assert drained(push) == [b"1", NotJetStreamMessageError, b"2"]


@pytest.mark.covers("J66")
@pytest.mark.parametrize("make", [tracker, watching])
@pytest.mark.parametrize("index", [-4, -3, -2, -1])
@pytest.mark.parametrize("odd", [b"x", b"", b"1_0", b"+1", b"-1", b" 1", b"9" * 21, b"9" * 400])
def test_odd_number_in_run_reaches_no_handler(make, index, odd):
    """A number is damaged within a batch that arrives together: that message is dropped, the others are data."""
    push, frames = make(), messages(*range(1, 40))
    tokens = frames[20][1].split(b".")
    tokens[index] = odd
    frames[20] = (frames[20][0], b".".join(tokens), *frames[20][2:])
    push.receive(frames, 0.0)
    expected: list[object] = [b"%d" % number for number in range(1, 40)]
    expected[20] = NotJetStreamMessageError
    assert drained(push) == expected


def test_foreign_reported_at_doubling():
    push = tracker()
    events = events_of(push.receive([foreign()] * 100, 0.0))
    assert [event.count for event in events] == [1, 2, 4, 8, 16, 32, 64]
    assert all(isinstance(event, ForeignMessage) for event in events)
    assert push.foreign == 100
    assert not push.waits


# --- heartbeats ----------------------------------------------------------------------------------------------


@pytest.mark.covers("J82", "J83", "J84")
@pytest.mark.parametrize("frame", [data(1), heartbeat(), flow_control(), status(409, "x")])
def test_anything_delays_alarm(frame):
    push = watching()
    push.receive([frame], 10.0)
    assert push.deadline == 13.0
    assert push.tick(12.9) == []
    assert push.tick(13.0) == []  # a second look
    (event,) = events_of(push.tick(13.1))
    assert event == HeartbeatMissed(stream="ORDERS", consumer="worker", silent_for=pytest.approx(3.1))


@pytest.mark.covers("J82")
def test_no_heartbeat_no_watch():
    push = tracker()
    assert push.deadline is None
    assert push.tick(1e9) == []


@pytest.mark.covers("J87")
def test_after_alarm_messages_come_as_before():
    push = watching()
    push.tick(push.deadline)
    assert push.tick(push.deadline)
    push.receive(messages(1), 9.0)
    assert drained(push) == [b"1"]
    assert push.deadline == 12.0


# --- gaps ----------------------------------------------------------------------------------------------------


@pytest.mark.covers("J88", "J90")
def test_hole_between_messages_reported():
    push = watching()
    (event,) = events_of(push.receive(messages(1, 2, 5), 0.0))
    assert (event.last_consumer_seq, event.consumer_seq, event.missed) == (2, 5, 2)
    assert event.resume_stream_seq == 3
    assert drained(push) == [b"1", b"2", b"5"]


@pytest.mark.covers("J88")
@pytest.mark.parametrize("first", [2, 5])
def test_hole_before_first_message_reported(first):
    push = watching()
    (event,) = events_of(push.receive(messages(first, first + 1), 0.0))
    assert isinstance(event, GapDetected)
    assert (event.last_consumer_seq, event.consumer_seq, event.missed) == (0, first, first - 1)
    assert events_of(push.receive(messages(first + 2), 0.0)) == [], "once"


@pytest.mark.covers("J89")
def test_hole_before_heartbeat_reported():
    push = watching()
    (event,) = events_of(push.receive([*messages(1), heartbeat(4, 40)], 0.0))
    assert isinstance(event, GapDetected)
    assert (event.consumer_seq, event.stream_seq) == (4, 40)


@pytest.mark.covers("J89")
@pytest.mark.parametrize("odd", ["", "x", "-1", "+4", "4_0", "٤", "9" * 400])
def test_bad_heartbeat_numbers(odd):
    push = watching()
    frame = status(100, "Idle Heartbeat", Nats_Last_Consumer=odd, Nats_Last_Stream=odd)
    assert push.receive([*messages(1), frame, *messages(2)], 0.0) == []


@pytest.mark.covers("J91", "J92")
def test_without_gap_tracker_nothing_reported():
    push = tracker()
    assert push.receive([*messages(1, 5), heartbeat(9, 9), *messages(2)], 0.0) == []


def test_consumer_begins_again_reported():
    (event,) = events_of(watching().receive(messages(1, 2, 3, 1), 0.0))
    assert isinstance(event, ConsumerReset)


# --- flow control --------------------------------------------------------------------------------------------


@pytest.mark.covers("J95", "J96")
def test_flow_control_answered_in_order():
    push = tracker()
    assert push.receive([*messages(1, 2), flow_control(7), *messages(3)], 0.0) == []
    assert push.take_frame()[1] == []
    assert push.take_frame() == (messages(2)[0], [])
    assert push.take_frame() == (messages(3)[0], [AnswerFlowControl(FC % 7)])


@pytest.mark.covers("J95")
def test_trailing_request_answered():
    push = tracker()
    push.receive([*messages(1), flow_control(7)], 0.0)
    push.take_frame()
    assert push.waits
    assert push.take_frame() == (None, [AnswerFlowControl(FC % 7)])
    assert push.take_frame() == (None, [])


@pytest.mark.covers("J100", "J101")
def test_stalled_heartbeat_answered():
    push = tracker()
    (event,) = events_of(push.receive([*messages(1), heartbeat(1, 1, stalled=FC % 7)], 0.0))
    assert event == FlowControlStalled(stream="ORDERS", consumer="worker", subject=(FC % 7).decode())
    assert "answer on '$JS.FC" in str(event)
    assert "it is sent once all earlier messages are taken" in str(event)
    assert drained(push) == [b"1", FC % 7]
    assert push.receive([heartbeat(1, 1, stalled=FC % 7)], 0.0) == []
    assert drained(push) == []
    (event,) = events_of(push.receive([heartbeat(1, 1, stalled=FC % 7)], 60.0))
    assert event.again
    assert "it was sent, did not arrive, and is sent again once" in str(event)
    assert drained(push) == [FC % 7]


@pytest.mark.covers("J101")
def test_stalled_not_answered_twice():
    push = tracker()
    push.receive([*messages(1), flow_control(7)], 0.0)
    assert push.receive([heartbeat(1, 1, stalled=FC % 7)] * 3, 0.0) == []
    assert drained(push) == [b"1", FC % 7]


@pytest.mark.covers("J98")
def test_legal_subjects_answered():
    push = tracker(flow_prefixes=(b"any", "ü.".encode()))
    for subject in (b"anything", b"$JS.FC.a.b", "ü.α".encode()):
        push.receive([flow_control(subject=subject)], 0.0)
        assert drained(push) == [subject]


@pytest.mark.parametrize(
    "subject",
    [
        b"",
        b"anything",
        b"$JS.API.STREAM.DELETE.ORDERS",
        b"$SYS.REQ.X",
        b"a b",
        b"a.*",
        b"own.api.STREAM.DELETE.S",
    ],
)
def test_illegal_subject_refused(subject):
    push = tracker(api_prefix=b"own.api")
    (event,) = events_of(
        push.receive([(b"_INBOX.x", subject, b"NATS/1.0 100 FlowControl Request\r\n\r\n", b"")], 0.0)
    )
    assert event == FlowControlRefused(stream="ORDERS", consumer="worker", subject=subject.decode())
    assert drained(push) == []


def test_request_flood_bounded():
    push = tracker()
    for number in range(5000):
        push.receive([flow_control(number)], 0.0)
    assert len(drained(push)) <= 1024


# --- errors --------------------------------------------------------------------------------------------------


@pytest.mark.covers("J105", "J106", "J107")
def test_errors_raised_in_order():
    push = tracker()
    frames = [*messages(1), status(409, "Consumer Deleted"), *messages(2), status(503), status(777, "New")]
    assert push.receive(frames, 0.0) == []
    assert drained(push) == [b"1", ConsumerDeletedError, b"2", NoRespondersError, StatusError]


@pytest.mark.covers("J105", "J106", "J107")
def test_with_callback_errors_events():
    push = tracker(raises=False)
    events = events_of(push.receive([status(409, "Consumer Deleted"), status(503), status(777, "New")], 0.0))
    assert all(isinstance(event, ErrorRaised) for event in events)
    assert [event.error.code for event in events] == [409, 503, 777]
    assert not push.waits


def test_answered_before_error_not_lost_with():
    push = tracker()
    push.receive([flow_control(7), status(409, "x")], 0.0)
    assert push.take_frame() == (None, [AnswerFlowControl(FC % 7)])
    with pytest.raises(StatusError):
        push.take_frame()
    assert not push.waits


def test_error_put_back_raised_again():
    push = tracker()
    push.receive([status(503), *messages(1)], 0.0)
    with pytest.raises(NoRespondersError) as caught:
        push.take_frame()
    push.put_back(caught.value)
    assert drained(push) == [NoRespondersError, b"1"]


def test_error_flood_bounded():
    push = tracker(max_pending=10)
    events = events_of(push.receive([status(503)] * 1000, 0.0))
    assert len(drained(push)) <= 11
    assert len(events) >= 989


# --- no room -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"max_pending": 3}, {"max_pending_bytes": 3 * 60}])
def test_overflow_once_per_episode(limits):
    push = tracker(**limits)
    events = events_of(push.receive(messages(1, 2, 3, 4, 5, 6), 0.0))
    expected = SlowConsumer(
        stream="ORDERS", consumer="worker", dropped=1, first_stream_seq=4, last_stream_seq=4
    )
    assert events == [expected, msgspec.structs.replace(expected, dropped=2, last_stream_seq=5)]
    assert push.dropped == 3
    assert push.take_frame()[0] == messages(1)[0]
    (over,) = events_of(push.receive(messages(7), 0.0))  # room again: the episode is over
    assert (over.dropped, over.first_stream_seq, over.last_stream_seq, over.ended) == (3, 4, 6, True)
    again = events_of(push.receive(messages(8, 9), 0.0))[0]
    assert (again.first_stream_seq, push.dropped) == (8, 5)
    assert drained(push) == [b"2", b"3", b"7"]
    assert (push.pending, push.pending_bytes) == (0, 0)


@pytest.mark.parametrize(("dropped", "sums"), [(0, []), (1, []), (2, []), (3, [3]), (4, []), (7, [7])])
def test_end_counts_drops_not_reported(dropped, sums):
    """Each doubling was reported. The subscription ends before there is room again."""
    push = tracker(max_pending=1)
    push.receive(messages(*range(1, 2 + dropped)), 0.0)
    assert [(event.dropped, event.ended) for event in events_of(push.end_queue())] == [
        (count, True) for count in sums
    ]
    assert push.end_queue() == []


@pytest.mark.parametrize("dropped", [1, 2, 3])
def test_overflow_end_reported_if_more_dropped(dropped):
    """The first event has said 1: an end says how many, if they were more."""
    push = tracker(max_pending=1)
    events_of(push.receive(messages(*range(1, 2 + dropped)), 0.0))
    push.take_frame()
    ends = events_of(push.receive(messages(9), 0.0))
    assert [(end.dropped, end.last_stream_seq, end.ended) for end in ends] == (
        [] if dropped == 1 else [(dropped, 1 + dropped, True)]
    )


def test_long_overflow_reported_at_doublings():
    """A reader that takes nothing any more learns how much is lost, too."""
    push = tracker(max_pending=3)
    events = events_of(push.receive(messages(*range(1, 2904)), 0.0))
    assert [event.dropped for event in events] == [2**power for power in range(12)]
    assert (
        "2,048 messages, from 4 to 2051, were dropped so far. Take messages faster, raise max_pending"
        in str(events[-1])
    )
    assert "1 message (4) was dropped so far" in str(events[0])


def test_clear_returns_messages():
    push = tracker()
    push.receive([*messages(1), flow_control(1), status(503), *messages(2)], 0.0)
    assert push.clear() == messages(1, 2)
    assert (push.pending, push.pending_bytes, push.waits) == (0, 0, False)


def test_end_raised_behind_waits():
    push = tracker(raises=False)
    push.receive(messages(1, 2), 0.0)
    push.fail(ConsumerDeletedError(409))
    assert drained(push) == [b"1", b"2", ConsumerDeletedError]

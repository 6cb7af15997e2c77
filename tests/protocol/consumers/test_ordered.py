"""The ordered tracker and its configuration."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, NotJetStreamMessageError
from jsclient.protocol.consumers.ack import read_jsack
from jsclient.protocol.consumers.monitors import HeartbeatMonitor
from jsclient.protocol.consumers.ordered import (
    OrderedTracker,
    RestartCheck,
    check_ordered,
    create_timeout,
    ordered_config,
    restart_config,
)
from jsclient.protocol.consumers.push import AnswerFlowControl
from jsclient.protocol.consumers.subscribe_request import SubscribeRequest, check_request
from jsclient.protocol.events import HeartbeatMissed, SlowConsumer, StreamReset
from jsclient.protocol.models.back_doubt import ReportedEnd
from jsclient.protocol.models.consumer import AckPolicy, ConsumerConfig, DeliverPolicy
from tests.support.strategies import FC, data, flow_control, heartbeat


def reader(delivered: int = 0, **fields) -> OrderedTracker:
    limits = {"max_pending": 100, "max_pending_bytes": 100_000, "heartbeat": HeartbeatMonitor(5.0)}
    tracker = OrderedTracker("ORDERS", "c1", **(limits | fields))
    tracker.recreated("c1", delivered, 0.0)
    return tracker


def taken(tracker: OrderedTracker) -> list[int]:
    """Stream sequences."""
    out = []
    while tracker.waits:
        frame, _ = tracker.take_frame()
        out += [int(frame[1].split(b".")[5])] if frame else []
    return out


# --- what it may be ------------------------------------------------------------------------------------------


@pytest.mark.row(104)
@pytest.mark.covers("J93", "J94")
def test_configuration_of_adr_17():
    assert ordered_config(ConsumerConfig()) == ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        max_deliver=1,
        flow_control=True,
        idle_heartbeat=5.0,
        mem_storage=True,
        num_replicas=1,
        inactive_threshold=30.0,
    )


def test_user_settings_are_preserved():
    arguments = ConsumerConfig(
        idle_heartbeat=1.0,
        deliver_policy="new",
        headers_only=True,
        mem_storage=False,
        num_replicas=3,
        inactive_threshold=7.0,
        description="mine",
    )
    before = arguments.replace()
    created = ordered_config(arguments)
    assert arguments == before
    for field in ("idle_heartbeat", "deliver_policy", "headers_only", "mem_storage", "num_replicas"):
        assert getattr(created, field) == getattr(arguments, field)
    assert created.inactive_threshold == 7.0


@pytest.mark.row(93)
@pytest.mark.covers("J93")
@pytest.mark.parametrize(
    "fields",
    [
        {"name": "n"},
        {"durable_name": "d"},
        {"deliver_subject": "my.inbox"},
        {"deliver_group": "g"},
        {"ack_policy": "explicit"},
        {"ack_policy": "all"},
        {"max_deliver": 2},
        {"max_deliver": -1},
        {"flow_control": False},
    ],
)
def test_bad_config_refused(fields):
    with pytest.raises(ConfigError):
        check_ordered(ConsumerConfig(**fields), None)
    with pytest.raises(ConfigError):
        check_request(SubscribeRequest(subject="a", ordered=True, config=ConsumerConfig(**fields)))


@pytest.mark.covers("J93")
@pytest.mark.parametrize("fields", [{"queue": "q"}, {"durable": "d"}, {"consumer": "c"}])
def test_no_queue_not_durable_and_not_bound(fields):
    with pytest.raises(ConfigError):
        check_request(SubscribeRequest(subject="a", ordered=True, **fields))


@pytest.mark.covers("J93")
def test_resumes_after_last_message():
    config = ordered_config(ConsumerConfig(filter_subject="a", opt_start_time="2026-01-01T00:00:00Z"))
    again = restart_config(config, 18)
    assert again == config.replace(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=18, opt_start_time=None
    )
    assert restart_config(config, 0) is config


# --- reading -------------------------------------------------------------------------------------------------


@pytest.mark.covers("J93")
def test_gap_recreates_after_last_good():
    tracker = reader()
    tracker.receive([data(3, 1), data(4, 2), data(9, 4), data(10, 5)], 0.0)
    assert tracker.cursor.wants is not None
    assert tracker.cursor.resume_stream_seq == 5
    assert tracker.receive([data(11, 6)], 0.0) == []
    tracker.recreated("c2", 4, 1.0)
    assert tracker.cursor.wants is None
    tracker.receive([data(8, 1), data(9, 2)], 1.0)
    assert taken(tracker) == [3, 4, 8, 9]


@pytest.mark.covers("J93")
@pytest.mark.parametrize(
    "frames", [[data(4, 2)], [data(4, 2), data(5, 3)], [heartbeat(1, 1)]], ids=["one", "run", "heartbeat"]
)
def test_first_message_lost_recreates(frames):
    """The loss of a consumer's first message is a gap like any other."""
    tracker = reader()
    tracker.receive(frames, 0.0)
    assert tracker.cursor.wants is not None
    assert taken(tracker) == []
    assert tracker.cursor.resume_stream_seq == 1, "from the start again"
    tracker.recreated("c2", 0, 1.0)
    tracker.receive([data(3, 1), data(4, 2)], 1.0)
    assert taken(tracker) == [3, 4]


@pytest.mark.covers("J93")
def test_heartbeat_gap_recreates():
    tracker = reader()
    tracker.receive([data(1, 1), heartbeat(1, 1)], 0.0)
    assert tracker.cursor.wants is None
    tracker.receive([heartbeat(3, 3)], 0.0)
    assert tracker.cursor.wants is not None
    assert tracker.cursor.resume_stream_seq == 2


@pytest.mark.covers("J89", "J93")
@pytest.mark.parametrize("delivered", [0, 1, 3, 4])
def test_heartbeat_of_other_count_recreates(delivered):
    """Fewer deliveries than arrived: one of them was not the server's. More: one was lost."""
    tracker = reader()
    tracker.receive([data(1, 1), data(2, 2), heartbeat(2, 2)], 0.0)
    assert tracker.cursor.wants is None
    tracker.receive([heartbeat(delivered, delivered)], 0.0)
    assert tracker.cursor.wants is not None
    assert tracker.cursor.wants.unconfirmed


@pytest.mark.covers("J94")
def test_silence_recreates():
    tracker = reader()
    assert tracker.tick(tracker.deadline) == []
    assert tracker.cursor.wants is None
    (command,) = tracker.tick(tracker.deadline)
    assert isinstance(command.event, HeartbeatMissed)
    assert tracker.cursor.wants is not None


def test_overflow_read_again_and_not_lost():
    tracker = reader(max_pending=2)
    (command,) = tracker.receive([data(1, 1), data(2, 2), data(3, 3), data(4, 4)], 0.0)
    assert isinstance(command.event, SlowConsumer)
    assert tracker.cursor.wants is not None
    assert not tracker.may_recreate, "the queue is emptied by half first"
    tracker.take_frame()
    assert tracker.may_recreate
    assert tracker.cursor.resume_stream_seq == 3
    tracker.recreated("c2", 2, 0.0)
    (again,) = tracker.receive([data(3, 1), data(4, 2)], 0.0)
    assert isinstance(again.event, SlowConsumer), "another episode"
    assert again.event.first_stream_seq == 4
    assert taken(tracker) == [2, 3]


@pytest.mark.covers("J93")
@pytest.mark.parametrize(
    ("capacity", "keeps_policy", "renews"),
    [(3_000, False, True), (6_000, False, False), (3_000, True, False)],
)
def test_slow_reader_gets_a_new_consumer_instead_of_more(capacity, keeps_policy, renews):
    tracker = reader(keeps_policy=keeps_policy)
    tracker.bound(capacity)
    tracker.receive([data(1, 1), flow_control(), *[data(n, n, b"x" * 400) for n in (2, 3)]], 0.0)
    assert tracker.take_frame()[1] == []
    frame, commands = tracker.take_frame()
    assert frame is not None
    assert (tracker.cursor.wants is not None) == renews
    assert commands == ([] if renews else [AnswerFlowControl(FC % 1)])
    if renews:
        assert tracker.cursor.wants.planned
        assert tracker.cursor.resume_stream_seq == 4
        tracker.cursor.consumer_lost("the connection was replaced")
        assert tracker.cursor.wants.unconfirmed
        assert not tracker.cursor.wants.planned


def test_messages_of_lagging_replica_skipped():
    tracker = reader()
    tracker.receive([data(number, number) for number in range(1, 6)], 0.0)
    tracker.cursor.consumer_lost("test")
    assert not tracker.recreated("c2", 3, 0.0), "it starts earlier than asked"
    tracker.receive([data(4, 1), data(5, 2), data(6, 3)], 0.0)
    assert tracker.cursor.wants is None
    assert taken(tracker) == [1, 2, 3, 4, 5, 6]


def test_new_survives_early_reset():
    tracker = reader(delivered=100)
    tracker.cursor.consumer_lost("the connection was made anew")
    assert tracker.cursor.resume_stream_seq == 101
    assert tracker.recreated("c2", 100, 0.0)
    tracker.cursor.consumer_lost("again")
    assert not tracker.recreated("c3", 90, 0.0), "a replica that lags"
    tracker.receive([data(91, 1), data(100, 2), data(101, 3)], 0.0)
    assert taken(tracker) == [101]


def test_last_per_subject_until_first():
    tracker = reader(delivered=40, keeps_policy=True)
    tracker.cursor.consumer_lost("test")
    assert tracker.cursor.resume_stream_seq == 0
    tracker.recreated("c2", 41, 0.0)
    tracker.receive([data(7, 1), data(30, 2)], 0.0)
    assert tracker.cursor.resume_stream_seq == 31
    assert taken(tracker) == [7, 30]


@pytest.mark.parametrize(
    ("end", "incarnation", "verdict"),
    [
        (ReportedEnd("A", 5, 3, 0), "A", "read on"),
        (ReportedEnd("A", 4, 3, 0), "A", "ask again"),
        (ReportedEnd("A", 4, 1, 0), "A", "read from the start"),
        (ReportedEnd("B", 9, 3, 0), "A", "read from the start"),
        (ReportedEnd("B", 9, 3, 0), "", "read on"),
    ],
)
def test_first_check_of_end(end, incarnation, verdict):
    assert RestartCheck(5).check_end(5, end, 100.0, incarnation=incarnation) == verdict


def test_lower_end_repeated_for_ten_seconds():
    """Without a failed request or a lost connection in between, and without a message."""

    def check(position, now, connects=0):
        return uncertain.check_end(position, ReportedEnd("A", 4, 3, connects), now, incarnation="A")

    uncertain = RestartCheck(5)
    assert check(5, 0.0) == check(5, 9.9) == "ask again"
    uncertain.interrupted()
    assert check(5, 10.0) == check(5, 19.9) == check(5, 20.0, connects=1) == check(5, 29.9, connects=1)
    assert check(6, 30.0, connects=1) == "read on"
    assert check(5, 30.0, connects=1) == "read from the start"


def test_stream_began_again_read_from_start():
    tracker = reader()
    tracker.receive([data(1, 1), data(2, 2)], 0.0)
    assert taken(tracker) == [1, 2]
    event = tracker.cursor.stream_began_again(tracker.stream, tracker.consumer, 1)
    assert event == StreamReset(stream="ORDERS", consumer="c1", last_stream_seq=2, stream_seq=1)
    assert tracker.cursor.wants is not None
    assert tracker.cursor.resume_stream_seq == 1
    tracker.recreated("c2", 0, 0.0)
    tracker.receive([data(1, 1)], 0.0)
    assert taken(tracker) == [1]


def test_new_consumer_flow_control():
    tracker = reader()
    tracker.receive([flow_control(1)], 0.0)
    assert tracker.take_frame() == (None, [AnswerFlowControl(FC % 1)])
    tracker.cursor.consumer_lost("test")
    tracker.recreated("c2", 0, 0.0)
    tracker.receive([flow_control(1)], 0.0)
    assert tracker.take_frame() == (None, [AnswerFlowControl(FC % 1)])


def test_broken_jsack_raised_in_order():
    tracker = reader()
    tracker.receive([data(1, 1), (b"a", b"$JS.ACK.broken", b"", b"")], 0.0)
    tracker.take_frame()
    with pytest.raises(NotJetStreamMessageError):
        tracker.take_frame()


@pytest.mark.parametrize("index", [-2, -1], ids=["time", "pending"])
def test_odd_number_of_run_reported(index):
    """Among frames that arrive together: it is an error at its place, and the message is read again."""
    tracker = reader()
    frames = [data(number) for number in range(1, 21)]
    subject, reply, header, payload = frames[9]
    parts = reply.split(b".")
    parts[index] = b"7x"
    frames[9] = subject, b".".join(parts), header, payload
    tracker.receive(frames[:2], 0.0)
    tracker.receive(frames[2:], 0.0)
    assert [tracker.take_frame()[0] for _ in range(9)] == frames[:9]
    with pytest.raises(NotJetStreamMessageError):
        tracker.take_frame()
    assert tracker.cursor.wants is not None
    assert tracker.cursor.resume_stream_seq == 10


def test_mark_of_last_message():
    """By sequence and time. None before the first message, and after the position was changed by other means."""
    tracker = reader()
    assert tracker.cursor.mark is None
    tracker.receive([data(1), data(2)], 0.0)
    tracker.receive([data(3), data(4)], 0.0)
    mark = tracker.cursor.mark
    assert mark is not None
    assert (mark.seq, mark.time_ns) == (4, read_jsack(data(4)[1]).timestamp_ns)
    tracker.cursor.stream_began_again("ORDERS", "c1", 1)
    assert tracker.cursor.mark is None


def test_create_timeout_grows():
    """It grows, so that a slow server is not asked for ever. A short timeout is kept."""
    assert [create_timeout(failures, 5.0) for failures in (0, 1, 2, 3, 10**6)] == [1.25, 2.5, 5.0, 5.0, 5.0]
    assert create_timeout(0, 2.0) == 1.0
    assert create_timeout(0, 0.3) == 0.3

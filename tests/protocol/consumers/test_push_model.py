"""The push tracker against a small model of the server, the network between them, and a slow user."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jsclient.errors import NoRespondersError
from jsclient.protocol.consumers.monitors import GapTracker, HeartbeatMonitor
from jsclient.protocol.consumers.push import AnswerFlowControl, PushTracker
from jsclient.protocol.events import (
    ErrorRaised,
    FlowControlStalled,
    GapDetected,
    HeartbeatMissed,
    SlowConsumer,
)
from jsclient.protocol.wire.frames import frame_size
from tests.support.examples import examples
from tests.support.strategies import data, flow_control, heartbeat, status

WINDOW = 600  # bytes that the server has in flight before it waits
INTERVAL = 1.0


class PushAndServer(RuleBasedStateMachine):
    """The server sends while its window has room, asks for an answer at half of it, and sends heartbeats when idle."""

    @initialize(max_pending=st.integers(1, 12))
    def begin(self, max_pending):
        self.push = PushTracker(
            "ORDERS",
            "worker",
            max_pending,
            10_000,
            heartbeat=HeartbeatMonitor(INTERVAL),
            gaps=GapTracker("ORDERS", "worker", 0),
        )
        self.max_pending = max_pending
        self.now = 0.0
        self.last_arrival = 0.0
        self.sent = 0  # the server's consumer sequence
        self.under_way = 0  # bytes since the last answer
        self.unanswered = 0  # the request that waits for an answer, 0: none
        self.count = 0
        self.answers: list[bytes] = []
        self.waiting: list[object] = []  # what the user is to get: a number, "error"
        self.dropped = 0
        self.lost = 0  # on the way, not reported yet
        self.reported_missing = 0
        self.missing = 0

    def arrives(self, *frames):
        self.last_arrival = self.now
        self.carry_out(self.push.receive(list(frames), self.now))

    def carry_out(self, commands):
        for command in commands:
            if isinstance(command, AnswerFlowControl):
                self.answers.append(command.subject)
                if command.subject == b"$JS.FC.%d" % self.unanswered:
                    self.unanswered, self.under_way = 0, 0
            elif isinstance(command.event, GapDetected):
                self.reported_missing += command.event.missed
            elif isinstance(command.event, ErrorRaised):
                self.waiting.pop()  # reported as lost, since too much waits already
            else:
                assert isinstance(command.event, SlowConsumer | FlowControlStalled | HeartbeatMissed)

    @rule(count=st.integers(1, 6), loses=st.integers(0, 12))
    def the_server_sends(self, count, loses):
        """``loses``: the index of the frame that gets lost, if that many wait."""
        for index in range(count):
            if self.under_way >= WINDOW:
                return
            self.sent += 1
            frame = data(self.sent)
            self.under_way += frame_size(frame)
            if index == loses - 1:
                self.missing += 1
            else:
                # The model drops what does not fit, as the tracker must.
                if len([w for w in self.waiting if w != "error"]) < self.max_pending:
                    self.waiting.append(self.sent)
                else:
                    self.dropped += 1
                self.arrives(frame)
                assert self.reported_missing == self.missing
            if not self.unanswered and self.under_way > WINDOW // 2:
                self.ask()

    def ask(self):
        self.count += 1
        self.unanswered = self.count
        self.arrives(flow_control(subject=b"$JS.FC.%d" % self.unanswered))

    @rule(lost=st.booleans())
    def the_server_is_idle(self, lost):
        self.now += INTERVAL
        if not lost:
            stalled = b"$JS.FC.%d" % self.unanswered if self.unanswered else b""
            self.arrives(heartbeat(self.sent, self.sent, stalled))
            assert self.reported_missing == self.missing
        elif self.now >= self.push.deadline:
            self.carry_out(self.push.tick(self.now))

    @rule()
    def the_server_refuses(self):
        self.waiting.append("error")
        self.arrives(status(503))

    @rule(count=st.integers(1, 10))
    def the_user_takes(self, count):
        for _ in range(count):
            if not self.push.waits:
                break
            try:
                frame, commands = self.push.take_frame()
            except NoRespondersError:
                assert self.waiting.pop(0) == "error"
                continue
            self.carry_out(commands)
            if frame is not None:
                assert frame == data(self.waiting.pop(0))

    @invariant()
    def nothing_is_answered_twice(self):
        assert len(self.answers) == len(set(self.answers))

    @invariant()
    def the_books_are_right(self):
        numbers = [item for item in self.waiting if item != "error"]
        assert self.push.pending == len(numbers) <= self.max_pending
        assert self.push.pending_bytes == sum(frame_size(data(number)) for number in numbers)
        assert self.push.dropped == self.dropped
        assert self.push.received + self.missing == self.sent
        assert self.push.deadline >= self.last_arrival + 3 * INTERVAL

    def teardown(self):
        """Whatever happened: once all is taken and a heartbeat came, the server does not wait any more."""
        if not hasattr(self, "push"):
            return
        if self.unanswered:
            self.arrives(heartbeat(self.sent, self.sent, b"$JS.FC.%d" % self.unanswered))
        while self.push.waits:
            self.the_user_takes(100)
        assert not self.waiting
        assert self.unanswered == 0


PushAndServer.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@pytest.mark.covers("J83", "J89", "J90", "J95", "J100", "J101")
class TestPushAndServer(PushAndServer.TestCase):
    pass

"""A worker's hands against a model of the server and of handlers that do as they please.

The server delivers, delivers again what is not acked in time, and stops at ``max_deliver``. Handlers return, raise,
reject, hang, and end after all. Whatever happens: never more than may run, one of each key at a time and in order,
each message settled exactly once, and none that is in hand runs out of its ``ack_wait``.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jsclient.protocol.consumers.worker.reasons import Reject
from jsclient.protocol.consumers.worker.work_rules import WorkOptions, WorkRules
from jsclient.protocol.consumers.worker.worker import Phase, Workload, WorkOutcome
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.examples import examples

KEYS = ["a", "b", "c", None]


class WorkerAndServer(RuleBasedStateMachine):
    @initialize(
        concurrency=st.integers(1, 4),
        ordered=st.booleans(),
        keep_alive=st.booleans(),
        timeout=st.sampled_from([None, 3.0, 25.0]),
        limit=st.sampled_from([None, 1, 3]),
        config=st.sampled_from(
            [
                ConsumerConfig(ack_wait=9.0),
                ConsumerConfig(ack_wait=9.0, max_deliver=2),
                ConsumerConfig(backoff=[6.0, 15.0, 60.0], max_deliver=4),
            ]
        ),
    )
    def begin(self, concurrency, ordered, keep_alive, timeout, limit, config):
        options = WorkOptions(
            concurrency=concurrency,
            ordered=ordered,
            keep_alive=keep_alive or ordered,
            handler_timeout=timeout,
            max_deliver=limit,
        )
        self.rules_ = WorkRules(options, config)
        self.load: Workload[int] = Workload(self.rules_)
        self.now = 0.0
        self.published = 0
        self.keys: dict[int, str | None] = {}
        self.deliveries: dict[int, int] = {}
        self.expires: dict[int, float] = {}  # sequence: when the server delivers again, for messages in hand
        self.elsewhere: list[int] = []  # given to the server, which may deliver them to us again
        self.finished: list[int] = []  # acked or terminated, in order
        self.running: dict[int, object] = {}  # by identity of the work
        self.stopped = False
        self.steps = 0

    # --- the server ------------------------------------------------------------------------------------------

    def deliver(self, seq: int) -> None:
        self.deliveries[seq] = self.deliveries.get(seq, 0) + 1
        known = seq in self.expires
        work = self.load.add_message(seq, (seq, 0), self.deliveries[seq], self.keys[seq], self.now)
        assert (work is None) is known
        self.expires[seq] = self.now + self.rules_.ack_wait(self.deliveries[seq])

    @precondition(lambda self: not self.stopped)
    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6), anyway=st.booleans())
    def publish(self, keys, anyway):
        for key in keys:
            if self.load.room > 0 or anyway:
                self.published += 1
                self.keys[self.published] = key
                self.deliver(self.published)

    @precondition(lambda self: not self.stopped and self.elsewhere)
    @rule(which=st.integers(0, 100))
    def deliver_again(self, which):
        seq = self.elsewhere.pop(which % len(self.elsewhere))
        if not self.rules_.is_last(self.deliveries[seq]):
            self.deliver(seq)

    @precondition(lambda self: not self.stopped and not self.load.rules.options.keep_alive)
    @rule()
    def run_out_of_ack_wait(self):
        """Without signs of life the server delivers again what is in hand."""
        for seq, at in list(self.expires.items()):
            if at <= self.now and not self.rules_.is_last(self.deliveries[seq]):
                self.deliver(seq)

    # --- handlers --------------------------------------------------------------------------------------------

    @rule()
    def start(self):
        while (work := self.load.start_work(self.now)) is not None:
            self.started(work)

    def started(self, work) -> None:
        seq, key = work.message, self.keys[work.message]
        if self.rules_.options.ordered and key is not None:
            assert all(self.keys[other.message] != key for other in self.running.values())
            earlier = [
                other for other in self.load.held if self.keys[other.message] == key and other.message < seq
            ]
            assert not earlier
        self.running[id(work)] = work

    def settle(self, work, *, back: bool) -> None:
        """The server got its answer."""
        seq = work.message
        assert seq in self.expires, "settled twice, or never taken"
        del self.expires[seq]
        (self.elsewhere if back else self.finished).append(seq)
        self.load.settled(work)

    def decide(self, work, error, *, stuck: bool = False) -> None:
        verdict = self.load.judge(work, error, stuck=stuck)
        if verdict.outcome is WorkOutcome.REPEAT:
            assert not stuck
            assert self.rules_.options.ordered
            self.load.repeat(work, verdict.delay, self.now)
        else:
            assert verdict.outcome is not WorkOutcome.RETRY or not self.rules_.is_last(work.deliveries)
            self.settle(work, back=verdict.outcome is WorkOutcome.RETRY)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100), outcome=st.sampled_from(["raise", "return", "raise", "reject"]))
    def end(self, which, outcome):
        self.steps += 1
        work = self.running.pop(list(self.running)[which % len(self.running)])
        self.load.ended(work)
        if not work.abandoned:
            error = {"return": None, "raise": ValueError(), "reject": Reject()}[outcome]
            if work.final_error is not None:
                self.settle(work, back=False)
            else:
                self.decide(work, error)
        self.load.released(work)

    # --- time ------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 30.0]))
    def pass_time(self, seconds):
        until = self.now + seconds
        while (deadline := self.load.deadline) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            due = self.load.take_due(self.now)
            for work in due.keep_alive:
                seq = work.message
                assert self.now < self.expires[seq], "the server delivers it a second time"
                self.expires[seq] = self.now + self.rules_.ack_wait(self.deliveries[seq])
            for work in due.overdue:
                assert id(work) in self.running
            for work in due.stuck:
                assert id(work) in self.running
                self.decide(work, TimeoutError(), stuck=True)
        self.now = until

    # --- the end ---------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.stopped and self.steps > 10)
    @rule()
    def stop(self):
        self.stopped = True
        back = self.load.stop_starting()
        assert [work.message for work in back] == sorted(work.message for work in back)
        for work in back:
            assert work.phase is Phase.SETTLED
            assert not self.rules_.is_last(work.deliveries)
            del self.expires[work.message]
            self.elsewhere.append(work.message)

    @invariant()
    def nothing_is_lost_and_the_counts_are_right(self):
        if not hasattr(self, "load"):
            return
        counts = self.load.counts
        held = self.load.held
        assert counts.running == len(self.running) <= self.rules_.options.concurrency
        assert {work.message for work in held} == set(self.expires)
        assert counts.waiting == len([work for work in held if work.phase is not Phase.RUNNING])
        assert len(self.finished) == len(set(self.finished))
        exhausted = {seq for seq in self.elsewhere if self.rules_.is_last(self.deliveries[seq])}
        assert not exhausted, "a last delivery was given back"
        if self.rules_.options.keep_alive:
            assert all(self.now < at for at in self.expires.values())

    def teardown(self):
        """Let all deliveries come to their end. Then no message is in hand."""
        if not hasattr(self, "load"):
            return
        for _ in range(10_000):
            if self.load.idle:
                break
            self.start()
            if self.running:
                self.end(0, "return")
            self.pass_time(61.0)
        assert self.load.idle
        assert self.load.deadline is None
        assert not self.expires
        assert not self.load._key_queues
        assert not self.load._ready


TestWorkerAndServer = WorkerAndServer.TestCase
TestWorkerAndServer.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)

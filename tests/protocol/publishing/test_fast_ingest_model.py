"""A fast ingest against a model of the server: messages and answers are lost at will, and the accounts agree."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from jsclient.errors import ApiError
from jsclient.protocol.publishing.fast_ingest import IngestTracker
from jsclient.protocol.wire.frames import Frame


class IngestServer:
    """A small model of one ingest in nats-server (processJetStreamFastBatchMsg). Storing takes no time."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.stored: list[int] = []
        self.last = self.flow_sent = 0  # the last number seen, and acked
        self.flow = self.max_flow = 0
        self.open = self.known = False
        self.answers: list[Frame] = []

    def say(self, reply: bytes, answer: dict[str, Any]) -> None:
        self.answers.append((reply, b"", b"", json.dumps(answer).encode()))

    def receive(self, reply: bytes) -> None:
        *_, requests, gap, number_text, op_text, _ = reply.decode().split(".")
        number, op = int(number_text), int(op_text)
        if not self.known and number != 1:
            return self.say(reply, {"error": {"code": 400, "err_code": 10208, "description": "unknown"}})
        if not self.known:
            self.known = self.open = True
            self.max_flow = int(requests)
            self.flow = self.chance.choice([1, self.max_flow])
        # a ping, which is not a message
        if op == 4:
            return self.ping(reply, number, gap)
        if not self.open:
            return None
        if number <= self.last:
            return self.end(reply)
        if number > self.last + 1:
            self.say(reply, {"type": "gap", "last_seq": self.last + 1, "seq": number})
            if gap == "fail":
                return self.end(reply)
        if op == 3:
            self.last = number - 1
            return self.end(reply)
        self.last = number
        if op == 0:
            self.say(reply, {"type": "ack", "seq": 0, "msgs": self.flow})
        self.stored.append(number)
        if op == 2:
            return self.end(reply)
        self.ack(reply)
        return None

    def ping(self, reply: bytes, number: int, gap: str) -> None:
        if number > self.last:
            self.say(reply, {"type": "gap", "last_seq": self.last + 1, "seq": number + 1})
            if gap == "fail":
                return self.end(reply)
            self.last = number
            if self.ack(reply):
                return None
        self.say(reply, {"type": "ack", "seq": self.flow_sent, "msgs": self.flow})
        return None

    def ack(self, reply: bytes) -> bool:
        if self.last < self.flow_sent + self.flow:
            return False
        self.flow_sent += (self.last - self.flow_sent) // self.flow * self.flow
        self.flow = self.chance.choice([max(1, self.flow // 2), min(self.max_flow, self.flow * 2)])
        self.say(reply, {"type": "ack", "seq": self.flow_sent, "msgs": self.flow})
        return True

    def end(self, reply: bytes) -> None:
        self.open = self.known = False
        self.say(reply, {"stream": "S", "seq": 999, "batch": "id", "count": self.last})


class IngestRun:
    """A publisher of some messages, through a network that loses what it likes."""

    def __init__(self, seed: int, *, gap_ok: bool, loss: float) -> None:
        self.chance = random.Random(seed)
        self.loss = loss
        self.server = IngestServer(self.chance)
        self.tracker = IngestTracker(
            "_INBOX.id", self.chance.choice([1, 3, 10]), self.chance.choice([1, 2, 3]), gap_ok=gap_ok
        )
        self.lost: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    def send(self, reply: bytes) -> None:
        if self.chance.random() < self.loss:
            return
        self.server.receive(reply)
        while self.server.answers:
            answer = self.server.answers.pop(0)
            if self.chance.random() < self.loss:
                continue
            event = self.tracker.receive_answer(answer)
            if event is not None:
                self.gaps.append((event.first, event.last))  # type: ignore[attr-defined]

    def publish(self, count: int) -> None:
        tracker, waited = self.tracker, 0
        while tracker.sent < count and tracker.failure is None:
            if tracker.sent < tracker.limit:
                before = len(self.server.stored)
                self.send(tracker.next_reply())
                # it was lost, or the ingest had ended before
                if len(self.server.stored) == before:
                    self.lost.append(tracker.sent)
                waited = 0
            else:
                assert tracker.sent, "nothing may be sent, and nobody can be asked"
                self.send(tracker.ping_reply())
                waited += 1
                assert waited < 200, "the window stays closed"
            if tracker.accepted and not tracker.closing and tracker.failure is None:
                assert tracker.sent <= tracker.acked + 10 * 3 + 1
        tracker.close()
        for _ in range(200):
            if tracker.ended:
                return
            self.send(tracker.end_reply())
        raise AssertionError("no end")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("gap_ok", [False, True])
def test_without_loss_all_stored_and_acked(seed, gap_ok):
    run = IngestRun(seed, gap_ok=gap_ok, loss=0.0)
    run.publish(100)
    tracker = run.tracker
    assert (tracker.failure, tracker.acked, tracker.lost) == (None, 100, 0)
    assert tracker.final is not None
    assert tracker.final.count == 100
    assert run.server.stored == list(range(1, 101))


@pytest.mark.parametrize("seed", range(300))
def test_stored_claim_is_true(seed):
    run = IngestRun(seed, gap_ok=False, loss=0.1)
    run.publish(60)
    tracker, stored = run.tracker, run.server.stored
    # Whatever was lost, the stream has the beginning, and all that the tracker promises is in it.
    assert stored == list(range(1, len(stored) + 1))
    assert tracker.acked <= len(stored)
    if tracker.complete:
        assert tracker.acked == len(stored)
    if tracker.failure is None:
        assert tracker.acked == tracker.sent == len(stored) == 60
    elif tracker.final is None:
        assert isinstance(tracker.failure, ApiError) or tracker.lost


@pytest.mark.parametrize("seed", range(300))
def test_gaps_reopen_window(seed):
    run = IngestRun(seed, gap_ok=True, loss=0.1)
    run.publish(60)
    tracker = run.tracker
    missing = sorted(set(range(1, tracker.sent + 1)) - set(run.server.stored))
    assert missing == run.lost
    reports = {number for first, last in run.gaps for number in range(first, last + 1)}
    assert reports <= set(missing)
    assert tracker.lost == len(reports)
    if tracker.failure is None:
        assert tracker.sent == tracker.acked == 60


@pytest.mark.parametrize("seed", range(100))
def test_gaps_reported_with_answers(seed):
    run = IngestRun(seed, gap_ok=True, loss=0.0)
    dropped = run.chance
    original = run.server.receive

    def lossy(reply: bytes) -> None:
        if not reply.endswith((b".0.$FI", b".3.$FI", b".4.$FI")) and dropped.random() < 0.2:
            return
        original(reply)

    run.server.receive = lossy  # type: ignore[method-assign]
    run.publish(60)
    missing = sorted(set(range(1, 61)) - set(run.server.stored))
    reports = sorted(number for first, last in run.gaps for number in range(first, last + 1))
    assert reports == missing
    assert (run.tracker.lost, run.tracker.failure, run.tracker.acked) == (len(missing), None, 60)

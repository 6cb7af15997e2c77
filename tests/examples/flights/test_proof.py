"""Each flight is counted once, whatever is delivered to whom how often, and the proof sees when it is not so."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.flights.flights import Flight, FlightSums
from examples.flights.proof import Killing, SequenceCounts, claims
from examples.flights.reports import Ready, Report, ReportAnswer, WorkerSetup, digest, frame, read_frame
from tests.support.virtual import virtual


def flight(number: int) -> Flight:
    carrier, dest = "AB"[number % 2], "XYZ"[number % 3]
    delay = None if number % 7 == 0 else number
    return Flight("2013-01-01T05:15", carrier, number, None, "EWR", dest, 0, delay, 100)


def delivery(number: int, delivered: int = 1) -> tuple[int, int, bytes]:
    return number, delivered, msgspec.json.encode(flight(number))


def tally_of(numbers) -> FlightSums:
    tally = FlightSums()
    for number in numbers:
        tally.add(flight(number))
    return tally


def proved(ledger: SequenceCounts, expected: FlightSums | None = None, **changes) -> list[bool]:
    facts = {"stored": ledger.total, "pending": 0, "ack_pending": 0, "killing": None, **changes}
    target = tally_of(range(1, ledger.total + 1)) if expected is None else expected
    return [claim.holds for claim in claims(ledger, target, **facts)]


def test_report_counted_whole_or_not_at_all():
    ledger = SequenceCounts(3)
    assert ledger.enter(digest([delivery(1), delivery(2)])) == []
    assert ledger.enter(digest([delivery(2, 2), delivery(3)])) == [2]
    assert (ledger.count, ledger.lost, ledger.repeated, ledger.redelivered) == (2, 1, {2}, {2})
    assert ledger.tally == tally_of([1, 2])
    assert ledger.enter(digest([delivery(2, 2), delivery(3)], {2})) == []
    assert ledger.is_complete
    assert ledger.tally == tally_of([1, 2, 3])


def test_repeat_in_batch_counts_once():
    report = digest([delivery(1), delivery(1, 2)])
    assert (report.sequences, report.redelivered) == ([1], [1])
    assert FlightSums(report.rows) == tally_of([1])


def test_batch_of_all_known_adds_nothing():
    ledger = SequenceCounts(1)
    ledger.enter(digest([delivery(1)]))
    assert ledger.enter(digest([delivery(1, 2)], {1})) == []
    assert ledger.count == 1


@pytest.mark.parametrize("sequence", [0, 3])
def test_unpublished_sequence_refused(sequence):
    ledger = SequenceCounts(2)
    assert ledger.enter(digest([delivery(1), delivery(2)])) == []
    assert all(proved(ledger))
    assert ledger.enter(digest([delivery(sequence)])) == [sequence]
    assert not all(proved(ledger))


@given(st.data())
def test_any_delivery_order_adds_up(data):
    total = data.draw(st.integers(1, 30))
    numbers = st.integers(1, total)
    batches = data.draw(st.lists(st.lists(numbers, min_size=1), max_size=20))
    ledger = SequenceCounts(total)
    for batch in [*batches, list(range(1, total + 1))]:
        known: set[int] = set()
        while refused := ledger.enter(digest([delivery(n) for n in batch], known)):
            known.update(refused)
    assert ledger.count == total
    assert all(proved(ledger))


def complete() -> SequenceCounts:
    ledger = SequenceCounts(5)
    ledger.enter(digest([delivery(n) for n in (1, 2, 3, 4, 5)]))
    return ledger


def test_proof_fails_when_flight_missing():
    ledger = SequenceCounts(5)
    ledger.enter(digest([delivery(n) for n in (1, 2, 4, 5)]))
    assert not all(proved(ledger))
    assert "4 of 5 flights processed, 1 lost" in str(claims_of(ledger)[0])


def claims_of(ledger: SequenceCounts):
    return claims(ledger, tally_of([1, 2, 3, 4, 5]), stored=5, pending=0, ack_pending=0, killing=None)


@pytest.mark.parametrize("change", [{"stored": 4}, {"pending": 1}, {"ack_pending": 1}])
def test_proof_fails_when_server_disagrees(change):
    assert not all(proved(complete(), **change))


def test_proof_fails_on_other_sum():
    assert not all(proved(complete(), tally_of([1, 2, 3, 4, 6])))
    assert "differs from the file" in str(
        claims(complete(), tally_of([1]), stored=5, pending=0, ack_pending=0, killing=None)[-1]
    )
    assert str(claims_of(complete())[-1]).endswith("matches the file")


def test_proof_needs_orphans_back():
    ledger = complete()
    ledger.orphaned.update([2, 3])
    killing = Killing(1, 3)
    assert not all(proved(ledger, killing=killing))
    ledger.enter(digest([delivery(2, 2)]))
    assert not all(proved(ledger, killing=killing))
    ledger.enter(digest([delivery(3, 2)]))
    assert all(proved(ledger, killing=killing))


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        ReportAnswer([1, 2]),
        digest([delivery(1)]),
        WorkerSetup(["nats://h"], "n", "S", "s.>", "g", 5.0, 10),
    ],
)
@virtual
async def test_said_over_pipe_arrives(message):
    pipe = asyncio.StreamReader()
    pipe.feed_data(frame(message) + frame(message)[:-1])
    pipe.feed_eof()
    body = await read_frame(pipe)
    assert body is not None
    assert msgspec.msgpack.decode(body, type=Ready | Report | WorkerSetup | ReportAnswer) == message
    assert await read_frame(pipe) is None, "half a message of a worker that was killed is none"

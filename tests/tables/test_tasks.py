"""How a range of a stream is cut into tasks, and what a task knows."""

from __future__ import annotations

import itertools
import pickle
from types import SimpleNamespace

import pytest

from jsclient.tables.ranges import SequenceRange
from jsclient.tables.source_options import SourceOptions
from jsclient.tables.tasks import LogPartition, cut, pieces_of, plan, read_spec


def options(**named: str) -> SourceOptions:
    return SourceOptions.parse({"servers": "nats://a", "stream": "S", **named})


def lookup(*, subjects: tuple[str, ...] = (), rest=None, cheap: bool = True) -> SimpleNamespace:
    """What is known of a stream. ``rest``: the messages from a sequence on."""
    return SimpleNamespace(
        subjects=subjects, counts_cheaply=lambda facts: cheap, rest=lambda first, facts: rest(first)
    )


FACTS = SimpleNamespace(gaps=False, name="S", created="2026-01-01T00:00:00+00:00", mean_bytes=100.0)
GAPS = SimpleNamespace(**vars(FACTS) | {"gaps": True})


def covers(parts: list[SequenceRange], whole: SequenceRange) -> bool:
    edges = [(part.first, part.last) for part in parts]
    return (
        edges[0][0] == whole.first
        and edges[-1][1] == whole.last
        and all(one[1] + 1 == other[0] for one, other in itertools.pairwise(edges))
    )


@pytest.mark.parametrize(
    ("named", "rows", "pieces"),
    [
        ({}, 10, 1),
        ({"minPartitions": "4"}, 10, 4),
        ({"maxMessagesPerPartition": "3"}, 10, 4),
    ],
)
def test_number_of_tasks(named, rows, pieces):
    assert pieces_of(options(**named), rows) == pieces


def test_small_range_is_one_task():
    whole = SequenceRange(1, 10)
    assert cut(lookup(), options(), whole, FACTS, "auto") == [whole]


def test_dense_stream_is_cut_without_counting():
    """Each sequence is a message."""
    whole = SequenceRange(1, 1000)
    parts = cut(lookup(), options(minPartitions="4"), whole, FACTS, "auto")
    assert len(parts) == 4
    assert covers(parts, whole)


def test_few_sequences_are_cut_if_counting_needs_a_consumer():
    whole = SequenceRange(1, 1000)
    some = lookup(subjects=("a",), cheap=False)
    parts = cut(some, options(minPartitions="4"), whole, FACTS, "auto")
    assert len(parts) == 4
    assert covers(parts, whole)


def test_few_messages_in_a_wide_range_are_one_task():
    whole = SequenceRange(1, 1_000_000)
    some = lookup(subjects=("a",), rest=lambda first: 5 if first == 1 else 0)
    assert cut(some, options(maxMessagesPerPartition="10"), whole, FACTS, "auto") == [whole]


def test_many_messages_in_a_stream_with_gaps_are_cut_by_sequence():
    whole = SequenceRange(1, 100_000)
    some = lookup(rest=lambda first: 90_000 if first == 1 else 0)
    parts = cut(some, options(minPartitions="3"), whole, GAPS, "auto")
    assert len(parts) == 3
    assert covers(parts, whole)


def test_task_completes_the_settings_of_all_tasks():
    spec = read_spec(options(subjects="a"), ("data",))
    (part,) = plan([SequenceRange(1, 5)], lookup(subjects=("a",)), FACTS, "direct")
    own = pickle.loads(pickle.dumps(part)).spec(spec)
    assert (own.stream, own.created, own.subjects, own.read_mode) == ("S", FACTS.created, ("a",), "direct")
    assert own.columns == spec.columns
    unnamed = LogPartition(None, "", stream="").spec(spec)
    assert unnamed.stream == spec.stream

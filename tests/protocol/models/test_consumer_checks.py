"""The configurations of a consumer that cannot work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.models import (
    ConsumerConfig,
    ConsumerInfo,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jsclient.protocol.models.consumer_checks import (
    check_consumer,
    impossible_filters,
    like_milliseconds,
    queue_advice,
)

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
WRONG = ["a b", ".a", "a.", "a..b", "a\nb", "a.>.b", "a\tb", ">.a"]


@pytest.mark.parametrize("subject", WRONG)
@pytest.mark.parametrize(
    "as_field", [lambda s: {"filter_subject": s}, lambda s: {"filter_subjects": ["fine", s]}]
)
def test_filters_are_subjects(subject, as_field):
    with pytest.raises(InvalidNameError) as caught:
        check_consumer(ConsumerConfig(**as_field(subject)), NOW)
    assert repr(subject) in str(caught.value)


@pytest.mark.parametrize("group", ["a b", "a\nb", "a\x00"])
def test_groups_are_names(group):
    with pytest.raises(InvalidNameError, match="queue"):
        check_consumer(ConsumerConfig(deliver_group=group), NOW)


def test_two_ways_to_filter():
    with pytest.raises(ConfigError, match="give one of them"):
        check_consumer(ConsumerConfig(filter_subject="a", filter_subjects=["b"]), NOW)


@pytest.mark.parametrize("form", [lambda moment: moment, datetime.isoformat])
def test_start_in_the_future(form):
    late, soon = NOW + timedelta(hours=1), NOW + timedelta(minutes=1)
    with pytest.raises(
        ConfigError, match=r"2026-11-23T13:00:00\+00:00, in the future.*deliver_policy=\"new\""
    ):
        check_consumer(ConsumerConfig(opt_start_time=form(late)), NOW)
    check_consumer(ConsumerConfig(opt_start_time=form(soon)), NOW)  # the server's clock may be ahead


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"filter_subject": "a.*.>", "deliver_group": "g.1"},
        {"filter_subjects": ["a", "b.>"]},
        {"filter_subject": "", "filter_subjects": [], "deliver_group": ""},  # as if not given
        {"opt_start_time": "2020-01-01T00:00:00Z"},
    ],
)
def test_accepted(fields):
    check_consumer(ConsumerConfig(**fields), NOW)


@pytest.mark.parametrize(
    ("subjects", "filters", "impossible"),
    [
        (["a"], ["zzz"], ["zzz"]),
        (["a.>"], ["a.b", "*.c", ">", "a", "b.>"], ["a", "b.>"]),
        (["a.*", "b"], ["a.b.c", "*"], ["a.b.c"]),
        (None, ["S", "s"], ["s"]),  # the subject is its name
    ],
)
def test_impossible_filters(subjects, filters, impossible):
    assert impossible_filters(filters, StreamConfig(name="S", subjects=subjects)) == impossible


@pytest.mark.parametrize(
    "other",
    [
        {"mirror": StreamSource(name="O")},
        {"sources": [StreamSource(name="O")], "subjects": ["a"]},
        {"subject_transform": SubjectTransform(src="a", dest="b.{{partition(3,1)}}"), "subjects": ["a"]},
    ],
)
def test_streams_of_other_subjects(other):
    assert impossible_filters(["zzz"], StreamConfig(name="S", **other)) == []


def named(name, *filters):
    return ConsumerInfo(stream_name="S", name=name, config=ConsumerConfig(filter_subjects=[*filters]))


@pytest.mark.parametrize(
    ("filters", "holder"),
    [
        (["a"], "'first' takes 'a', 'c.*'"),
        (["c.d", "b"], "'first'"),
        ([], "'first'"),
        (["e"], "'all' takes all messages"),
    ],
)
def test_who_has_the_messages_of_a_work_queue(filters, holder):
    others = [named("w", "a"), named("first", "a", "c.*"), named("all")]
    expected = ConsumerConfig(durable_name="w", filter_subjects=filters or None)
    assert f"consumer {holder}" in queue_advice(expected, others)
    assert queue_advice(expected, others[:1]) == ""


@pytest.mark.parametrize("fields", [{"ack_wait": 30_000}, {"ack_wait": 5_000.0}, {"backoff": [1, 10_000]}])
def test_milliseconds_noticed(fields):
    [text] = like_milliseconds(ConsumerConfig(**fields))
    assert text.startswith(next(iter(fields)))
    assert "durations are in seconds, and this looks like milliseconds" in text


def test_milliseconds_text():
    [text] = like_milliseconds(ConsumerConfig(ack_wait=30_000))
    assert text == (
        "ack_wait is 30000 s (h:mm:ss 8:20:00): durations are in seconds, and this looks like milliseconds; "
        "give 30 for 30 s"
    )


@pytest.mark.parametrize(
    "seconds", [None, 0.5, 30, 600, 3600, 7200, 36_000, 5_400, timedelta(hours=10), timedelta(days=1)]
)
def test_seconds_believed(seconds):
    assert like_milliseconds(ConsumerConfig(ack_wait=seconds)) == []
    assert like_milliseconds(ConsumerConfig(backoff=[] if seconds is None else [seconds])) == []

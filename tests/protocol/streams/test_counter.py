"""Counters on the wire."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, ProtocolError
from jsclient.protocol.models.message import StoredMessage
from jsclient.protocol.streams.counter import (
    CounterEntry,
    increment_text,
    next_chunk,
    read_counter,
    read_number,
)
from jsclient.protocol.wire.headers import Headers

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)


def stored(data=b'{"val":"7"}', **headers):
    options = {name.replace("_", "-"): text for name, text in {"Nats_Incr": "+5", **headers}.items()}
    return StoredMessage(
        subject="hits.a",
        seq=3,
        data=data,
        headers=Headers(options),
        time=NOON,
        time_ns=int(NOON.timestamp()) * 10**9,
    )


# --- what is added ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1, "+1"), (0, "+0"), (-10, "-10"), (2**64, "+18446744073709551616"), (-(10**30), f"-1{'0' * 30}")],
)
def test_increment_sign_and_any_size(amount, text):
    assert increment_text(amount) == text


@pytest.mark.parametrize("amount", [True, 1.0, "1", None, b"1"])
def test_what_is_no_increment(amount):
    with pytest.raises(ConfigError, match="amount"):
        increment_text(amount)


def test_odd_increment_refused():
    with pytest.raises(ConfigError, match="amount has more digits"):
        increment_text(10**4300)


@given(st.integers())
def test_any_increment_comes_back(amount):
    assert read_number(increment_text(amount), "it") == amount


# --- what was counted ------------------------------------------------------------------------------------


def test_a_counter():
    entry = read_counter(stored())
    assert entry == CounterEntry(subject="hits.a", value=7, increment=5, sources={}, seq=3, time=NOON)
    assert pickle.loads(pickle.dumps(entry)) == entry


def test_counter_beyond_64_bits():
    entry = read_counter(stored(b'{"val":"-123456789012345678901234567890","more":[1]}', Nats_Incr="-1"))
    assert (entry.value, entry.increment) == (-123456789012345678901234567890, -1)


def test_a_counter_with_sources():
    entry = read_counter(stored(Nats_Counter_Sources='{"ES":{"count.es":"4"},"PT":{"a":"-1","b":"2"}}'))
    assert entry.sources == {"ES": {"count.es": 4}, "PT": {"a": -1, "b": 2}}
    assert read_counter(stored(Nats_Counter_Sources="{}")).sources == {}


@pytest.mark.parametrize(
    "message",
    [
        stored(b""),
        stored(b"7"),
        stored(b"{}"),
        stored(b'{"val":7}'),
        stored(b'{"val":"7.0"}'),
        stored(b'{"val":"0x7"}'),
        stored(b'{"val":" 7"}'),
        stored(b'{"val":"7\\n"}'),
        stored(b'{"val":"\\u0667"}'),
        stored(b'{"val":""}'),
        stored(b'{"val":"' + b"9" * 5000 + b'"}'),
        stored(Nats_Incr="five"),
        stored(Nats_Incr=""),
        stored(Nats_Counter_Sources="[]"),
        stored(Nats_Counter_Sources='{"ES":5}'),
        stored(Nats_Counter_Sources='{"ES":{"a":5}}'),
        stored(Nats_Counter_Sources='{"ES":{"a":"x"}}'),
        StoredMessage(subject="a", seq=1, data=b'{"val":"7"}', headers=Headers(), time=NOON, time_ns=0),
    ],
)  # fmt: skip
def test_what_is_no_counter(message):
    with pytest.raises(ProtocolError) as caught:
        read_counter(message)
    assert len(str(caught.value)) < 200


@given(
    st.binary(max_size=40) | st.text(max_size=10).map(lambda t: f'{{"val":"{t}"}}'.encode()),
    st.text(max_size=10),
)
def test_any_counter_or_error(data, incr):
    try:
        read_counter(stored(data, Nats_Incr=incr))
    except ProtocolError:
        pass


# --- many at once ----------------------------------------------------------------------------------------


def test_requests_are_bounded():
    subjects = [f"hits.{number}" for number in range(2500)]
    assert [next_chunk(subjects, start, 10**6) for start in (0, 1000, 2000, 2499)] == [1000, 2000, 2500, 2500]
    assert next_chunk(["a" * 97, "b" * 97, "c" * 97], 0, 200) == 2
    assert next_chunk(["a" * 300, "b"], 0, 200) == 1, "one goes always"
    assert next_chunk(["é" * 50, "b"], 0, 100) == 1, "bytes, not characters"


@given(st.lists(st.text("ab", min_size=1, max_size=9), max_size=30), st.integers(0, 60))
def test_all_subjects_requested_once(subjects, limit):
    start, requests = 0, []
    while start < len(subjects):
        end = next_chunk(subjects, start, limit)
        assert end > start
        requests += subjects[start:end]
        start = end
    assert requests == subjects

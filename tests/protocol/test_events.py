"""Events: one base, printable, comparable, and exported."""

from __future__ import annotations

import inspect
import pickle

import msgspec
import pytest

import jsclient
from jsclient.errors import ClosedError
from jsclient.protocol import events
from jsclient.protocol.events import Event, GapDetected

CLASSES = [value for _, value in inspect.getmembers(events, inspect.isclass) if issubclass(value, Event)]


def made(kind: type[Event]) -> Event:
    """An event with something in every field."""
    values = {}
    for field in msgspec.structs.fields(kind):
        values[field.name] = {"str": "text", "int": 7, "float": 1.5}.get(str(field.type), ClosedError("over"))
        if field.type in (str, int, float):
            values[field.name] = {str: "text", int: 7, float: 1.5}[field.type]
    return kind(**values)


@pytest.mark.parametrize("kind", CLASSES)
def test_event_prints_and_pickles(kind):
    event = made(kind)
    for field in msgspec.structs.fields(kind):
        assert f"{field.name}=" in str(event)
        with pytest.raises(AttributeError):
            setattr(event, field.name, None)
    copy = pickle.loads(pickle.dumps(event))
    assert str(copy) == str(event)


@pytest.mark.parametrize("kind", CLASSES)
def test_events_named_and_exported(kind):
    assert {"stream", "consumer"} <= {field.name for field in msgspec.structs.fields(kind)}
    assert kind.__name__ in events.__all__
    assert getattr(jsclient, kind.__name__) is kind
    assert kind.__doc__


@pytest.mark.covers("J90")
def test_a_gap_says_where_to_read_on():
    gap = GapDetected(last_consumer_seq=2, consumer_seq=6, last_stream_seq=12, stream_seq=20, missed=3)
    assert gap.resume_stream_seq == 13

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


VALUES = {"str": "text", "bool": True, "int": 7, "float": 1.5, "tuple": (7, 8)}


def made(kind: type[Event]) -> Event:
    """An event with a value in every field."""
    values = {}
    for field in msgspec.structs.fields(kind):
        declared = (
            field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        )
        name = declared.removesuffix(" | None")
        values[field.name] = VALUES.get(name, ClosedError("over"))
    return kind(**values)


@pytest.mark.parametrize("kind", CLASSES)
def test_event_prints_and_pickles(kind):
    event = made(kind)
    for field in msgspec.structs.fields(kind):
        assert f"{field.name}=" in repr(event)
        with pytest.raises(AttributeError):
            setattr(event, field.name, None)
    sentence = str(event)
    assert sentence.endswith("(consumer 'text' of stream 'text')")
    assert "None" not in sentence
    assert "\n" not in sentence
    copy = pickle.loads(pickle.dumps(event))
    assert (str(copy), repr(copy)) == (sentence, repr(event))


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

"""The text, the log level and the log of an event."""

from __future__ import annotations

import pytest

from jsclient.protocol.event_base import Event


class DoorOpened(Event, frozen=True, kw_only=True):
    """An event that does not define its text."""

    about = "door"

    by: str = ""
    times: int | None = None


class DoorBroken(Event, frozen=True, kw_only=True):
    """An event that defines its text."""

    _text = "the door broke after {times} times"
    _severity = "error"

    times: int = 0


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (DoorOpened(), "door opened"),
        (DoorOpened(by="wind"), "door opened: by 'wind'"),
        (DoorOpened(by="wind", times=0), "door opened: by 'wind', times 0"),
        (DoorBroken(times=7), "the door broke after 7 times"),
        (DoorBroken(times=7, stream="S"), "the door broke after 7 times (stream 'S')"),
        (DoorOpened(stream="S", consumer="c"), "door opened (consumer 'c' of stream 'S')"),
    ],
)
def test_text_names_fields_and_origin(event, text):
    assert str(event) == text


def test_level_and_log_come_from_the_class():
    assert (DoorOpened().severity, DoorBroken().severity) == ("warning", "error")
    assert (DoorOpened.about, DoorBroken.about) == ("door", "consumer")


def test_events_are_values():
    assert DoorOpened(by="wind") == DoorOpened(by="wind") != DoorOpened(by="cat")
    with pytest.raises(AttributeError):
        DoorOpened().by = "cat"

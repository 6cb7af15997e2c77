"""Frames that arrive before their handle exists."""

from __future__ import annotations

from jsclient._runtime.connection.connection import HoldingSink, Lifecycle
from jsclient._runtime.connection.own_connection import OwnConnection
from jsclient.events import ErrorRaised
from tests.support.strategies import data
from tests.support.virtual import settle, virtual

ONE, TWO, THREE = data(1), data(2), data(3)


def test_held_frames_come_first():
    intake, got = HoldingSink(), []
    intake([ONE])
    intake([TWO])
    intake.open(got.extend)
    intake([THREE])
    assert got == [ONE, TWO, THREE]


def test_frames_after_close_dropped():
    intake, got = HoldingSink(), []
    intake.open(got.extend)
    intake.close()
    intake([ONE])
    assert got == []


def test_close_drops_held_frames():
    intake, got = HoldingSink(), []
    intake([ONE])
    intake.close()
    intake([TWO])
    intake.open(got.extend)
    assert got == []


def test_order_is_kept_while_opening():
    intake, got = HoldingSink(), []

    def target(frames):
        got.extend(frames)
        if frames == [ONE]:
            intake([TWO])

    intake([ONE])
    intake.open(target)
    assert got == [ONE, TWO]


def test_open_puts_target_in_place():
    intake, got, sinks = HoldingSink(), [], {}
    sinks[b"1"] = intake
    intake.installed(sinks, b"1")
    sinks[b"1"]([ONE])
    intake.open(got.extend)
    assert sinks[b"1"] == got.extend
    assert got == [ONE]
    intake.close()
    sinks[b"1"]([TWO])
    assert got == [ONE]


def test_open_after_unsubscribe():
    intake, sinks = HoldingSink(), {}
    intake.installed(sinks, b"1")
    intake.open(print)
    assert sinks == {}


@virtual
async def test_raising_listener_keeps_nothing_from_others():
    events, received = [], []
    connection = OwnConnection(events.append)

    def broken(what):
        raise ValueError("a bug")

    connection.add_listener(broken)
    connection.add_listener(received.append)
    connection._notify(Lifecycle.DISCONNECTED)
    await settle()
    assert received == [Lifecycle.DISCONNECTED]
    assert [type(event) for event in events] == [ErrorRaised]
    assert "ValueError: a bug" in str(events[0])

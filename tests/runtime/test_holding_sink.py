"""Frames that arrive before there is anybody to take them."""

from __future__ import annotations

from jsclient._runtime.holding_sink import Intake
from tests.support.strategies import data

ONE, TWO, THREE = data(1), data(2), data(3)


def test_what_came_before_it_was_opened_comes_first_and_in_order():
    intake, got = Intake(), []
    intake([ONE])
    intake([TWO])
    intake.open(got.extend)
    intake([THREE])
    assert got == [ONE, TWO, THREE]


def test_what_comes_after_it_was_closed_is_dropped():
    intake, got = Intake(), []
    intake.open(got.extend)
    intake.close()
    intake([ONE])
    assert got == []


def test_what_was_held_when_it_is_closed_is_dropped():
    intake, got = Intake(), []
    intake([ONE])
    intake.close()
    intake([TWO])
    intake.open(got.extend)
    assert got == []


def test_frames_that_arrive_while_it_is_being_opened_keep_their_place():
    intake, got = Intake(), []

    def target(frames):
        got.extend(frames)
        if frames == [ONE]:
            intake([TWO])

    intake([ONE])
    intake.open(target)
    assert got == [ONE, TWO]

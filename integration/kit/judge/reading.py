"""Taking messages from a reader, and events out of a list, without hanging for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from integration.kit.judge.oracle import number_of
from integration.kit.judge.waiting import eventually, within

T = TypeVar("T")


async def take(reader: Any, count: int, timeout: float = 15.0) -> list[Any]:
    """The next `count` messages of whatever has `next`."""

    async def read() -> list[Any]:
        return [await reader.next(timeout=timeout) for _ in range(count)]

    return await within(timeout + 45, read(), f"taking {count} messages")


def noting(
    into: list[Any], what: Callable[[Any], Any] = lambda event: event
) -> Callable[[Any], Awaitable[None]]:
    """A handler on the event loop. In a thread, as plain functions run, it would note later."""

    async def note(event: Any) -> None:
        into.append(what(event))

    return note


def numbers(messages: Iterable[Any]) -> list[int]:
    """The numbers in messages that the oracle published."""
    return [number_of(message.data) for message in messages]


def of(kind: type[T], events: Iterable[Any]) -> list[T]:
    """The events of one class."""
    return [event for event in events if isinstance(event, kind)]


async def wait_for_event(
    kind: type[T], events: list[Any], fits: Callable[[T], object] = bool, timeout: float = 60.0
) -> T:
    """The first event of a class that fits, reported already or to come."""

    def matching_event() -> T | None:
        return next((event for event in of(kind, events) if fits(event)), None)

    event = await eventually(matching_event, timeout, f"an event {kind.__name__}; told were {events!r}")
    assert event is not None
    return event


class EventReader:
    """Keeps what `sub.events()` gives, until the subscription ends."""

    def __init__(self, sub: Any) -> None:
        self.events: list[Any] = []
        self.task = asyncio.create_task(self._read(sub))

    async def _read(self, sub: Any) -> None:
        async for event in sub.events():
            self.events.append(event)


def alarms(events: Iterable[Any]) -> list[Any]:
    """The events, except for events that only report the connection."""
    return [event for event in events if type(event).__name__ != "Reconnected"]

"""Events with a history on a stream: the suite of tests/patterns/test_history.py, and what only a server shows."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kit.waiting import eventually
from jsclient import EventSource
from tests.patterns.test_history import EventSuite

REPUBLISH = {"src": ">", "dest": "pushed.>"}


class StreamWorld:
    """Logs on a server, each a stream, which may republish what it stores."""

    def __init__(self, js: Any, make_stream: Any, events: list[Any], config: dict[str, Any]) -> None:
        self.events = events
        self._js, self._make, self._config = js, make_stream, config
        self.prefix = ""

    async def source(self, tail: str = "a", **config: Any) -> EventSource:
        stream = await self._make(**self._config, **config)
        self.prefix = stream.prefix
        source: EventSource = self._js.events(stream.subject(tail))
        return source

    async def until(self, condition: Any) -> None:
        await eventually(condition)


@pytest.fixture(params=["direct", "plain", "republish"])
async def world(request: Any, js: Any, oracle: Any, make_stream: Any, events: list[Any]) -> StreamWorld:
    configs: dict[str, dict[str, Any]] = {
        "direct": {"allow_direct": True},
        "plain": {"allow_direct": False},
        "republish": {"allow_direct": True, "republish": REPUBLISH},
    }
    return StreamWorld(js, make_stream, events, configs[request.param])


class TestEvents(EventSuite):
    pass

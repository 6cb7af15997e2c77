"""The outcomes of a publisher, for its tests."""

from __future__ import annotations

import asyncio
from typing import Any

from integration.kit.judge.waiting import within
from jsclient import (
    DisconnectedError,
    RequestTimeoutError,
)

UNKNOWN = (DisconnectedError, RequestTimeoutError)


def ids(frames: Any) -> list[str | None]:
    return [frame.header("Nats-Msg-Id") for frame in frames]


async def results(futures: list[Any], timeout: float = 20.0) -> list[Any]:
    """The result of each future: an ack or an error."""
    return await within(timeout, asyncio.gather(*futures, return_exceptions=True), "the futures")

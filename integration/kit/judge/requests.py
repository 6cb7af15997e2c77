"""Counts the requests to the API of JetStream that something sends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from integration.kit.clients.foreign import flushed

T = TypeVar("T")


class Requests:
    """Counts the requests during blocking calls, such as the calls of Spark.

    Attributes:
        seconds: Duration of the last call.
    """

    def __init__(self, oracle: Any) -> None:
        self._oracle = oracle
        self.seconds: float = 0.0

    async def of(self, call: Callable[..., T], *args: Any) -> tuple[T, Counter[str]]:
        """The result of a call, and its requests by kind, such as ``STREAM.INFO``."""
        async with self._oracle.listen("$JS.API.>") as seen:
            begin = time.monotonic()
            result = await asyncio.to_thread(call, *args)
            self.seconds = time.monotonic() - begin
            await flushed(self._oracle.nc)
        return result, Counter(".".join(one.subject.split(".")[2:4]) for one in seen)

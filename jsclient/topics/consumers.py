"""Creates the short-lived consumers of readers, even if a leader dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._runtime.calls import create_consumer, delete_consumer
from .._runtime.context import Context
from .._runtime.matching import check_match
from ..consumers.pull.consumer import Consumer
from ..errors import RequestTimeoutError
from ..protocol.consumers.ordered import create_timeout
from ..protocol.models.consumer import ConsumerConfig

if TYPE_CHECKING:
    from ..streams.stream import Stream

__all__ = ["Consumers"]


class Consumers:
    """The short-lived consumers of one reader.

    A leader that has died never answers, and its successor answers at once. So the first request has a short timeout,
    which grows with each failure. See `create_timeout`.
    """

    def __init__(self, context: Context, stream: Stream) -> None:
        self._context = context
        self._stream = stream
        self._failures = 0

    @property
    def _timeout(self) -> float:
        return create_timeout(self._failures, self._context.timeout)

    async def create(self, config: ConsumerConfig) -> Consumer:
        """Create a consumer. If it raises `RequestTimeoutError`, the consumer may exist."""
        context, stream = self._context, self._stream
        await check_match(context, stream.name, config.filters, stream.config)
        try:
            info = await create_consumer(context, stream.name, config, timeout=self._timeout)
        except RequestTimeoutError:
            self._failures += 1
            raise
        self._failures = 0
        return Consumer(context, info)

    async def delete(self, name: str) -> None:
        try:
            await delete_consumer(self._context, self._stream.name, name, timeout=self._timeout)
        except RequestTimeoutError:
            self._failures += 1
            raise

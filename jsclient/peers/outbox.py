"""Outgoing messages of relationships, sent to the other side and to the own handlers until they are done.

Each item is carried out by a task of its own; the tracker gives one of each kind at a time for each relationship. What
cannot be sent now is sent again without limit; events whose handlers fail are abandoned after ``max_deliver`` attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from .._runtime.tasks import Tasks
from ..errors import ApiError, ConfigError, JetStreamError, MaxPayloadError
from ..protocol.peers.outbox import OutboxItem, Raise, Send
from .backend import Backend
from .events import EventDelayed, EventGivenUp, PeerHandlerFailed
from .handlers import HandlerError
from .pauses import Stopping, backoff

__all__ = ["LONGEST_RETRY", "Outbox", "is_final", "publish_all"]

_AT_ONCE: Final = 64  # sends in flight to one host: a host that does not answer must not delay the others
_TOO_LARGE: Final = 10054
LONGEST_RETRY: Final = 60.0  # seconds until a handler that failed is called again


def is_final(error: JetStreamError) -> bool:
    """Whether an event can never be sent."""
    return isinstance(error, MaxPayloadError | ConfigError) or (
        isinstance(error, ApiError) and error.err_code == _TOO_LARGE
    )


class Outbox:
    """Carries out the items in the outboxes of a peer's relationships.

    Args:
        tell: Calls the peer's handlers with an event and the number of the attempt; raises `HandlerError`.
        done: Called with each item that was carried out.
    """

    def __init__(
        self,
        peer: str,
        backend: Backend,
        tasks: Tasks,
        stopping: Stopping,
        *,
        tell: Callable[[Raise, int], Awaitable[None]],
        done: Callable[[OutboxItem], Awaitable[None]],
    ) -> None:
        self._peer = peer
        self._backend = backend
        self._tasks = tasks
        self._stopping = stopping
        self._tell = tell
        self._done = done
        self._waiting: list[OutboxItem] | None = []
        self._sending: dict[str | None, asyncio.Semaphore] = {}

    def begin(self) -> None:
        """Start with the items found in the store: handlers are registered."""
        waiting, self._waiting = self._waiting or [], None
        for item in waiting:
            self.start(item)

    def start(self, item: OutboxItem) -> None:
        """Carry out an item in a task of its own."""
        if self._waiting is not None:
            self._waiting.append(item)
        elif not self._stopping.begun:
            self._tasks.start(self._carry_out(item), f"{item.domain}:{item.type} of peer {self._peer}")

    async def _carry_out(self, item: OutboxItem) -> None:
        if await (self._send(item) if isinstance(item, Send) else self._raise(item)):
            await self._done(item)

    async def _send(self, item: Send) -> bool:
        attempt = 0
        # A host that is not allowed is refused before anything is dialed, so these are few.
        sending = self._sending.setdefault(item.host, asyncio.Semaphore(_AT_ONCE))
        while not self._stopping.begun:
            try:
                async with sending:
                    await self._backend.publish(item)
                return True
            except JetStreamError as error:
                attempt += 1
                if is_final(error):
                    return self._given_up(item, error, attempt)
                delay = backoff(attempt)
                if attempt & (attempt - 1) == 0:
                    self._backend.emit(
                        EventDelayed(
                            peer=self._peer,
                            event=f"{item.domain}:{item.type}",
                            eci=item.eci,
                            host=item.host,
                            error=error,
                            attempt=attempt,
                            retry_in=delay,
                        )
                    )
            await self._stopping.pause(delay)
        return False

    async def _raise(self, item: Raise) -> bool:
        options, attempt = self._backend.options, 0
        while not self._stopping.begun:
            attempt += 1
            try:
                await self._tell(item, attempt)
                return True
            except HandlerError as failure:
                error = failure.__cause__ or failure
            delay = backoff(attempt, options.handler_delay, LONGEST_RETRY)
            last = attempt >= options.max_deliver
            self._backend.emit(
                PeerHandlerFailed(
                    peer=self._peer,
                    event=f"{item.domain}:{item.type}",
                    error=error,
                    attempt=attempt,
                    retry_in=None if last else delay,
                )
            )
            if last:
                return self._given_up(item, error, attempt)
            await self._stopping.pause(delay)
        return False

    def _given_up(self, item: OutboxItem, error: BaseException, attempts: int) -> bool:
        name = f"{item.domain}:{item.type}"
        self._backend.emit(EventGivenUp(peer=self._peer, event=name, error=error, attempts=attempts))
        return True


async def publish_all(backend: Backend, sends: Sequence[Send]) -> None:
    """Publish several events at the same time.

    Raises:
        ExceptionGroup: The errors of several events; the error itself if there is only one event.
    """
    results = await asyncio.gather(*map(backend.publish, sends), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if len(sends) > 1 and errors and all(isinstance(error, Exception) for error in errors):
        raise ExceptionGroup(
            f"{len(errors)} of {len(sends)} events could not be sent",
            [error for error in errors if isinstance(error, Exception)],
        )
    if errors:
        raise errors[0]

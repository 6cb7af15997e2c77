"""Decides whether and when a failed request is tried again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from ..errors import (
    AnswerLostError,
    ApiError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    RequestTimeoutError,
    StatusError,
    StreamNotFoundError,
)

__all__ = ["PATIENT", "READING", "Retry", "RetryPolicy", "is_transient", "varied"]

T = TypeVar("T")

_CLOSING: Final = {"consumer closed", "store is closed", "stream closed", "stream not valid"}
"""The server's descriptions for a request that arrived while it stopped or deleted the stream.

The err_code of these errors is less specific.
"""

_random = random.Random()  # noqa: S311  not a secret; the application may have seeded the shared generator


class RetryPolicy(msgspec.Struct, frozen=True):
    """The rules for repeating a request.

    Attributes:
        first_pause, longest_pause: The first and the longest pause between attempts, in seconds. It doubles each time.
        patience: How long transient errors are retried, in seconds. None means indefinitely.
        missing_stream: How long a stream may be missing, in seconds. It may seem to be missing while a cluster elects a
            leader.
        lost_answers: The number of consecutive lost answers after which the error is final.
        also: Errors that are transient for this request only.
    """

    first_pause: float
    longest_pause: float
    patience: float | None = None
    missing_stream: float = 0.0
    lost_answers: int = 20
    also: tuple[type[JetStreamError], ...] = ()


READING: Final = RetryPolicy(
    0.05, 1.0, missing_stream=5.0, also=(ConsumerNotFoundError, ConsumerDeletedError)
)
"""The policy of readers, which create their consumers. They retry as long as the server is unavailable."""

PATIENT: Final = RetryPolicy(0.25, 0.25, patience=30.0)
"""The policy for a request of a driver program. It retries for the time of a server restart, but not longer."""


def varied(seconds: float) -> float:
    """Return a pause of about ``seconds``, so that many clients do not try again at the same instant."""
    return seconds * _random.uniform(0.75, 1.25)


def is_transient(error: JetStreamError) -> bool:
    """Return whether the error is typical of a server restart, an election or a lost message."""
    if isinstance(error, RequestTimeoutError | DisconnectedError | NoRespondersError | AnswerLostError):
        return True
    if isinstance(error, ApiError):
        return error.code == 503 or (error.code == 500 and error.description in _CLOSING)
    return isinstance(error, StatusError) and error.retryable


class Retry:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy = READING) -> None:
        self._policy = policy
        self._pause = policy.first_pause
        self._failing_since: float | None = None
        self._missing_since: float | None = None
        self._losses = 0

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat the request until it succeeds. Raises its final error."""
        while True:
            try:
                return await work()
            except JetStreamError as error:
                if not await self.again(error):
                    raise

    async def again(self, error: JetStreamError) -> bool:
        """Sleep and return True if the request should be repeated. Return False at once if the error is final."""
        if self._is_final(error, asyncio.get_running_loop().time()):
            return False
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, self._policy.longest_pause)
        return True

    def _is_final(self, error: JetStreamError, now: float) -> bool:
        policy = self._policy
        if self._failing_since is None:
            self._failing_since = now
        if policy.patience is not None and now - self._failing_since >= policy.patience:
            return True
        self._losses = self._losses + 1 if isinstance(error, AnswerLostError) else 0
        if self._losses >= policy.lost_answers:
            return True
        if isinstance(error, StreamNotFoundError):
            if self._missing_since is None:
                self._missing_since = now
            return now - self._missing_since >= policy.missing_stream
        self._missing_since = None
        return not (isinstance(error, policy.also) or is_transient(error))

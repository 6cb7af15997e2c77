"""Whether a request that failed is worth another try, and when."""

from __future__ import annotations

import asyncio
from typing import Final

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

__all__ = ["Tries", "passes"]

_FIRST_PAUSE: Final = 0.05  # seconds, doubled each time
_LONGEST_PAUSE: Final = 1.0  # seconds
_LOSSES: Final = 20  # answers of which not even the beginning came, one after the other: that is no accident
_GRACE: Final = 5.0  # seconds that a stream may be gone, as it looks while a cluster elects a leader


def passes(error: JetStreamError) -> bool:
    """Whether this is how it looks when a server restarts, a cluster elects a leader, or a message gets lost."""
    if isinstance(error, RequestTimeoutError | DisconnectedError | NoRespondersError | AnswerLostError):
        return True
    return (isinstance(error, StatusError) and error.retryable) or (
        isinstance(error, ApiError) and error.code == 503
    )


class Tries:
    """The tries of one request: what passes is tried again and again, at growing intervals."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._gone_since: float | None = None
        self._losses = 0

    async def again(self, error: JetStreamError) -> bool:
        """Wait, and say True; or say False at once: the error is one for good."""
        now = asyncio.get_running_loop().time()
        self._losses = self._losses + 1 if isinstance(error, AnswerLostError) else 0
        if self._losses >= _LOSSES:
            return False
        if isinstance(error, StreamNotFoundError):
            self._gone_since = now if self._gone_since is None else self._gone_since
            if now - self._gone_since >= _GRACE:
                return False
        else:
            self._gone_since = None
            # A consumer that was made for the request is made anew.
            if not passes(error) and not isinstance(error, ConsumerNotFoundError | ConsumerDeletedError):
                return False
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return True

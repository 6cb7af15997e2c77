"""Failures that nobody has looked at: kept to be raised, and told as events where that would be too late."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from ..errors import ApiError, JetStreamError
from ..protocol.events import Event, PublishFailed

__all__ = ["UnseenFailures"]

OVERDUE = 10.0
"""Seconds after which a failure is told that nobody can look at any more."""

_OURS = 2  # references to a future that nobody else holds: that of the record, and the argument that asks

Failure: TypeAlias = tuple[float, str, "asyncio.Future[Any]"]  # when to tell it, subject, future


def _is_seen(future: asyncio.Future[Any]) -> bool:
    """Whether somebody asked for the result. asyncio keeps it for its own message of an exception never retrieved."""
    return not getattr(future, "_log_traceback", True)


class UnseenFailures:
    """Futures that failed, until somebody looks at them.

    Each failure surfaces once: where its future is looked at, in what `take` gives, or as an event: when its future was
    let go of and more than ``kept`` wait, or `OVERDUE` seconds have passed, and at the end.
    """

    def __init__(self, emit: Callable[[Event], None], kept: int) -> None:
        self._emit = emit
        self._kept = self._limit = kept
        self._failures: deque[Failure] = deque()
        self.told = 0  # as events, since the last `take`

    def add(self, subject: str, future: asyncio.Future[Any], error: JetStreamError, now: float) -> None:
        """A publish failed."""
        if future.done():
            return  # cancelled: nobody wants to know
        future.set_exception(error)
        self._failures.append((now + OVERDUE, subject, future))

    @property
    def look_at(self) -> float:
        """When to call `tick`."""
        if len(self._failures) > self._limit:
            return 0.0
        return self._failures[0][0] if self._failures else float("inf")

    def tick(self, now: float) -> None:
        """Tell what nobody can look at any more, if it is overdue or too much to be kept."""
        kept: list[Failure] = []
        told: list[Failure] = []
        held = 0
        excess = len(self._failures) - self._kept
        while self._failures:
            failure = self._failures.popleft()
            overdue, dropped = failure[0] <= now, sys.getrefcount(failure[2]) <= _OURS
            if _is_seen(failure[2]):
                excess -= 1
            elif dropped and (overdue or excess > 0):
                excess -= 1
                told.append(failure)
            else:
                held += not dropped
                kept.append((now + OVERDUE, *failure[1:]) if overdue else failure)
        self._failures.extend(sorted(kept, key=lambda failure: failure[0]))
        self._limit = self._kept + 2 * held  # what somebody holds is not ours to bound
        self._tell(told)

    def take(self) -> tuple[list[tuple[str, JetStreamError]], int]:
        """What nobody has looked at, to be raised now, and how many were told as events since the last time."""
        found = [(subject, _error(future)) for _, subject, future in self._failures if not _is_seen(future)]
        told, self.told = self.told, 0
        self._failures.clear()
        return found, told

    def tell(self) -> None:
        """Tell all that nobody has looked at: nothing will be raised any more."""
        failures = [failure for failure in self._failures if not _is_seen(failure[2])]
        self._failures.clear()
        self._tell(failures)

    def _tell(self, failures: list[Failure]) -> None:
        """One event for those that failed in the same way."""
        kinds: dict[tuple[type, int], list[tuple[str, JetStreamError]]] = {}
        for _, subject, future in failures:
            error = _error(future)
            code = error.err_code if isinstance(error, ApiError) else 0
            kinds.setdefault((type(error), code), []).append((subject, error))
        for found in kinds.values():
            self._emit(PublishFailed(subject=found[0][0], error=found[0][1], count=len(found)))
            self.told += len(found)


def _error(future: asyncio.Future[Any]) -> JetStreamError:
    error = future.exception()
    assert isinstance(error, JetStreamError)
    return error

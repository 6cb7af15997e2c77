"""The futures that `Publisher.publish` returns, and the failures that were not retrieved from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from ..errors import (
    ApiError,
    FailedPublishInfo,
    JetStreamError,
    counted,
)
from ..protocol.events import Event, PublishFailed
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import InFlight
from ..protocol.wire.header_names import MSG_ID
from ..protocol.wire.headers import parse_headers
from .ack_window import FailureSink

__all__ = ["OVERDUE", "PublishFuture", "UnretrievedFailures"]

OVERDUE = 10.0  # seconds after which a failure that has not been retrieved is reported as an event


class PublishFuture(asyncio.Future[PubAck]):
    """A future for an acknowledgement. If publishing fails, its class is changed to `FailedPublish`."""

    __slots__ = ()


class FailedPublish(PublishFuture):
    """The future of a message that could not be published. It notifies the publisher when the failure is retrieved.

    A future gets this class only after a failure, because the methods of this class are slower than those of
    `asyncio.Future`.
    """

    __slots__ = ()
    unretrieved: UnretrievedFailures | Reported  # the object to notify

    def _retrieve(self) -> None:
        _become(PublishFuture, self)
        self.unretrieved.retrieved(self)

    def result(self) -> PubAck:
        self._retrieve()
        return PublishFuture.result(self)

    def exception(self) -> BaseException | None:
        self._retrieve()
        return PublishFuture.exception(self)

    def __await__(self) -> Generator[Any, None, PubAck]:
        self._retrieve()
        return PublishFuture.__await__(self)

    __iter__ = __await__


FutureT = TypeVar("FutureT", bound=PublishFuture)


class Reported:
    """The number of failures that were reported as events but have not been retrieved since then."""

    def __init__(self) -> None:
        self.count: int = 0

    def retrieved(self, _: PublishFuture) -> None:
        self.count -= 1


class _Failure(NamedTuple):
    overdue: float  # monotonic seconds
    subject: str
    error: JetStreamError
    number: int
    header: bytes

    @property
    def info(self) -> FailedPublishInfo:
        msg_id = parse_headers(self.header)[1].get(MSG_ID)
        return FailedPublishInfo(self.subject, self.error, self.number, msg_id)


_Failed: TypeAlias = tuple[PublishFuture, _Failure]


class UnretrievedFailures(FailureSink[PublishFuture]):
    """The failures of a publisher that the application has not seen yet.

    A failure is removed when it is retrieved from its future, when `take_failures` returns it, or when an event reports
    it. The event is emitted after `OVERDUE` seconds, or earlier if there are more than ``capacity`` failures or the
    publisher is closed.
    """

    def __init__(self, emit: Callable[[Event], None], capacity: int) -> None:
        self._emit = emit
        self._capacity = capacity
        self._failures: dict[PublishFuture, _Failure] = {}  # oldest first
        self._reported = Reported()

    def add_failure(self, entry: InFlight[PublishFuture], error: JetStreamError, now: float) -> None:
        """Set the exception of the future and remember the failure, unless the future was cancelled."""
        future = entry.ticket
        if not future.done():
            future.set_exception(error)
            _mark(future, self)
            self._failures[future] = _Failure(now + OVERDUE, entry.to, error, entry.number, entry.header)

    def __len__(self) -> int:
        """Return the number of failures that the application has not seen yet."""
        return len(self._failures)

    @property
    def first(self) -> FailedPublishInfo | None:
        """The oldest failure that the application has not seen yet, or None."""
        return next((failure.info for failure in self._failures.values()), None)

    def retrieved(self, future: PublishFuture) -> None:
        del self._failures[future]

    @property
    def next_check(self) -> float:
        """Time at which `report_overdue` must be called."""
        if len(self._failures) > self._capacity:
            return 0.0
        return next(iter(self._failures.values())).overdue if self._failures else float("inf")

    def report_overdue(self, now: float) -> None:
        """Report failures that are overdue, and the oldest failures if there are too many."""
        excess = len(self._failures) - self._capacity
        report: list[_Failed] = []
        for future, failure in self._failures.items():
            if failure.overdue > now and len(report) >= excess:
                break
            report.append((future, failure))
        self._report_failures(report)

    def note_on(self, error: Exception) -> None:
        """Add a note with the number of failures, and the oldest of them, to another error."""
        count = len(self._failures) + self._reported.count
        if count:
            oldest = next(iter(self._failures.values()), None)
            first = f", the first: {oldest.subject!r}: {oldest.error}" if oldest else ""
            failed = counted(
                count,
                "other publish failed, or its outcome is unknown",
                "other publishes failed, or their outcome is unknown",
            )
            error.add_note(f"{failed}{first}; PublishFailed events report them")

    def take_failures(self) -> tuple[list[FailedPublishInfo], int]:
        """Remove and return all failures, and the number of failures reported as events since the last call."""
        failures = [failure.info for failure in self._failures.values()]
        for future in self._failures:
            _silence(future)
        self._failures.clear()
        reported, self._reported = self._reported.count, Reported()
        return failures, reported

    def close(self) -> None:
        """Report all remaining failures."""
        self._report_failures(list(self._failures.items()))

    def _report_failures(self, failed: list[_Failed]) -> None:
        """Emit an event for each kind of error, with the number of failures."""
        kinds: dict[tuple[type, int], list[_Failure]] = {}
        for future, failure in failed:
            del self._failures[future]
            _silence(future)
            _mark(future, self._reported)
            code = failure.error.err_code if isinstance(failure.error, ApiError) else 0
            kinds.setdefault((type(failure.error), code), []).append(failure)
        self._reported.count += len(failed)
        for failures in kinds.values():
            first = failures[0]
            self._emit(PublishFailed(subject=first.subject, error=first.error, count=len(failures)))


def _silence(future: PublishFuture) -> None:
    """Prevent asyncio from logging that the exception was never retrieved, because the publisher reports it."""
    PublishFuture.exception(_become(PublishFuture, future))


def _mark(future: PublishFuture, where: UnretrievedFailures | Reported) -> None:
    _become(FailedPublish, future).unretrieved = where


def _become(kind: type[FutureT], future: Any) -> FutureT:
    future.__class__ = kind
    return cast("FutureT", future)

"""The futures of publishes, and the failures that were not retrieved from them."""

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

OVERDUE = 10.0  # seconds after which a failure that was not retrieved is reported as an event


class PublishFuture(asyncio.Future[PubAck]):
    """The future of an ack. It becomes a `FailedPublish` if the publish fails."""

    __slots__ = ()


class FailedPublish(PublishFuture):
    """A failed publish that informs its publisher when the failure is retrieved.

    A future gets this class only when it fails, so that awaiting an ack costs no Python call.
    """

    __slots__ = ()
    unretrieved: UnretrievedFailures | Reported  # where the failure is counted

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
    """Counts the failures that were reported as events and have not been retrieved since."""

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
    """The failures of a publisher, until they are retrieved, raised by `take_failures`, or reported as events.

    Events report failures after `OVERDUE` seconds, earlier if there are more than ``capacity``, and when the publisher
    closes.
    """

    def __init__(self, emit: Callable[[Event], None], capacity: int) -> None:
        self._emit = emit
        self._capacity = capacity
        self._failures: dict[PublishFuture, _Failure] = {}  # oldest first
        self._reported = Reported()

    def add_failure(self, entry: InFlight[PublishFuture], error: JetStreamError, now: float) -> None:
        """Set the failure of a publish. Does nothing if its future was cancelled."""
        future = entry.ticket
        if not future.done():
            future.set_exception(error)
            _mark(future, self)
            self._failures[future] = _Failure(now + OVERDUE, entry.to, error, entry.number, entry.header)

    def __len__(self) -> int:
        """Return the number of failures that were neither retrieved nor reported as events."""
        return len(self._failures)

    @property
    def first(self) -> FailedPublishInfo | None:
        """The oldest failure that was neither retrieved nor reported."""
        return next((failure.info for failure in self._failures.values()), None)

    def retrieved(self, future: PublishFuture) -> None:
        del self._failures[future]

    @property
    def next_check(self) -> float:
        """The time at which to call `report_overdue`."""
        if len(self._failures) > self._capacity:
            return 0.0
        return next(iter(self._failures.values())).overdue if self._failures else float("inf")

    def report_overdue(self, now: float) -> None:
        """Report the failures that are overdue or too many."""
        excess = len(self._failures) - self._capacity
        report: list[_Failed] = []
        for future, failure in self._failures.items():
            if failure.overdue > now and len(report) >= excess:
                break
            report.append((future, failure))
        self._report_failures(report)

    def note_on(self, error: Exception) -> None:
        """Add a note to another error, with the number of all failures, reported or not, and the first of them."""
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
        """Return the failures to raise, and the number reported as events since the last call."""
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
        """Emit one event per kind of error."""
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
    """Keep asyncio from logging the failure as never retrieved: the publisher reports it."""
    PublishFuture.exception(_become(PublishFuture, future))


def _mark(future: PublishFuture, where: UnretrievedFailures | Reported) -> None:
    _become(FailedPublish, future).unretrieved = where


def _become(kind: type[FutureT], future: Any) -> FutureT:
    future.__class__ = kind
    return cast("FutureT", future)

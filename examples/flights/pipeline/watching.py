"""The watch over the driver's queries, which reports their progress and restarts a query after a fault of Spark."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from .words import BatchDone, FromDriver, QueryBegins, QueryEnded, QueryStartsAgain

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Watch", "is_transient", "reason"]

_INTERVAL = 0.1  # seconds between two checks of the queries
_STARTS = 4  # maximum number of starts of a query

Start: TypeAlias = "Callable[[], StreamingQuery]"


class Watch:
    """Reports the progress of queries. ``renew`` replaces state that a failed query may have broken."""

    def __init__(self, report: Callable[[FromDriver], None], renew: Callable[[], None]) -> None:
        self._report = report
        self._renew = renew
        self._reported: set[tuple[str, int]] = set()  # batches
        self._starts: Counter[str] = Counter()

    def until_ended(self, starts: Iterable[Start]) -> None:
        """Start queries, and wait for the end of all of them.

        Raises:
            StreamingQueryException: A query failed, and another start would not help.
        """
        active = [(start, start()) for start in starts]
        for _, query in active:
            self._starts[query.name] = 1
            self._report(QueryBegins(query.name))
        while active:
            time.sleep(_INTERVAL)
            for entry in list(active):
                start, query = entry
                ended = not query.isActive  # checked before its progress is read for the last time
                self._report_batches(query)
                if not ended:
                    continue
                active.remove(entry)
                error = query.exception()
                if error is None:
                    self._report(QueryEnded(query.name))
                else:
                    active.append((start, self._start_again(start, query.name, error)))

    def _start_again(self, start: Start, name: str, error: Exception) -> StreamingQuery:
        if not is_transient(error) or self._starts[name] == _STARTS:
            raise error
        self._starts[name] += 1
        self._report(QueryStartsAgain(name, reason(error)))
        self._renew()
        return start()

    def _report_batches(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            key = query.name, progress.batchId
            took = {name: int(ms) for name, ms in progress.durationMs.items()}
            if key in self._reported or "addBatch" not in took:  # without addBatch the query found no rows
                continue
            self._reported.add(key)
            states = progress.stateOperators
            self._report(
                BatchDone(
                    query.name,
                    progress.batchId,
                    int(progress.numInputRows),
                    float(progress.processedRowsPerSecond or 0.0),
                    took,
                    sum(int(state.numRowsTotal) for state in states),
                    sum(int(state.numRowsDroppedByWatermark) for state in states),
                )
            )


_ERROR = re.compile(r"^[\s:]*(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)): (\S.*)$", re.MULTILINE)

# Faults of Spark itself when queries start at the same time, in the maps that they share, or because a Python process
# took longer than ten seconds to start on a busy machine.
_TRANSIENT = (
    "java.io.OptionalDataException",
    "java.io.StreamCorruptedException",
    "java.util.ConcurrentModificationException",
    "Python worker failed to connect back",
)


def is_transient(error: BaseException) -> bool:
    """Return whether the query can succeed when it is restarted, because Spark failed, not the source or the sink."""
    text = str(error)
    return not _errors(text, "jsclient.") and any(fault in text for fault in _TRANSIENT)


def reason(error: BaseException) -> str:
    """Return the cause in one line.

    It is the innermost error of jsclient in Spark's text, or else the outermost error of Java, or else the first line.
    """
    text = str(error)
    ours, theirs = _errors(text, "jsclient."), _errors(text, "java.", "org.apache.spark.")
    if ours or theirs:
        return ours[-1] if ours else theirs[0]
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _errors(text: str, *packages: str) -> list[str]:
    """Return the errors of these packages in a text, outermost first, each as ``Name: message``."""
    errors = _ERROR.findall(text)
    return [
        f"{name.rpartition('.')[2]}: {message.strip()}"
        for name, message in errors
        if name.startswith(packages)
    ]

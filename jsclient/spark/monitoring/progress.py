"""Parse the progress of a query that Spark passes to listeners. Does no I/O.

Spark gives every Python source the same description, so a JetStream source is recognized by the form of its offsets.
``latestOffset`` is the state that the source knew when it planned the batch, returned by its ``reportLatestOffset``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "LogPosition",
    "QueryPosition",
    "QueryReport",
    "QueuePosition",
    "SourceReport",
    "StreamReport",
    "read_progress",
]


_MOST = 2**63 - 1  # the maximum of a count that OpenTelemetry accepts


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The position up to which a source in log mode has read a stream."""

    stream: str
    created: str  # the time when the stream was created, in the format of `LogOffset`
    seq: int  # the last sequence of the last completed batch
    subjects: tuple[str, ...] = ()  # the filters of the source


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The consumer of a source in queue mode, which keeps track of the unacked messages."""

    stream: str
    consumer: str


QueryPosition = LogPosition | QueuePosition


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The part of a batch's progress that is about one stream of a source. A missing value is None."""

    name: str  # "" if unknown
    query_position: QueryPosition | None = None
    last: int | None = None  # in log mode, the last matching sequence when the batch was planned
    pending: int | None = None  # in queue mode, the number of unclaimed messages when the batch was planned
    lost: int = 0  # lost, expired, lapsed: totals since the source started, see `Losses`, `ClaimsLapsed`
    expired: int = 0
    lapsed: int = 0


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The part of a batch's progress that is about one JetStream source. A missing value is None."""

    number: int  # number of the source in the query, from 0
    mode: Literal["log", "queue", "epochs"]
    stream: str  # "" if unknown, or if the source reads several streams
    rows: int  # rows of the batch
    streams: tuple[StreamReport, ...]
    input_rate: float | None = None  # rows per second that arrived
    processed_rate: float | None = None  # rows per second that were processed


@dataclass(frozen=True, slots=True)
class QueryReport:
    """The progress of one batch of a query."""

    id: str
    run: str  # id of this start of the query
    name: str  # "" without a name
    batch: int
    seconds: float | None  # duration of the batch
    output_rows: int | None  # rows that the sink has written
    sources: tuple[SourceReport, ...]


def read_progress(progress: Mapping[str, Any]) -> QueryReport:
    """Parse a ``StreamingQueryProgress`` or its decoded JSON.

    Sources of other formats are omitted. A value whose form differs from the current Spark counts as missing.

    Raises:
        LookupError, TypeError, ValueError: The progress does not identify the query and the batch.
    """
    described, sink, milliseconds = (
        progress.get("sources"),
        progress.get("sink"),
        _rate(progress.get("batchDuration")),
    )
    sources = (
        _source(number, one)
        for number, one in enumerate(described if isinstance(described, list) else ())
        if isinstance(one, dict)
    )
    return QueryReport(
        id=str(progress["id"]),
        run=str(progress["runId"]),
        name=_text(progress.get("name")),
        batch=int(progress["batchId"]),
        seconds=None if milliseconds is None else milliseconds / 1000,
        # Spark reports an unknown number as -1, which `_known_count` turns into None.
        output_rows=_known_count(sink.get("numOutputRows")) if isinstance(sink, dict) else None,
        sources=tuple(one for one in sources if one is not None),
    )


def _source(number: int, source: Mapping[str, Any]) -> SourceReport | None:
    end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
    name = _text(latest.get("stream"))
    fields: dict[str, Any] = {
        "number": number,
        "stream": name,
        "rows": _count(source.get("numInputRows")),
        "input_rate": _rate(source.get("inputRowsPerSecond")),
        "processed_rate": _rate(source.get("processedRowsPerSecond")),
    }
    # Spark's report doesn't name the mode, so recognize the source by the form of its offsets.
    if _is_log_offset(end):
        return SourceReport(**fields, mode="log", streams=(_read_up_to(name, end, latest),))
    if isinstance(ends := end.get("streams"), dict):
        return SourceReport(**fields, mode="log", streams=_several(ends, latest.get("streams")))
    if {"b", "runs"} <= end.keys():
        consumer = _text(latest.get("consumer"))
        queue = StreamReport(
            name,
            QueuePosition(name, consumer) if consumer else None,
            pending=_known_count(latest.get("pending")),
            lost=_count(latest.get("lost")),
            lapsed=_count(latest.get("lapsed")),
        )
        return SourceReport(**fields, mode="queue", streams=(queue,))
    if {"v", "since", "frontiers", "stream"} <= end.keys():
        name = _text(end["stream"])
        return SourceReport(**(fields | {"stream": name}), mode="epochs", streams=(StreamReport(name),))
    return None


def _read_up_to(name: str, end: Mapping[str, Any], latest: Mapping[str, Any]) -> StreamReport:
    subjects, created = latest.get("subjects"), _text(end.get("created"))
    filters = tuple(map(str, subjects)) if isinstance(subjects, list) else ()
    return StreamReport(
        name,
        LogPosition(name, created, _count(end.get("seq")), filters),
        last=_known_count(latest.get("seq")) if latest.get("created") == created else None,
        lost=_count(latest.get("lost")),
        expired=_count(latest.get("expired")),
    )


def _several(ends: Mapping[str, Any], latest: object) -> tuple[StreamReport, ...]:
    """Return the streams that the source reads.

    The offsets also contain streams that the source's options no longer select, or that match no filter.
    """
    known = latest if isinstance(latest, dict) else {}
    return tuple(
        _read_up_to(name, end, known[name])
        for name, end in ends.items()
        if isinstance(known.get(name), dict) and _is_log_offset(end) and not end.get("idle")
    )


def _offset(value: object) -> dict[str, Any]:
    """Decode an offset, unless it is decoded already. Returns {} if it is missing or not an object."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:  # a classic session writes a missing offset as "None"
            return {}
    return value if isinstance(value, dict) else {}


def _is_log_offset(offset: object) -> bool:
    """Return whether this is the offset of one stream in log mode."""
    return isinstance(offset, dict) and "created" in offset and _known_count(offset.get("seq")) is not None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _known_count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= _MOST else None


def _count(value: object) -> int:
    return _known_count(value) or 0


def _rate(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if 0 <= number < math.inf else None

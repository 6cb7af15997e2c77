"""Reads the progress of a query, as Spark passes it to listeners: its JetStream sources and their offsets. No I/O.

The offsets of a JetStream source are recognized by their form, since Spark gives each source in Python the same
description. ``latestOffset`` is what the source knew when it planned the batch, see ``reportLatestOffset`` of each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["LogPlace", "QueryReport", "SourceReport", "read_progress"]


@dataclass(frozen=True, slots=True)
class LogPlace:
    """How far a source in log mode has read."""

    stream: str
    created: str  # when the stream was created, as in `LogOffset`
    seq: int  # the last sequence of the last completed batch
    subjects: tuple[str, ...] = ()  # the filters of the source


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What the progress of one batch contains about one JetStream source. None: it does not contain it."""

    number: int  # of the source in the query, from 0
    mode: Literal["log", "queue", "epochs"]
    stream: str  # "" if unknown, or several
    rows: int  # of the batch
    input_rate: float | None = None  # rows per second that arrive, and that are processed
    processed_rate: float | None = None
    place: LogPlace | None = None
    last: int | None = None  # log: the last matching sequence, when the batch was planned
    # When the batch was planned: messages that were not claimed; in log mode with several streams, those after its end
    pending: int | None = None
    lost: int = 0  # lost, expired, lapsed: since the source started; see `Losses`, and `ClaimsLapsed`
    expired: int = 0
    lapsed: int = 0


@dataclass(frozen=True, slots=True)
class QueryReport:
    """The progress of one batch of a query."""

    id: str
    run: str  # of this start of the query
    name: str  # "" without a name
    batch: int
    seconds: float | None  # duration of the batch
    output_rows: int | None  # rows that the sink has written
    sources: tuple[SourceReport, ...]


def read_progress(progress: Mapping[str, Any]) -> QueryReport:
    """Read a ``StreamingQueryProgress``, or its decoded JSON. Sources other than those of JetStream are omitted."""
    sources = (_source(number, one) for number, one in enumerate(progress["sources"]))
    output, duration = (progress.get("sink") or {}).get("numOutputRows"), progress.get("batchDuration")
    return QueryReport(
        id=str(progress["id"]),
        run=str(progress["runId"]),
        name=progress.get("name") or "",
        batch=int(progress["batchId"]),
        seconds=None if duration is None else float(duration) / 1000,
        output_rows=output if isinstance(output, int) and output >= 0 else None,  # -1: unknown
        sources=tuple(one for one in sources if one is not None),
    )


def _source(number: int, source: Mapping[str, Any]) -> SourceReport | None:
    end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
    given: dict[str, Any] = {
        "number": number,
        "stream": _text(latest.get("stream")),
        "rows": _count(source.get("numInputRows")),
        "input_rate": _rate(source.get("inputRowsPerSecond")),
        "processed_rate": _rate(source.get("processedRowsPerSecond")),
    }
    if {"seq", "created"} <= end.keys():
        subjects = latest.get("subjects")
        filters = tuple(map(str, subjects)) if isinstance(subjects, list) else ()
        created, known = _text(end["created"]), latest.get("created") == end["created"]
        return SourceReport(
            **given,
            mode="log",
            place=LogPlace(given["stream"], created, _count(end["seq"]), filters),
            last=_count(latest.get("seq")) if known else None,
            lost=_count(latest.get("lost")),
            expired=_count(latest.get("expired")),
        )
    if isinstance(ends := end.get("streams"), dict):
        return SourceReport(**given, mode="log", **_several(ends, latest.get("streams")))
    if {"b", "runs"} <= end.keys():
        pending = latest.get("pending")
        return SourceReport(
            **given,
            mode="queue",
            pending=None if pending is None else _count(pending),
            lapsed=_count(latest.get("lapsed")),
        )
    if {"v", "since", "frontiers", "stream"} <= end.keys():
        return SourceReport(**(given | {"stream": _text(end["stream"])}), mode="epochs")
    return None


def _several(ends: Mapping[str, Any], latest: object) -> dict[str, Any]:
    """The sums over several streams: what is pending, and the losses. Both are the offsets of each stream by name."""
    found = (
        {name: one for name, one in latest.items() if isinstance(one, dict)}
        if isinstance(latest, dict)
        else {}
    )
    known = {name: one for name, one in ends.items() if isinstance(one, dict) and name in found}
    pending = [
        max(0, _count(found[name].get("seq")) - _count(end.get("seq")))
        for name, end in known.items()
        if found[name].get("created") == end.get("created")
    ]
    losses = {what: sum(_count(one.get(what)) for one in found.values()) for what in ("lost", "expired")}
    return {"pending": sum(pending) if pending else None, **losses}


def _offset(value: object) -> dict[str, Any]:
    """An offset, given as JSON or decoded; {} if it is missing, or not an object."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:  # a classic session writes a missing one as "None"
            return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

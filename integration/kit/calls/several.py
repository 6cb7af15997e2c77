"""Queries of a source of several streams, and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from integration.kit.calls.source import Query, Rows

COLUMNS = ("stream", "sequence", "data")


def numbers(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def sequences(rows: Rows, stream: Any) -> list[int]:
    """The messages that were read of one stream."""
    return [row["sequence"] for row in rows if row["stream"] == stream.name]


def query_of(server: Any, *streams: Any, columns: Sequence[str] = COLUMNS, **options: Any) -> Query:
    """A query of the streams that are named, from their first messages on."""
    arguments = {"startingOffsets": "earliest", **options}
    return Query(server, ",".join(one.name for one in streams), columns=columns, **arguments)


class PatternQuery(Query):
    """A query of the streams that match a pattern."""

    def __init__(self, server: Any, pattern: str, **options: Any) -> None:
        super().__init__(server, "", **{"columns": COLUMNS, "pollIntervalMs": 1, **options})
        del self._options["stream"]
        self._options["streamPattern"] = pattern

    def again(self, pattern: str | None = None, **options: Any) -> PatternQuery:
        """The same query after a restart."""
        query = PatternQuery("", "")
        query._options = {**self._options, **options}
        query._options["streamPattern"] = pattern or self._options["streamPattern"]
        query.offsets = self.offsets
        return query

"""The source as Spark calls it, without Spark: the same calls in the same order, and rows as dicts.

Tests with Spark show how Spark uses the source. The answers of the source are tested here, which is faster. Readers and
partitions are pickled on the way to the process that reads, as in Spark.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

COLUMNS = ("subject", "data", "sequence", "timestamp")

Rows = list[dict[str, Any]]


def options_of(server: Any, stream: Any, **options: Any) -> dict[str, str]:
    """Options of a source. Names without a dot or a capital need no quotes."""
    arguments = {
        "servers": getattr(server, "url", server),
        "stream": getattr(stream, "name", stream),
        **options,
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in arguments.items()
    }


def read_all(reader: Any, partitions: Sequence[Any]) -> list[Rows]:
    """The rows of each partition."""
    elsewhere = pickle.loads(pickle.dumps(reader))
    return [
        [row for batch in elsewhere.read(pickle.loads(pickle.dumps(one))) for row in batch.to_pylist()]
        for one in partitions
    ]


class Query:
    """A streaming query with a checkpoint. Each `run` is a new process on the driver, from the view of the source.

    Attributes:
        offsets: The checkpoint: ``(start, end)`` of each batch.
        parts: The rows of each partition of each batch.
    """

    def __init__(self, server: Any, stream: Any, *, columns: Sequence[str] = COLUMNS, **options: Any) -> None:
        self._options = options_of(server, stream, **options)
        self._columns = tuple(columns)
        self.offsets: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.parts: list[list[Rows]] = []

    @property
    def batches(self) -> list[Rows]:
        return [[row for part in parts for row in part] for parts in self.parts]

    @property
    def rows(self) -> Rows:
        return [row for batch in self.batches for row in batch]

    @property
    def sequences(self) -> list[int]:
        return [row["sequence"] for row in self.rows]

    def reader(self) -> Any:
        from jsclient.spark.log.several import SeveralStreamsReader
        from jsclient.spark.log.stream import LogStreamReader
        from jsclient.tables.source_options import SourceOptions

        parsed = SourceOptions.parse(self._options, streaming=True)
        return (SeveralStreamsReader if parsed.has_several else LogStreamReader)(parsed, self._columns)

    def drain(self, *, limit: Any = None) -> list[Rows]:
        """Run with the trigger AvailableNow. The batches of this run."""
        reader, before = self.reader(), len(self.offsets)
        reader.prepareForTriggerAvailableNow()
        limit = limit or reader.getDefaultReadLimit()
        start = self.start(reader)
        while (end := self.ask(reader, start, limit)) != start:
            self.batch(reader, start, end)
            start = end
        return self.batches[before:]

    def start(self, reader: Any) -> dict[str, Any]:
        return self.offsets[-1][1] if self.offsets else through_json(reader.initialOffset())

    def ask(self, reader: Any, start: dict[str, Any], limit: Any = None) -> dict[str, Any]:
        """The next offset, as it would be in the checkpoint."""
        arguments = limit or reader.getDefaultReadLimit()
        return through_json(reader.latestOffset(through_json(start), arguments))

    def batch(self, reader: Any, start: dict[str, Any], end: dict[str, Any]) -> Rows:
        """Plan and read one batch, and note it."""
        self.parts.append(self.replay(reader, start, end))
        self.offsets.append((start, end))
        return self.batches[-1]

    def replay(self, reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[Rows]:
        # A reader in another process reads the rows. The first process computes the offsets.
        return read_all(self.reader(), reader.partitions(through_json(start), through_json(end)))


class BatchRead:
    """A batch read: the rows of its partitions."""

    def __init__(
        self,
        server: Any,
        stream: Any,
        *,
        columns: Sequence[str] = COLUMNS,
        filters: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        from jsclient.spark.log.batch import LogBatchReader, PushdownReader
        from jsclient.tables.source_options import SourceOptions

        parsed = SourceOptions.parse(options_of(server, stream, **options), streaming=False)
        kind = PushdownReader if parsed.pushdown else LogBatchReader
        reader = kind(parsed, tuple(columns))
        self.unhandled = list(reader.pushFilters(list(filters))) if filters else []
        self.partitions = reader.partitions()
        self.parts = read_all(reader, self.partitions)

    @property
    def rows(self) -> Rows:
        return [row for part in self.parts for row in part]

    @property
    def sequences(self) -> list[int]:
        return [row["sequence"] for row in self.rows]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a checkpoint."""
    results: dict[str, Any] = json.loads(json.dumps(offset))
    return results

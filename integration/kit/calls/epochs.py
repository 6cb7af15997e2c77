"""Topics of epochs for the tests with Spark: the source as Spark calls it, and what a subscriber would have seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from integration.kit.calls.source import Query, options_of, read_all
from jsclient.epochs import Data, Int
from jsclient.protocol.epochs.records import EpochReading, FrontierEntry
from jsclient.protocol.epochs.trackers import EpochSubscriber

COLUMNS = ("epoch", "partition", "data", "sequence")

Rows = list[dict[str, Any]]


class EpochQuery(Query):
    """A streaming query over a topic."""

    def __init__(self, server: Any, topic: Any, *, columns: Sequence[str] = COLUMNS, **options: Any) -> None:
        super().__init__(server, topic.name.replace(".", "_"), columns=columns, epochs=topic.name, **options)

    def reader(self) -> Any:
        from jsclient.spark.epochs.source import EpochStreamReader
        from jsclient.spark.options.epochs import EpochSourceOptions

        return EpochStreamReader(
            EpochSourceOptions.parse(self._options, streaming=True), self._columns, numbers=None
        )

    @property
    def epochs(self) -> list[dict[Any, list[Any]]]:
        """Of each batch: the items of each epoch."""
        return [epochs_of(rows) for rows in self.batches]


def read_epochs(server: Any, topic: Any, columns: Sequence[str] = COLUMNS, **options: Any) -> Rows:
    """The rows of a batch read."""
    from jsclient.spark.epochs.source import EpochBatchReader
    from jsclient.spark.options.epochs import EpochSourceOptions

    arguments = options_of(
        server, options.pop("stream", topic.name.replace(".", "_")), epochs=topic.name, **options
    )
    reader = EpochBatchReader(
        EpochSourceOptions.parse(arguments, streaming=False), tuple(columns), numbers=None
    )
    return [row for part in read_all(reader, reader.partitions()) for row in part]


def epochs_of(rows: Rows) -> dict[Any, list[Any]]:
    """The items of each epoch, in the order of the stream."""
    results: dict[Any, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["sequence"]):
        results.setdefault(row["epoch"], []).extend(json.loads(row["data"]))
    return results


async def seen(topic: Any, decode: Callable[[bytes], list[Any]] = json.loads) -> dict[int, list[Any]]:
    """Return the items of each completed epoch, as seen by a subscriber from the beginning.

    Raises:
        ProtocolError: The topic's publishers broke its rules.
    """
    count = await topic.partitions()
    core: EpochSubscriber[int] = EpochSubscriber(Int(), frozenset(range(count)))
    reading: EpochReading[int] = EpochReading(Int(), topic.name, range(count))
    results: dict[int, list[Any]] = {}
    started: set[int] = set()
    for record in await records(topic):
        partition = reading.partition_of(record)
        assert partition is not None
        # the first record of a partition is its snapshot
        if partition not in started:
            started.add(partition)
            entry = reading.entry_of(record)
            assert entry is not None
            events = core.receive_message(partition, entry.record.snapshot, record.seq)
        elif (message := reading.message(record, core.lower_of)) is not None:
            events = core.receive_message(*message, record.seq)
        else:
            continue
        for event in events:
            if isinstance(event, Data):
                results.setdefault(event.time, []).extend(decode(event.items))
    return {time: items for time, items in results.items() if core.is_completed(time)}


async def records(topic: Any) -> list[Any]:
    """All that lies in a topic."""
    await topic.partitions()
    results: list[Any] = []
    while page := (await topic._home.log().history(results[-1].seq if results else 0, 1000, 1 << 27)).records:
        results += page
    return results


async def frontier_records(topic: Any, partition: int) -> list[FrontierEntry[int]]:
    """Those of a partition."""
    subject = f"{topic.name}.{partition}.frontier"
    return [FrontierEntry.from_record(one, Int()) for one in await records(topic) if one.subject == subject]

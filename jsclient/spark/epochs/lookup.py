"""Blocking lookups on the driver: the schema, the stream and the frontier records of a topic of epochs."""

from __future__ import annotations

import time
from typing import Any

from ...client import JetStream
from ...errors import ConfigError, ProtocolError, TopicNotFoundError
from ...protocol.epochs.frontier import Int, Order
from ...protocol.epochs.records import EpochPosition, FrontierEntry, Schema
from ...streams.stream import Stream
from ...topics.epochs.history import EpochHistory
from ...topics.epochs.home import StreamHome
from ...topics.stream_log import StreamLog
from ..log.lookup import Lookup
from ..log.offsets import StreamFacts
from ..options.epochs import EpochSourceOptions
from ..options.source import EPOCH_COLUMNS
from .planning import TopicHistory, order_of

__all__ = ["TopicLook", "epoch_columns", "frontier_page", "topic_schema"]

_PAGE, _PAGE_BYTES = 5000, 4 * 1024 * 1024
_AGAIN = 0.1  # seconds before another look


def epoch_columns(options: EpochSourceOptions) -> dict[str, str]:
    """The default columns of a topic. Looks up the order of its times; raises as `TopicLook`."""
    topic = TopicLook(options)
    topic.open()
    left_out = {"timestamp_ns"} if options.read.include_headers else {"timestamp_ns", "headers"}
    kinds = {**EPOCH_COLUMNS, "epoch": "bigint" if isinstance(topic.order, Int) else "string"}
    return {name: kind for name, kind in kinds.items() if name not in left_out}


async def topic_schema(js: JetStream, topic: str, stream: str) -> Schema:
    """The schema that the topic was created with.

    Raises:
        ConfigError: The topic does not exist, or its stream does not keep epochs whole.
        JetStreamError: As any request.
    """
    try:
        return await StreamHome(js, topic, stream).schema()
    except TopicNotFoundError as error:
        raise ConfigError(
            f"option 'epochs': there is no topic {topic!r} in stream {stream!r}: create it first (a sink does, and "
            "js.epochs(name).create()), or give its 'stream'"
        ) from error


class TopicLook:
    """The driver's view of one topic.

    Every method raises `ConfigError` if the topic does not exist, may not be read, or has an unknown order, and
    `JetStreamError` as any request if the server stays unavailable.

    Attributes:
        order, order_name, partitions: From the schema of the topic.
        facts: The stream, as last looked up.
        history: The frontier records, as far as they are needed.
    """

    order: Order[Any]
    order_name: str
    partitions: int
    facts: StreamFacts
    history: TopicHistory[Any]
    read_mode: str

    def __init__(self, options: EpochSourceOptions) -> None:
        self._options = options
        self.lookup: Lookup = Lookup(options.read)
        self._since = -1  # frontier records are read up to this sequence; -1: none
        self._floor = 0  # and from this sequence on
        self._next = 0.0  # monotonic seconds: when the next look is due

    def open(self) -> None:
        """Look up the stream and the schema."""
        options, lookup = self._options, self.lookup
        self.facts = lookup.facts()
        schema = lookup.run(lambda _: topic_schema(lookup.js, options.topic, options.read.stream))
        self.order, self.order_name = order_of(schema.order, options.topic), schema.order
        self.partitions = schema.partitions
        self.read_mode = lookup.read_mode(self.facts)
        self.history = TopicHistory(self.order, schema.partitions)

    def look(self, *, now: bool = False) -> None:
        """Read new frontier records. Sleeps until the poll interval has passed, unless ``now``."""
        if not now and (wait := self._next - time.monotonic()) > 0:
            time.sleep(wait)
        self.facts = self.lookup.facts()
        if self._since < 0:
            self._floor = self._since = 0
        if self.facts.last_seq > self._since:
            self._read()
        self._next = time.monotonic() + self._options.read.poll_interval

    def begin_at(self, place: EpochPosition[Any]) -> None:
        """Make the history start at a place: read missing records, and drop earlier ones."""
        first = min(seq for _, seq in place.records)
        if self._since < 0 or first < self._floor:
            self.history = TopicHistory(self.order, self.partitions)
            self._floor, self._since = first, max(first - 1, 0)
            self.look(now=True)
        self.history.forget(place)
        self._floor = first

    def look_at_last(self) -> None:
        """Make the history start at the last record of each partition."""
        topic, order = self._options.topic, self.order
        self.facts = self.lookup.facts()

        async def last(stream: Stream) -> list[FrontierEntry[Any] | None]:
            log = StreamLog(self.lookup.js._context, stream, f"{topic}.*.frontier")  # noqa: SLF001  internal
            numbers = range(self.partitions)
            stored = EpochHistory(log, order, topic)
            return [(await stored.last_frontier(number)).entry for number in numbers]

        entries = self.lookup.run(last)
        for partition, entry in enumerate(entries):
            if entry is not None:
                self.history.add(partition, entry)
        self._floor = min(0 if entry is None else entry.seq for entry in entries)
        self._since = max(self._floor - 1, 0)

    def restart(self) -> None:
        """Read all records again, from the beginning of the stream."""
        self.history, self._since, self._floor = TopicHistory(self.order, self.partitions), -1, 0
        self.look(now=True)

    def again(self) -> None:
        """Look again after a short pause: a replica may lag."""
        time.sleep(_AGAIN)
        self.look(now=True)

    def _read(self) -> None:
        more = True
        while more:
            since = self._since
            entries, more, up_to = self.lookup.run(
                lambda stream, since=since: frontier_page(  # type: ignore[misc]
                    self.lookup.js, stream, self._options.topic, self.order, since
                )
            )
            for partition, entry in entries:
                if partition < self.partitions:
                    self.history.add(partition, entry)
                self._since = entry.seq
            self._since = max(self._since, up_to)


async def frontier_page(
    js: JetStream, stream: Stream, topic: str, order: Order[Any], since: int
) -> tuple[list[tuple[int, FrontierEntry[Any]]], bool, int]:
    """Read a page of the frontier records after a sequence; invalid ones are skipped and reported.

    Returns:
        The records with their partitions, whether more follow, and the sequence up to which the page covers the stream
        (0: unknown).

    Raises:
        JetStreamError: As any request.
    """
    log = StreamLog(js._context, stream, f"{topic}.*.frontier")  # noqa: SLF001  internal
    page = await log.history(since, _PAGE, _PAGE_BYTES)
    found = []
    for record in page.records:
        token = record.subject.split(".")[-2]
        try:
            if not (token.isascii() and token.isdecimal()):
                raise ProtocolError(f"message {record.seq} on {record.subject!r} belongs to no partition")
            found.append((int(token), FrontierEntry.read(record, order)))
        except ProtocolError as error:
            EpochHistory(log, order, topic).report_skipped(record, error)
    read = page.records[-1].seq if page.records else 0
    return found, page.more, max(page.up_to, read)

"""The streaming source of log mode: offsets are stream sequences, so every batch can be read again."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ...consumers.consumer import Consumer
from ...errors import ApiError, ConfigError, ConfigMismatchError, ConsumerNotFoundError, JetStreamError
from ...protocol.models.consumer import AckPolicy, ConsumerConfig, DeliverPolicy
from ...protocol.wire.checks import is_at_least
from ...streams.stream import Stream
from ..options.source import SourceOptions
from .delay import TriggerDelay
from .lookup import Lookup
from .offsets import LogOffset, StreamFacts, another_stream, cut_short, lost_head
from .ranges import SequenceRange, admit
from .tasks import LogPartition, cut, plan, read_limit, read_spec

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogStreamReader"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_CONFIRMED = 5.0  # seconds to wait before believing that a stream lost its end: a new leader may lag
_STEPS_BY_CONSUMER = 6  # maximum number of counts, each of which needs a consumer
_OWNER = (
    "jsclient_spark_query"  # in the metadata of a consumer that shows the progress: see `LogOffset.owner`
)
_RESET_SERVER = (2, 14)  # the first that can reset a consumer


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of log mode.

    Spark calls all methods except `read` sequentially in one process on the driver, and never calls `stop`.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._spec = read_spec(options, columns)
        self._asking: tuple[Lookup, Head, Mirror | None] | None = None  # None on executors
        self._target: int | None = None  # last sequence of an AvailableNow query
        self._read_mode: str | None = None  # set once the stream was checked
        self._losses = Losses()
        self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        lookup, head, mirror = self._asked()
        facts = head.facts or head.look()
        self._check(facts)
        owner = ""
        if mirror is not None:
            mirror.claim("")
            owner = secrets.token_hex(8)
        start = LogOffset(_start(self._options, lookup, facts), facts.created, init=True, owner=owner)
        if mirror is not None:
            mirror.begin(start.seq)
        return start.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        _, head, _ = self._asked()
        self._check(head.look())
        self._target = head.last

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The end of the next batch, or ``start`` without new messages. Everything up to ``start`` is processed."""
        lookup, head, mirror = self._asked()
        given = LogOffset.of_json(start)
        facts = head.facts or head.look()
        self._check(facts)
        owner = given.owner
        if mirror is not None:
            # The name of a new query is in no checkpoint before its first batch is.
            mirror.claim("" if given.init else owner)
            owner = owner or secrets.token_hex(8)
            if not given.init and given.created == facts.created:
                mirror.done(given.seq)
        if self._target is None and (head.last <= given.seq or head.is_due or self._delay.holding):
            facts = head.look()
            self._losses.done(given.seq, facts)
        begin = self._valid(given, facts)
        if begin is not given and begin.created == given.created:
            return msgspec.structs.replace(begin, owner=owner).to_json()
        last = head.last if self._target is None else self._target
        if last <= begin.seq:
            head.nothing_after(begin.seq)
        free = head.free_after(begin.seq)
        if last <= begin.seq:
            if begin.seq + 1 < facts.first_seq <= free + 1 and not begin.init and self._target is None:
                # Messages after the offset expire and none of them matches: advance with an empty batch.
                return LogOffset(free, facts.created, free=free, owner=owner).to_json()
            return start
        if free > begin.seq:
            # A new leader may have lagged when this was observed, so check again.
            free = max(begin.seq, min(free, lookup.next_matching(begin.seq + 1) - 1))
        if self._target is None and self._delay.holds(free, last, lambda: self._rows(free, last, facts)):
            return start
        end = self._admitted(lookup, SequenceRange(free + 1, last), limit, facts)
        whole = SequenceRange(free + 1, end)
        parts = cut(lookup, self._options, whole.clipped(facts.first_seq, end) or whole, facts)
        cuts = tuple(part.first for part in parts)
        free = free if free > begin.seq else 0
        return LogOffset(end, facts.created, free=free, cuts=cuts, owner=owner).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """The last known end of the stream and the losses so far, without a request."""
        head = self._asking and self._asking[1]
        if not head or head.facts is None:
            return None
        return LogOffset(head.last, head.facts.created).to_json() | self._losses.to_json()

    def _rows(self, after: int, last: int, facts: StreamFacts) -> int:
        """The number of matching messages after one sequence and up to another."""
        lookup = self._asked()[0]
        if not lookup.subjects and not facts.gaps:
            return last - max(after, facts.first_seq - 1)
        return lookup.rest(after + 1, facts) - lookup.rest(last + 1, facts)

    def _admitted(self, lookup: Lookup, whole: SequenceRange, limit: ReadLimit, facts: StreamFacts) -> int:
        """The last sequence of a batch within the limits."""
        most = self._most_rows(limit, facts)
        if most is None or whole.width <= most:
            return whole.last
        if not lookup.subjects and not facts.gaps:
            return whole.first + most - 1
        rest, after = lookup.rest(whole.first, facts), lookup.rest(whole.last + 1, facts)
        steps = {} if lookup.counts_cheaply(facts) else {"steps": _STEPS_BY_CONSUMER}
        return lookup.drive(admit(whole, rest, after, most, **steps), facts)

    def _most_rows(self, limit: ReadLimit, facts: StreamFacts) -> int | None:
        if isinstance(limit, ReadAllAvailable):
            return None
        options = self._options
        rows, size = options.max_messages_per_trigger, options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            rows = min(rows or limit.max_rows, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            size = min(size or limit.max_bytes, limit.max_bytes)
        by_size = None if size is None else max(1, size // facts.mean_bytes)
        given = [most for most in (rows, by_size) if most is not None]
        return min(given) if given else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogPartition]:
        begin, stop = LogOffset.of_json(start), LogOffset.of_json(end)
        if (begin.seq, begin.created) == (stop.seq, stop.created):
            return []
        lookup, _, _ = self._asked()
        facts = lookup.facts()
        self._check(facts)
        self._losses.done(begin.seq, facts)
        parts = stop.parts
        if not lookup.accept(another_stream(stop, facts)):
            return self._planned(parts, facts, None)
        lookup.accept(another_stream(begin, facts))
        before = begin.seq if begin.created == stop.created else (*stop.cuts, facts.first_seq)[0] - 1
        first = max(before, stop.free) + 1
        if first > stop.seq:
            return []
        if facts.last_seq < stop.seq:
            facts = self._confirmed(stop, lookup)
            lookup.accept(cut_short(stop, facts))
        if not lookup.accept(lost_head(first, stop.seq, facts)):
            self._losses.before(first, min(stop.seq, facts.first_seq - 1))
        left = SequenceRange(first, stop.seq).clipped(facts.first_seq, facts.last_seq)
        if not parts and left is not None:  # an offset of a release that did not record the cuts
            parts = cut(lookup, self._options, left, facts)
        return self._planned(parts, facts, left)

    def _planned(
        self, parts: Sequence[SequenceRange], facts: StreamFacts, left: SequenceRange | None
    ) -> list[LogPartition]:
        """The tasks of a batch of which this range is left.

        Those with nothing left remain as empty tasks, so the others keep their numbers.
        """
        self._losses.planned = left
        clipped = [left and part.clipped(left.first, left.last) for part in parts]
        return plan(clipped, self._asked()[0], facts, self._read_mode or "auto")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .reading import read_range

        assert isinstance(partition, LogPartition)
        return read_range(partition.spec(self._spec), partition.range)

    def _asked(self) -> tuple[Lookup, Head, Mirror | None]:
        if self._asking is None:
            lookup, name = Lookup(self._options), self._options.consumer
            mirror = None if name is None else Mirror(lookup, name, self._options.subjects)
            self._asking = lookup, Head(lookup, self._options.poll_interval), mirror
        return self._asking

    def _check(self, facts: StreamFacts) -> None:
        if self._read_mode is None:
            lookup, _, mirror = self._asked()
            if mirror is not None:
                mirror.ensure(facts)
            self._read_mode = lookup.read_mode(facts)

    def _valid(self, begin: LogOffset, facts: StreamFacts) -> LogOffset:
        """The offset to continue from: ``begin``, unless the stream was recreated or ends before it."""
        lookup, _, _ = self._asked()
        if not lookup.accept(another_stream(begin, facts)):
            return LogOffset(facts.first_seq - 1, facts.created)
        if cut_short(begin, facts) is None:
            return begin
        confirmed = self._confirmed(begin, lookup)
        if lookup.accept(another_stream(begin, confirmed)) and lookup.accept(cut_short(begin, confirmed)):
            return begin
        return LogOffset(confirmed.last_seq, confirmed.created)

    def _confirmed(self, offset: LogOffset, lookup: Lookup) -> StreamFacts:
        """Refresh the facts until the stream reaches the offset or a timeout expires, since a new leader may lag."""
        until = time.monotonic() + _CONFIRMED
        while cut_short(offset, facts := lookup.facts()) is not None:
            if time.monotonic() >= until:
                break
            time.sleep(0.25)
        return facts


def _start(options: SourceOptions, lookup: Lookup, facts: StreamFacts) -> int:
    """The sequence before the first message that a new query reads."""
    start = options.start
    if start.kind == "sequence":
        return start.sequence - 1
    if start.kind == "time":
        if facts.seen_at is not None and datetime.fromisoformat(start.time) > facts.seen_at:
            raise ConfigError(
                f"option 'startingTimestamp' is {start.time}, which is in the future (on the server it is "
                f"{facts.seen_at.isoformat()}): give an earlier time, or 'startingOffsets' = 'latest'"
            )
        return max(lookup.sequence_at(start.time, facts), facts.first_seq) - 1
    return facts.last_seq if start.kind == "latest" else facts.first_seq - 1


class Losses:
    """Counts messages that a query without ``failOnDataLoss`` may not have read. A sequence counts as a message.

    Attributes:
        planned: What was left of the current batch when it was planned.
    """

    def __init__(self) -> None:
        self.planned: SequenceRange | None = None
        self._counted = 0  # sequence up to which losses were counted
        self._lost = 0  # removed before their batch was planned
        self._expired = 0  # removed while their batch ran: tasks may have read some of them before

    def before(self, first: int, last: int) -> None:
        """Count what was removed before a batch was planned, once."""
        self._lost += max(0, last - max(first, self._counted + 1) + 1)
        self._counted = max(self._counted, last)

    def done(self, seq: int, facts: StreamFacts) -> None:
        """Count what was removed from the last batch, which ends at ``seq``, while it ran."""
        planned, self.planned = (
            self.planned,
            None if self.planned and self.planned.last <= seq else self.planned,
        )
        gone = planned and planned.last <= seq and planned.clipped(1, facts.first_seq - 1)
        if gone:
            self._expired += gone.width
            log.warning(
                "%d messages of stream %r were removed while the batch that reads them ran; tasks have logged how many "
                "they missed. Keep messages longer",
                gone.width,
                facts.name,
            )

    def to_json(self) -> dict[str, int]:
        """The counts above 0."""
        counts = {"lost": self._lost, "expired": self._expired}
        return {name: count for name, count in counts.items() if count}


class Head:
    """The cached end of a stream, refreshed at a limited rate.

    The offset of a filtered query stays at the last matching message while other messages are stored and expire. To
    keep their expiry from being reported as data loss, this remembers up to which sequence no message matched.

    Args:
        interval: Minimum mean time between requests, in seconds.
    """

    def __init__(self, lookup: Lookup, interval: float) -> None:
        self._lookup = lookup
        self._interval = interval
        self._next = 0.0  # monotonic seconds: time of the next request at the earliest
        self.facts: StreamFacts | None = None
        self.last: int = 0  # sequence of the last matching message
        self._seen_free = (0, 0)  # no message matched after the first, up to the second

    def look(self) -> StreamFacts:
        """Refresh and return the facts. Sleeps first if the last request was less than the interval ago."""
        if (wait := self._next - time.monotonic()) > 0:
            time.sleep(wait)
        before, facts, asked = self.facts, self._lookup.facts(), 1
        if not self._lookup.subjects:
            self.last = facts.last_seq
        elif before is None or (before.last_seq, before.created) != (facts.last_seq, facts.created):
            self.last = self._lookup.last_matching()
            asked += len(self._lookup.subjects)
        if before is not None and before.created != facts.created:
            self._seen_free = (0, 0)  # belongs to the previous stream
        self.facts = facts
        self._next = time.monotonic() + asked * self._interval
        return facts

    @property
    def is_due(self) -> bool:
        """Whether `look` would not sleep."""
        return time.monotonic() >= self._next

    def nothing_after(self, seq: int) -> None:
        """Remember that no message after ``seq`` matched at the last refresh."""
        assert self.facts is not None
        floor = self.free_after(seq)
        if self._lookup.subjects and self.facts.first_seq <= floor + 1:
            self._seen_free = (seq, max(floor, self.facts.last_seq))

    def free_after(self, seq: int) -> int:
        """The sequence up to which no message after ``seq`` is known to match; at least ``seq``."""
        start, end = self._seen_free
        return max(seq, end) if start == seq else seq


class Mirror:
    """A durable consumer that shows the progress of one query to NATS tools. It is never pulled from.

    After each batch it is reset to the first unprocessed message, so its pending messages are the query's lag. On an
    interest stream it also retains messages that the query has not processed. Needs server 2.14.
    """

    def __init__(self, lookup: Lookup, name: str, subjects: tuple[str, ...]) -> None:
        self._lookup = lookup
        self._subjects = subjects
        self._config = ConsumerConfig(
            durable_name=name,
            description="Progress of a Spark query; it is not pulled from",
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.EXPLICIT,
            filter_subjects=list(subjects) or None,
        )
        self._name = name
        self._consumer: Consumer | None = None
        self._made = False
        self._owner: str | None = None  # of the last claim
        self._shown: int | None = None  # sequence of the last reset

    def ensure(self, facts: StreamFacts) -> None:
        """Create the consumer, or check the existing one. Raises `ConfigError` if it cannot show the progress."""
        if not is_at_least(self._lookup.js.server_version, _RESET_SERVER):
            raise ConfigError(
                f"option 'consumer' in mode 'log' shows the progress, which needs nats-server 2.14; "
                f"{self._lookup.js.server_version} is connected: leave the option out"
            )
        if facts.work_queue:
            raise ConfigError(
                f"option 'consumer' in mode 'log' shows the progress, but stream {facts.name!r} is a work queue, whose "
                "messages would stay for ever: leave it out, or use 'mode' = 'queue'"
            )
        self._consumer, self._made = self._lookup.run(self._ensured)

    async def _ensured(self, stream: Stream) -> tuple[Consumer, bool]:
        try:
            found = await stream.consumer(self._name)
        except ConsumerNotFoundError:
            try:
                return await stream.create_consumer(self._config), True
            except ApiError as error:
                raise ConfigError(f"option 'consumer': {self._name!r} cannot be made: {error}") from error
        wanted = self._config.replace(description=None, metadata=None)
        if found.cached_info.is_push or sorted(found.config.filters) != sorted(self._subjects):
            raise self._wrong("it must be a pull consumer with the filters of option 'subjects'")
        try:
            return await stream.ensure_consumer(wanted.replace(filter_subjects=None)), False
        except ConfigMismatchError as error:
            raise self._wrong(str(error)) from error

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"option 'consumer' is {self._name!r}, a consumer that cannot show the progress: {why}; give another name, "
            "which is then made"
        )

    def claim(self, owner: str) -> None:
        """Claim the consumer for a query. Raises `ConfigError` if another query has.

        ``owner``: its name; "" only checks, for a query without a name so far.
        """
        if self._owner != owner:
            self._lookup.run(lambda stream: self._claimed(stream, owner))
            self._owner = owner

    async def _claimed(self, stream: Stream, owner: str) -> None:
        if owner:
            self._config = self._config.replace(metadata={_OWNER: owner})
        try:
            config = (await stream.consumer(self._name)).config
        except ConsumerNotFoundError:
            return  # it was deleted meanwhile, and will be created again
        found = (config.metadata or {}).get(_OWNER)
        if found not in (None, owner):
            raise ConfigError(
                f"option 'consumer' is {self._name!r}, which shows the progress of another query, or of another "
                "checkpoint of this one; with two, an interest stream removes messages that the slower one needs: "
                f"give each query its own. If the other one is gone, remove {_OWNER!r} from the metadata of the "
                "consumer, or delete the consumer"
            )
        if owner and found is None:
            metadata = {**(config.metadata or {}), _OWNER: owner}
            self._consumer = await stream.update_consumer(config.replace(metadata=metadata))

    def begin(self, seq: int) -> None:
        """Start a new query after ``seq``.

        An existing consumer is not reset yet because it may retain messages.
        """
        if self._made:
            self.done(seq)

    def done(self, seq: int) -> None:
        """Show that everything up to ``seq`` is processed. A failure is logged; the next call repairs it."""
        if seq == self._shown:
            return
        try:
            self._lookup.run(lambda stream: self._reset(stream, seq + 1))
        except ConfigError:
            raise
        except JetStreamError as error:
            log.warning("consumer %r does not show the progress at sequence %s: %s", self._name, seq, error)
        else:
            self._shown = seq

    async def _reset(self, stream: Stream, seq: int) -> None:
        if self._consumer is None:
            self._consumer = (await self._ensured(stream))[0]
        try:
            await self._consumer.reset(seq)
        except ConsumerNotFoundError:
            self._consumer = None  # it was deleted meanwhile
            self._consumer = (await self._ensured(stream))[0]
            await self._consumer.reset(seq)

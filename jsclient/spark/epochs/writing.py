"""Publishing one partition of a batch as data of its epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...client import JetStream
from ...protocol.epochs.records import EPOCH, PRODUCER
from ...protocol.topics.record_codec import KIND
from ..options.sink import SinkOptions
from ..sink.message_ids import ContentIds, IndexIds
from ..sink.partition_writer import PartitionWriter, WritePlan
from ..sink.row_columns import RowReader, RowShape, set_headers
from ..task_context import Task
from .ownership import Attempt, Owned, SinkTopic

__all__ = ["EpochPartitionWriter", "EpochPlan", "open_writer"]

_OWN_HEADERS = frozenset({EPOCH, PRODUCER, KIND})


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What all tasks of a batch do alike.

    Attributes:
        ids: Where message ids come from: "content", "index" or "column".
        attempt: The try of the batch.
    """

    options: SinkOptions
    shape: RowShape
    ids: str
    attempt: Attempt

    @property
    def prefix(self) -> bytes:
        """What the ids of all rows of this try begin with: what a task of another one sends late is no duplicate."""
        attempt = self.attempt
        return f"{attempt.query}.{attempt.epoch:x}.{attempt.run}.".encode()

    @property
    def by_task(self) -> bool:
        """Whether rows are known within their partition only."""
        return self.ids == "index" or (self.ids == "content" and self.options.dedup_scope == "partition")


class EpochPartitionWriter(PartitionWriter):
    """Publishes the rows of a task to one partition of the topic. It lives on the event loop."""

    def __init__(
        self,
        js: JetStream,
        plan: EpochPlan,
        task: Task,
        subject: str,
        producer: str,
    ) -> None:
        shape = replace(plan.shape, subject=subject, has_subject=False)
        super().__init__(
            js, WritePlan(plan.options, shape, plan.ids, plan.attempt.query, plan.attempt.epoch, None), task
        )
        line, replaced = set_headers(plan.ids, plan.options.expected_stream)
        self._line = line + f"{EPOCH}: {plan.attempt.epoch}\r\n{PRODUCER}: {producer}\r\n".encode()
        self._reader = RowReader(shape, replaced | _OWN_HEADERS)
        self._prefix = prefix = plan.prefix
        if plan.ids == "index":
            self._ids = IndexIds(prefix, task.partition)
        elif plan.ids == "content":
            self._ids = ContentIds(prefix, task.partition if plan.by_task else None)
        if self._ids is not None:
            self._prefix = self._ids.prefix

    def leave_out(self, ids: list[str]) -> None:
        """Rows of these ids are stored already, by this try of the batch or another one. Before the first batch."""
        batch = self._prefix.decode().split(".")
        for one in ids:
            parts = one.split(".", 3)
            if parts[:2] != batch[:2] or len(parts) < 4:
                continue  # somebody else's
            known, own = parts[3], batch[3]
            if own:
                task, _, known = known.partition(".")
                if task != own:
                    continue
            self._stored[known.encode()] = 1


async def open_writer(
    js: JetStream, plan: EpochPlan, task: Task, topic: SinkTopic
) -> tuple[EpochPartitionWriter | None, int]:
    """Have a partition, and be ready to write to it; which partition. None: the batch is committed already.

    Raises:
        ProducerFencedError: The topic is not this query's. And those of any request.
    """
    attempt, partition = plan.attempt, task.partition % topic.partitions
    if await topic.is_completed(attempt):
        return None, partition
    # Where rows may change partitions, what another try has stored of them may lie anywhere.
    places = [partition] if plan.by_task else [*range(topic.partitions)]
    owned: dict[int, Owned] = {place: await topic.take(place, attempt) for place in places}
    writer = EpochPartitionWriter(js, plan, task, topic.subject(partition), owned[partition].entry.producer)
    try:
        for place, last in owned.items():
            again = task.attempt > 0
            if again or last.may_have(attempt.epoch):
                writer.leave_out(await topic.stored(place, attempt, last, also_own=again))
    except BaseException:
        await writer.close()
        raise
    return writer, partition

"""Publishes one partition of a batch as data of its epoch."""

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
    """Write settings shared by all tasks of a batch.

    Attributes:
        ids: The source of message ids: "content", "index" or "column".
        attempt: The attempt to write the batch.
    """

    options: SinkOptions
    shape: RowShape
    ids: str
    attempt: Attempt

    @property
    def prefix(self) -> bytes:
        """The prefix of all message ids of this attempt.

        It differs between attempts, so a late message of another attempt never makes a row of this one a duplicate.
        """
        attempt = self.attempt
        return f"{attempt.query}.{attempt.epoch:x}.{attempt.run}.".encode()

    @property
    def by_task(self) -> bool:
        """Whether message ids identify rows only within their Spark partition."""
        return self.ids == "index" or (self.ids == "content" and self.options.dedup_scope == "partition")


class EpochPartitionWriter(PartitionWriter):
    """Publishes the rows of a task to one partition of the topic. Runs on the event loop."""

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
        """Skip rows that an attempt of the batch has stored under these ids. Call it before the first record batch."""
        batch = self._prefix.decode().split(".")
        for one in ids:
            parts = one.split(".", 3)
            if parts[:2] != batch[:2] or len(parts) < 4:
                continue  # not of this batch
            known, own = parts[3], batch[3]
            if own:
                task, _, known = known.partition(".")
                if task != own:
                    continue
            self._stored[known.encode()] = 1


async def open_writer(
    js: JetStream, plan: EpochPlan, task: Task, topic: SinkTopic
) -> tuple[EpochPartitionWriter | None, int]:
    """Take a partition of the topic and open its writer.

    Returns:
        The writer, None if the batch is committed already, and the partition.

    Raises:
        ProducerFencedError: Another query owns the topic.
        JetStreamError: As any request.
    """
    attempt, partition = plan.attempt, task.partition % topic.partitions
    if await topic.is_completed(attempt):
        return None, partition
    # If rows can change partitions, another attempt may have stored them in any partition.
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

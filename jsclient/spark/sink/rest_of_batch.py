"""The end of a repeated batch on the driver, which publishes the rows that the tasks have left open."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from ..._runtime.retry import Retry, RetryPolicy
from ...client import JetStream
from ...errors import ConfigError, ConsumerLimitError
from ...protocol.wire.header_names import MSG_ID
from ...streams.stream import Stream
from ..task_context import Task
from .message_ids import epoch_prefix
from .moved_rows import Checked, Remainder, StoredRow, remainder_of
from .partition_writer import PartitionWriter, WritePlan
from .stored_ids import each_stored

__all__ = ["publish_remainder"]

_DRIVER = Task(-1, 0)
# Retry if the limit of consumers is reached, because the consumers of the tasks are still being deleted.
_READING = RetryPolicy(0.25, 1.0, patience=30.0, also=(ConsumerLimitError,))
_ROWS = 1000  # rows published at a time


async def publish_remainder(js: JetStream, plan: WritePlan, tasks: Mapping[int, Checked | None]) -> Remainder:
    """Publish the rows that tasks left open and that no run has stored.

    An open row is equal to a stored row, so a copy of the stored message is published under the id of the open row. If
    a task could not compare its rows, or compared them with another stream, open rows that have moved from its
    partition are published as well. They are stored twice rather than lost.

    Args:
        js: The connection.
        plan: The plan of the tasks.
        tasks: The reports of the tasks that had rows, by partition.

    Raises:
        ConfigError: A stored message that has to be copied was removed in the meantime.
        RowError: A row could not be published.
    """
    # Group the tasks by the part of a stream with which they have compared their rows.
    parts: dict[tuple[str, range], dict[int, Checked]] = {}
    for number, report in tasks.items():
        if report is not None:
            parts.setdefault((report.stream, range(report.start, report.end)), {})[number] = report
    whole = Remainder()
    for (name, part), checked in parts.items():
        target = await js.stream(name)
        # These tasks compared their rows with a different part, or sent no report. Earlier runs may have stored rows of
        # these tasks in this part, and the tasks may still have them. So don't assume that any of these stored rows has
        # moved to a different task.
        others = tasks.keys() - checked.keys()
        remainder = await Retry(_READING).run(partial(_remaining_in, target, part, plan, checked, others))
        if remainder.ids:
            await _publish_copies(js, plan, target, part, remainder)
        for content, ids in remainder.ids.items():
            whole.ids.setdefault(content, []).extend(ids)
        whole.missing += remainder.missing
    return whole


async def _remaining_in(
    target: Stream,
    part: range,
    plan: WritePlan,
    checked: Mapping[int, Checked],
    not_compared: AbstractSet[int],
) -> Remainder:
    """Return the rows left to publish for the ``checked`` tasks, which compared their rows with ``part``."""
    prefix, subject = epoch_prefix(plan.query, plan.epoch), plan.subject_in(target)
    compared = {b"%x" % partition for partition in checked.keys() | not_compared}
    # Collect only stored rows whose partition no longer has rows. The other stored rows, of which there may be many,
    # are left to the tasks of their partitions.
    stored_rows = each_stored(target, part, prefix, subject)
    stored = [tail async for tail, _, _ in stored_rows if tail.partition(b".")[0] not in compared]
    return remainder_of(checked, stored, not_compared=not_compared)


async def _publish_copies(
    js: JetStream, plan: WritePlan, target: Stream, part: range, remainder: Remainder
) -> None:
    prefix, remaining = epoch_prefix(plan.query, plan.epoch), dict(remainder.ids)
    writer = PartitionWriter(js, replace(plan, runs=None, ledger=None), _DRIVER)
    rows: list[tuple[bytes, bytes, bytes]] = []
    try:
        async for tail, _, (subject, _, block, payload) in each_stored(
            target, part, prefix, plan.subject_in(target), payloads=True
        ):
            row = StoredRow.from_suffix(tail)
            # Rows with the same content are interchangeable, so copy any stored one.
            for own in () if row is None else remaining.pop(row.content, ()):
                rows.append((subject, _with_id(block, prefix + tail, prefix + own), payload))
                if len(rows) >= _ROWS:
                    await writer.publish(*zip(*rows, strict=True))
                    rows.clear()
        if rows:
            await writer.publish(*zip(*rows, strict=True))
        await writer.finish()
    finally:
        await writer.close()
    if remaining:
        raise ConfigError(
            f"batch {plan.epoch} was repeated, and stored messages with {len(remaining)} contents that it needs were "
            f"removed from stream {target.name!r} meanwhile: repeat it again, which publishes those rows"
        )


def _with_id(block: bytes, old: bytes, new: bytes) -> bytes:
    name = f"\r\n{MSG_ID}: ".encode()
    return block.replace(b"%b%b\r\n" % (name, old), b"%b%b\r\n" % (name, new), 1)

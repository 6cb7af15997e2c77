"""Check at the commit of a batch that no row is lost because two rows share a message.

If two rows share a message, only one of them is stored. With ``dedup=source``, two rows share a message if they were
made from the same message of the source and have the same subject, see `own_sequences`. With ``dedup=column``, two rows
with the same ``msg_id`` share a message, wherever they are. If these rows are equal, the user wants a single message.
Otherwise a row would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError, JetStreamError
from ...protocol.wire.header_names import MSG_ID
from ...tables.session import session
from ..options.sink import SinkOptions
from .column_ids import ONE_ROW_AN_ID
from .own_sequences import Shared, shared_sequences
from .row_columns import ONE_ROW_A_MESSAGE
from .row_keys import RowKeys, id_hash
from .stored_ids import messages_at

if TYPE_CHECKING:
    from .spark_writer import Written

__all__ = ["different_rows", "ids_of_different_rows", "refuse_different", "refuse_shared"]

_LOOKED_AT = 10_000  # maximum number of shared messages that are read

Row = tuple[int, int]  # the partition, and the number of the row in it


def refuse_shared(written: Sequence[Written], options: SinkOptions) -> None:
    """Raise `ConfigError` if two rows share a message, so that one of them is lost."""
    if not any(one.outcome.duplicates or one.outcome.skipped for one in written):
        return  # each row created a new message
    shared = shared_sequences({one.partition: one.outcome.sequences or {} for one in written})
    keys = {one.partition: one.outcome.keys for one in written if one.outcome.keys is not None}
    if not keys:
        if (first := next(shared, None)) is not None:
            raise ConfigError(_of_one_message(first, options))
        return
    runs, candidates = list(shared), ids_of_different_rows(keys)
    if not runs or not candidates:
        return
    search = _search(runs, candidates, options)
    if search.lost is not None:
        msg_id, message = search.lost
        rows = _two_of(keys, msg_id, of_one_subject=True)
        raise ConfigError(f"{_named(keys, rows)}, {message}. {ONE_ROW_AN_ID}")
    if search.complete:
        return  # the different rows with the same id have gone to different streams
    # Some shared messages couldn't be read. Fall back to a weaker check, by the number of rows that didn't create a new
    # message.
    pair = different_rows(keys, sum(run.count for run in runs))
    if pair is not None:
        raise ConfigError(f"{_named(keys, pair)}. {ONE_ROW_AN_ID}")


def refuse_different(written: Sequence[Written]) -> None:
    """Raise `ConfigError` if two different rows of an epoch, whose partitions share a stream, have the same id."""
    if not any(one.outcome.duplicates or one.outcome.skipped for one in written):
        return
    keys = {one.partition: one.outcome.keys for one in written if one.outcome.keys is not None}
    rows = different_rows(keys, None) if keys else None
    if rows is not None:
        raise ConfigError(f"{_named(keys, rows)}. {ONE_ROW_AN_ID}")


def different_rows(tasks: Mapping[int, RowKeys], dropped: int | None) -> tuple[Row, Row] | None:
    """Find two different rows with the same id.

    Args:
        tasks: The keys of the rows of each partition.
        dropped: Number of rows that created no message because another row of the batch has created it. None if the
            number is unknown and all rows go to one stream.

    Returns:
        The first two such rows, or None if there are none. Also None if equal rows account for all rows that created no
        message. Different rows with the same id are then in different streams, which do not share their ids.
    """
    if dropped == 0:
        return None
    contents = _contents(tasks)
    rows = sum(len(keys.ids) for keys in tasks.values())
    if rows - contents.num_rows == dropped:
        return None
    ids = _repeated(contents, "id")
    return _two_of(tasks, ids[0], of_one_subject=False) if ids else None


def ids_of_different_rows(tasks: Mapping[int, RowKeys]) -> list[int]:
    """Return the hashes of ids that different rows with the same subject have.

    Rows with different subjects are detected by the tasks.
    """
    return _repeated(_contents(tasks), "id", "subject")


def _contents(tasks: Mapping[int, RowKeys]) -> pa.Table:
    """Return a table of the rows without repetitions."""
    columns = [keys.columns() for keys in tasks.values()]
    table = pa.table(
        [pa.chunked_array(parts) for parts in zip(*columns, strict=True)], ["id", "subject", "content"]
    )
    return table.group_by(["id", "subject", "content"]).aggregate([])


def _repeated(contents: pa.Table, *columns: str) -> list[int]:
    """Return the hashes of ids for which several different rows are equal in these columns."""
    counts = contents.group_by(list(columns)).aggregate([("content", "count")])
    ids: list[int] = counts.filter(pc.greater(counts["content_count"], 1))["id"].to_pylist()
    return ids


def _two_of(tasks: Mapping[int, RowKeys], one_id: int, *, of_one_subject: bool) -> tuple[Row, Row]:
    """Return two different rows with an id, the earlier row first.

    With ``of_one_subject``, the rows have the same subject.
    """
    firsts: dict[int, tuple[Row, tuple[int, int]]] = {}  # by subject, or under 0 for all subjects
    for partition, keys in sorted(tasks.items()):
        for row in pc.indices_nonzero(
            pc.equal(keys.columns()[0], pa.scalar(one_id, pa.uint64()))
        ).to_pylist():
            what = keys.subjects[row], keys.contents[row]
            first = firsts.setdefault(what[0] if of_one_subject else 0, ((partition, row), what))
            if first[1] != what:
                return first[0], (partition, row)
    raise AssertionError("no different rows have this id")


def _of_one_message(shared: Shared, options: SinkOptions) -> str:
    first, second = shared.partitions
    rows = f"two rows of partition {first}" if first == second else f"rows of partitions {first} and {second}"
    try:
        subject, msg_id = _message(shared, options)
        what = f"have subject {subject!r} and are made from message {msg_id.rpartition('.')[0]}"
    except JetStreamError as error:
        what = f"are made from one message (which one is unknown: {error})"
    return (
        f"{rows} {what}. Only one of them is stored, as message {shared.sequence} of stream {shared.stream!r}: "
        f"{ONE_ROW_A_MESSAGE}"
    )


@dataclass(frozen=True, slots=True)
class _SharedMessages:
    """The result of reading the shared messages."""

    # If different rows have the same ID: the hash of the ID, and a description of the message with the ID.
    lost: tuple[int, str] | None = None
    complete: bool = True  # true if all shared messages were read


def _search(shared: Sequence[Shared], candidates: Iterable[int], options: SinkOptions) -> _SharedMessages:
    """Look for a shared message whose id different rows have, so that one of the rows is not stored."""
    hashes, opened = set(candidates), session(options.connect)
    positions, complete = _positions(shared)

    async def search() -> _SharedMessages:
        seen = 0
        for name, sequences in positions.items():
            async for msg_id, _, sequence in messages_at(await opened.js.stream(name), sequences):
                seen += 1
                if (hashed := id_hash(msg_id)) in hashes:
                    text = f"as message {sequence} of stream {name!r}, whose id is {msg_id.decode()!r:.200}"
                    return _SharedMessages((hashed, text))
        return _SharedMessages(complete=complete and seen == sum(map(len, positions.values())))

    try:
        return opened.run(search())
    except JetStreamError:
        return _SharedMessages(complete=False)


def _positions(shared: Sequence[Shared]) -> tuple[dict[str, list[int]], bool]:
    """Return the sequences of the first shared messages by stream, and whether these are all shared messages."""
    positions: dict[str, set[int]] = {}
    remaining = _LOOKED_AT
    for run in shared:
        positions.setdefault(run.stream, set()).update(
            range(run.sequence, run.sequence + min(run.count, remaining))
        )
        remaining -= run.count
        if remaining < 0:
            break
    return {name: sorted(some) for name, some in positions.items()}, remaining >= 0


def _named(keys: Mapping[int, RowKeys], rows: tuple[Row, Row]) -> str:
    (first, row), (second, other) = rows
    one_subject = keys[first].subjects[row] == keys[second].subjects[other]
    what = "headers or payloads" if one_subject else "subjects"
    return (
        f"row {row} of partition {first} and row {other} of partition {second} have the same message id, but different "
        f"{what}: only one of them is stored"
    )


def _message(shared: Shared, options: SinkOptions) -> tuple[str, str]:
    """Return the subject and the id of a message that rows share."""
    opened = session(options.connect)

    async def read() -> tuple[str, str]:
        message = await (await opened.js.stream(shared.stream)).get_message(shared.sequence)
        return message.subject, (message.headers.get(MSG_ID) if message.headers else None) or ""

    return opened.run(read())

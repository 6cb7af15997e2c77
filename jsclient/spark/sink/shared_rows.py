"""Makes sure, when a batch is committed, that no two of its rows share a message, unless they are equal.

Of two rows that share one, one is not stored. With ``dedup=source`` two rows of one message of the source share one if
they have the same subject: see `own_sequences`. With ``dedup=column`` two rows with the same ``msg_id`` do, wherever
they are; if they are equal, the user wants one message, otherwise a row would be lost.
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
    """Raise `ConfigError` if two different rows share a message, so that one of them is not stored."""
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
    # Not all shared messages could be read, so the numbers decide.
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
        dropped: Number of rows that created no message, because another row of the batch created it. None if this is
            unknown and all rows go to one stream.

    Returns:
        The first two rows, or None if there are none or the rows without a message are equal to other rows. Different
        rows with the same id are then in different streams, which do not share their ids.
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
    """Return the hashes of ids that different rows with one subject have. Tasks find rows with different subjects."""
    return _repeated(_contents(tasks), "id", "subject")


def _contents(tasks: Mapping[int, RowKeys]) -> pa.Table:
    """Return the rows whose contents differ."""
    columns = [keys.columns() for keys in tasks.values()]
    table = pa.table(
        [pa.chunked_array(parts) for parts in zip(*columns, strict=True)], ["id", "subject", "content"]
    )
    return table.group_by(["id", "subject", "content"]).aggregate([])


def _repeated(contents: pa.Table, *columns: str) -> list[int]:
    """Return the hashes of ids of which several rows have these columns in common."""
    counts = contents.group_by(list(columns)).aggregate([("content", "count")])
    ids: list[int] = counts.filter(pc.greater(counts["content_count"], 1))["id"].to_pylist()
    return ids


def _two_of(tasks: Mapping[int, RowKeys], one_id: int, *, of_one_subject: bool) -> tuple[Row, Row]:
    """Return the first row with an id that differs from an earlier row, and that earlier row."""
    firsts: dict[int, tuple[Row, tuple[int, int]]] = {}  # by subject, or for all subjects
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
    """What the shared messages show."""

    lost: tuple[int, str] | None = (
        None  # the hash of an id that different rows have, and the message with the id
    )
    complete: bool = True  # whether all shared messages were read


def _search(shared: Sequence[Shared], candidates: Iterable[int], options: SinkOptions) -> _SharedMessages:
    """Look for a shared message whose id different rows have: one of the rows is not stored."""
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
    """Return the sequences of the first shared messages, by stream, and whether these are all of them."""
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

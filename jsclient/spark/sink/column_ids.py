"""Message ids that the user provides, in the column ``msg_id`` or in headers that are kept.

A stream takes a message for a repetition if it has stored the same id before, whatever subject and payload the message
has. That is right if a row is written again, or if two rows are equal. If two different rows have the same id, one of
them would be lost. This is how such rows are detected:

- If both rows are in the same part of a task's rows, they are refused before any row of the part is published.
- If a row was acked as a repetition of a message with *another subject*, another row was stored before. The task
  compares the subjects when all its rows are acked, and fails.
- If the message has *another payload*, it may still be the same row, whose payload depends on the time. Only the driver
  knows whether two rows of the batch share the message, see `shared_rows`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from secrets import token_bytes
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..._runtime.retry import Retry, RetryPolicy, is_transient
from ...client import JetStream
from ...errors import (
    ApiError,
    ConsumerLimitError,
    NoRespondersError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from ...protocol.wire.header_names import MSG_ID
from ...protocol.wire.names import subject_matches
from .own_sequences import RowSequences, SequenceRanges
from .row_columns import RowMessages
from .row_error import BadRow
from .row_keys import RowKeys, digest, hash_column
from .stored_ids import messages_at

if TYPE_CHECKING:
    from ...protocol.models.publish import PubAck

__all__ = ["ONE_ROW_AN_ID", "ColumnIds"]

ONE_ROW_AN_ID = (
    "Give each row an id of its own, as with concat(msg_id, ':', subject), or drop the column msg_id or the header "
    "Nats-Msg-Id, and ids are made from the content of rows"
)

# The limit of consumers may be reached for a moment, because other tasks have consumers too.
_READING = RetryPolicy(0.25, 1.0, patience=5.0, also=(ConsumerLimitError,))
_SAMPLES = 1000  # maximum number of subjects that are remembered
_NO_JETSTREAM = 10039  # err_code of an account without JetStream


class ColumnIds:
    """The message ids of a task's rows.

    Args:
        one_stream: Whether all rows are known to go to one stream. Two streams may have messages with the same id.
        column: The column that contains the ids.
        with_subjects: Whether rows with different subjects count as different rows.

    Attributes:
        keys: The keys of the rows that were added.
        sequences: The sequences with which the rows were acked.
    """

    def __init__(self, *, one_stream: bool, column: str = "msg_id", with_subjects: bool = True) -> None:
        self._one_stream = one_stream
        self._with_subjects = with_subjects
        self._column = column
        self._known: dict[str, array[int]] = {}  # sequences of messages that rows duplicate, by stream
        self._samples: set[str] = set()  # some subjects of the rows
        self.keys: RowKeys = RowKeys()
        self.sequences: RowSequences = RowSequences()

    def add_rows(self, rows: RowMessages, first: int) -> None:
        """Add the next rows before they are published.

        Args:
            rows: The rows.
            first: The number of the first row in the partition.

        Raises:
            BadRow: Two different rows have the same id.
        """
        ids = rows.ids or [b""] * len(rows.payloads)
        if len(set(ids)) < len(ids):
            self._check_different(rows, ids, first)
        # Give a row without an id a random key, so that it never seems to be a duplicate of another row.
        self.keys.ids.frombytes(b"".join([digest(one, 8) if one else token_bytes(8) for one in ids]))
        if len(self._samples) < _SAMPLES:
            self._samples.update(one.decode() for one in islice(set(rows.subjects), _SAMPLES))
        subjects = {one: digest(one if self._with_subjects else b"", 4) for one in set(rows.subjects)}
        self.keys.subjects.frombytes(b"".join(map(subjects.__getitem__, rows.subjects)))
        contents: list[bytes] = []
        for block, data in zip(rows.blocks or repeat(b"", len(ids)), rows.payloads, strict=True):
            one = blake2b(block, digest_size=4, salt=b"headers" if block else b"")
            one.update(data)
            contents.append(one.digest())
        self.keys.contents.frombytes(b"".join(contents))

    def _check_different(self, rows: RowMessages, ids: Sequence[bytes], first: int) -> None:
        seen: dict[bytes, int] = {}
        for row, one in enumerate(ids):
            other = seen.setdefault(one, row) if one else row
            if other == row:
                continue
            what = _difference(rows, row, other)
            if what and (self._one_stream or what != "subject"):
                raise BadRow(
                    row,
                    self._column,
                    f"row {first + other} has the same id {one.decode()!r:.200}, but another {what} (subject "
                    f"{rows.subjects[other].decode()!r:.200}), and the stream would store one of the two. "
                    f"{ONE_ROW_AN_ID}",
                )

    def add_acks(self, acks: Sequence[PubAck]) -> None:
        """Record the acks of rows."""
        self.sequences.add_acks(acks)
        for ack in acks:
            if ack.duplicate:
                self._known.setdefault(ack.stream, array("Q")).append(ack.seq)

    def add_stored(self, stream: str, sequences: Sequence[int]) -> None:
        """Record the sequences of rows that are omitted because the stream has their ids."""
        if sequences:
            self.sequences.add_stored(stream, sequences)
            self._known.setdefault(stream, array("Q")).extend(sequences)

    async def check_repetitions(self, js: JetStream) -> str:
        """Compare the rows that were acked as repetitions with the messages that they repeat.

        Call this when all rows are acked.

        Returns:
            The reason why some messages could not be read, or "" if all were read.

        Raises:
            BadRow: A message has another subject than its row. The error has the number of the row in the partition.
            JetStreamError: The messages cannot be read at the moment.
        """
        reasons = []
        for name, known in self._known.items():
            sequences = sorted(set(known))
            try:
                reasons.append(
                    await Retry(_READING).run(lambda: self._check_in(js, name, sequences))  # noqa: B023  awaited here
                )
            except (ApiError, NoRespondersError, PermissionDeniedError, StreamNotFoundError) as error:
                # The check is optional, because a user who may publish doesn't always have access to the JetStream API.
                if is_transient(error) and not _is_without_jetstream(error):
                    raise
                reasons.append(f"stream {name!r} cannot be read ({error})")
        return "; ".join(filter(None, reasons))

    async def _check_in(self, js: JetStream, name: str, sequences: Sequence[int]) -> str:
        try:
            target = await js.stream(name)
        except ApiError as error:
            if _is_without_jetstream(error):  # return at once, because a retry would not help
                return f"stream {name!r} cannot be read ({error})"
            raise
        config = target.cached_info.config
        if config.subject_transform is not None:
            return f"stream {name!r} transforms subjects"
        filters = config.subjects or ()
        if not any(subject_matches(one, subject) for one in filters for subject in self._samples):
            return f"stream {name!r} has none of the rows' subjects, which are mapped or imported"
        stored, seen = RowKeys(), array("Q")
        async for msg_id, subject, sequence in messages_at(target, sequences):
            stored.ids.frombytes(digest(msg_id, 8))
            stored.subjects.frombytes(digest(subject, 4))
            seen.append(sequence)
        for row, sequence in self._with_other_subject(name, stored, seen):
            message = await target.get_message(sequence)
            text = message.headers.get(MSG_ID) if message.headers else None
            raise BadRow(
                row,
                self._column,
                f"its id is {text!r:.200}, as that of message {sequence} of stream {name!r}, whose subject is "
                f"{message.subject!r:.200}. So the stream took the row for a repetition, and has not stored it. "
                f"{ONE_ROW_AN_ID}",
            )
        removed = len(sequences) - len(seen)
        return f"stream {name!r} has removed {removed} of them" if removed else ""

    def _with_other_subject(
        self, name: str, stored: RowKeys, seen: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield each row that was acked with a message of another subject, and the sequence of that message."""
        ids, subjects, _ = self.keys.columns()
        indexes = pc.index_in(ids, value_set=hash_column(pa.uint64(), stored.ids))
        same = pc.equal(hash_column(pa.uint32(), stored.subjects).take(indexes), subjects)
        others = pc.indices_nonzero(pc.fill_null(pc.invert(same), fill_value=False))
        if not len(others):
            return
        # A row with the id of a message, but a different subject, may have been stored in a different stream, which is
        # harmless. However, if more rows were acked with the sequence of the message than have the message's subject,
        # this stream has dropped one of these rows as a duplicate.
        equal = Counter(indexes.filter(same).to_pylist())
        depth = _Depth(self.sequences.ranges()[name])
        for row in others.to_pylist():
            index = indexes[row].as_py()
            if depth.at(seen[index]) > equal[index]:
                yield row, seen[index]


def _is_without_jetstream(error: Exception) -> bool:
    """Return whether the account has no JetStream, or no server answers requests to its API."""
    if isinstance(error, ApiError):
        return error.err_code == _NO_JETSTREAM
    return isinstance(error, NoRespondersError)


class _Depth:
    """The number of rows that were acked with each sequence."""

    def __init__(self, ranges: SequenceRanges) -> None:
        self._starts, self._ends = sorted(ranges.starts), sorted(ranges.ends)

    def at(self, sequence: int) -> int:
        return bisect_right(self._starts, sequence) - bisect_right(self._ends, sequence)


def _difference(rows: RowMessages, one: int, other: int) -> str:
    if rows.subjects[one] != rows.subjects[other]:
        return "subject"
    if rows.payloads[one] != rows.payloads[other]:
        return "payload"
    if rows.blocks is not None and rows.blocks[one] != rows.blocks[other]:
        return "set of headers"
    return ""

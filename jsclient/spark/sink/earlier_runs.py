"""The sequences at which earlier runs of a batch have stored its rows, from a record in the bucket of ledgers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..._runtime.retry import Retry, RetryPolicy, is_transient
from ...buckets.state import StateConflictError, StateEntry, StoredState, open_state
from ...client import JetStream
from ...errors import ApiError, ConfigError, JetStreamError, PermissionDeniedError, StreamNotFoundError
from ...protocol.models.stream_config import RetentionPolicy
from ...streams.stream import Stream
from ...tables.session import context_of
from .message_ids import query_hash
from .run_record import RunRecord

__all__ = ["MISSING", "EarlierRuns", "NotRecordedError", "RunLocation", "why_removed", "why_unseen"]

MISSING = RetryPolicy(0.25, 0.25, patience=30.0, missing_stream=5.0)
"""Retry policy for streams that the driver has seen. They may seem to be missing while a cluster elects a leader."""

_FULL = 10077  # err_code of a stream that has reached one of its limits. It counts as transient
_TRIES = 100  # attempts to write a record. An attempt fails only if another task has written the record first


@dataclass(frozen=True, slots=True)
class RunLocation:
    """The location of the record of a write's runs, and the current run."""

    bucket: str  # the key-value bucket of the record, which also has ledgers
    query: str
    run: str  # id of this run, which is Spark's attempt to write a batch
    subject: str  # the subject that all rows have in common, or "" if a column contains subjects

    def keys(self, js: JetStream) -> StoredState:
        """Return the query's keys in the bucket."""
        prefix = f"$KV.{self.bucket}.{query_hash(self.query)}."
        return open_state(context_of(js), f"KV_{self.bucket}", prefix)

    def key(self, target: str) -> str:
        """Return the key of the record. Two writes of a batch with different destinations have two records."""
        return f"runs-{query_hash(f'{target} {self.subject}')}"


class NotRecordedError(Exception):
    """Raised when the record of runs cannot be written."""


class EarlierRuns:
    """The record of a batch's runs, as one task uses it.

    Attributes:
        time: Unix time in seconds when the latest earlier run began, or 0 if there is none. `sequences` sets it.
    """

    def __init__(self, js: JetStream, location: RunLocation, epoch: int) -> None:
        self._keys = location.keys(js)
        self._location = location
        self._epoch = epoch
        self.time: int = 0

    async def sequences(self, target: Stream) -> range:
        """Return the sequences of the target at which earlier runs of the batch may have stored rows.

        Records this run, unless another task has done so. Must be called before the task publishes a row.

        Raises:
            ConfigError: The bucket no longer exists, or another run writes the batch.
            NotRecordedError: The record cannot be written, and does not contain this run.
            JetStreamError: A request failed.
        """
        epoch, run, keys = self._epoch, self._location.run, self._keys
        known = (target.name, str(target.cached_info.created))
        entry = await self._read_record(self._location.key(target.name))
        refusal: JetStreamError | None = None
        for _ in range(_TRIES):
            record = RunRecord(known) if entry.value is None else RunRecord.decode(entry.value)
            if record.target != known:
                record = RunRecord(known)  # a recreated stream has no rows of this query
            if (earlier := record.earlier(epoch, run)) is not None:
                self.time = record.time_before(epoch, run)
                return earlier
            if refusal is not None:
                raise NotRecordedError(str(refusal)) from refusal
            # No task of this run publishes before the run is recorded, so all its messages follow this last sequence.
            info = await target.info()
            value = record.with_run(epoch, run, info.state.last_seq + 1, int(time.time())).encode()
            try:
                entry = StateEntry(entry.key, value, await keys.update(entry.key, value, entry.revision))
            except StateConflictError as conflict:
                entry = conflict.stored_entry  # another task wrote the record first
            except (ApiError, PermissionDeniedError) as error:
                if is_transient(error) and not (isinstance(error, ApiError) and error.err_code == _FULL):
                    raise
                # Another task may have recorded this run, for example before the bucket was full.
                entry, refusal = await self._read_record(entry.key), error
        raise ConfigError(
            f"the record of {self._location.query!r} is being written by something else all the time"
        )

    async def _read_record(self, key: str) -> StateEntry:
        """Read the record. Retries, because a bucket may seem to be missing for a moment."""
        try:
            return await Retry(MISSING).run(lambda: self._keys.get(key))
        except StreamNotFoundError as error:
            raise ConfigError(
                f"the bucket {self._location.bucket!r} of the runs of a batch no longer exists: start the program "
                "again, which creates it; runs before are unknown to it"
            ) from error


def why_unseen(target: Stream, *, keeps_headers: bool) -> str:
    """Return why a reader of the target may not see all rows that earlier runs have stored, or "" if it sees them.

    If a reader saw only the later rows of a subject, the earlier rows would be published again, and an old row would
    become the newest row of its subject.

    Args:
        target: The target stream, with current info.
        keeps_headers: Whether rows may have headers that are commands for the server.
    """
    config, name = target.cached_info.config, target.name
    if config.retention not in (None, RetentionPolicy.LIMITS):
        return f"stream {name!r} removes consumed messages ({config.retention} retention)"
    if (most := config.max_msgs_per_subject or 0) > 0:
        return f"stream {name!r} keeps {most} messages of a subject only"
    if config.subject_transform is not None:
        return f"stream {name!r} transforms subjects, so its messages cannot be copied"
    if keeps_headers and (config.allow_rollup_hdrs or config.allow_msg_ttl):
        return f"headers of rows may remove messages from stream {name!r} (headers=keep, with rollups or TTLs allowed)"
    return ""


async def why_removed(target: Stream, sequences: range) -> str:
    """Return why messages of earlier runs may have been removed, or "" if the stream still has all of them."""
    if (await target.info()).state.first_seq <= sequences.start:
        return ""
    return f"stream {target.name!r} has removed messages since the batch was first written (a limit, a purge)"

"""The epoch ledger on the server. `ledger_rules` explains the ledger and its records."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ...buckets.state import StateConflictError, StateEntry, StoredState, open_state
from ...client import JetStream
from ...errors import ConfigError, StreamNotFoundError
from ...protocol.models.stream_config import DiscardPolicy, StreamConfig
from ...protocol.wire.names import check_stream_name
from ...streams.stream import Stream
from ...tables.session import context_of
from ..task_context import Task
from .ledger_rules import Begin, Beginning, PartitionRecord, QueryRecord, decide
from .message_ids import query_hash

__all__ = ["Ledger", "LedgerLocation", "ensure_bucket", "forget"]

_TRIES = 100  # attempts to write a record. An attempt fails only if another task has written the record first


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """The location of a query's ledger, and the current run."""

    bucket: str  # the key-value bucket of the ledger
    query: str
    target: str  # name of the target stream
    run: str  # id of this run, which is Spark's attempt to write an epoch
    ascending: bool = False  # true if an epoch before the latest epoch is an error

    def keys(self, js: JetStream) -> StoredState:
        """Return the query's keys in the bucket."""
        prefix = f"$KV.{self.bucket}.{query_hash(self.query)}."
        return open_state(context_of(js), f"KV_{self.bucket}", prefix)


async def ensure_bucket(js: JetStream, bucket: str, replicas: int) -> None:
    """Create the bucket unless it exists. Raises `ConfigError` if an existing bucket cannot be used as a ledger."""
    name = check_stream_name(f"KV_{bucket}")
    try:
        stream = await js.stream(name)
    except StreamNotFoundError:
        stream = await js.create_stream(
            StreamConfig(
                name=name,
                description="where the batches of Spark queries begin (jsclient.spark)",
                subjects=[f"$KV.{bucket}.>"],
                max_msgs_per_subject=1,
                discard=DiscardPolicy.NEW,
                num_replicas=replicas,
                allow_direct=True,
                allow_rollup_hdrs=True,
                deny_delete=True,
            )
        )
    config = stream.config
    if config.subjects != [f"$KV.{bucket}.>"] or config.max_age:
        raise ConfigError(
            f"stream {name!r} exists, but is not a bucket that keeps its values: choose another one by option 'ledger'"
        )


class Ledger:
    """The ledger of a query, as one task uses it."""

    def __init__(self, js: JetStream, location: LedgerLocation, epoch: int, task: Task) -> None:
        self._js = js
        self._location = location
        self._epoch = epoch
        self._task = task

    async def begin_epoch(self, target: Stream) -> int:
        """Record that this task begins its epoch. Must be called before the task publishes a row.

        Args:
            target: The target stream, with current info.

        Returns:
            The sequence at or after which rows of this task may already be stored, or 0 if none can be.

        Raises:
            CheckpointBehindError: See `decide`.
            ConfigError: The bucket does not exist, or something else keeps writing the record.
        """
        location, task_key = self._location, f"p{self._task.partition}"
        keys = location.keys(self._js)
        try:
            entry, own_entry = await asyncio.gather(keys.get("epochs"), keys.get(task_key))
        except StreamNotFoundError as error:
            raise ConfigError(
                f"the ledger's bucket {location.bucket!r} no longer exists: restart the query, which creates it; "
                "rows written before are unknown to it"
            ) from error
        own_record = PartitionRecord(self._epoch, location.run)
        stored = None if own_entry.value is None else PartitionRecord.decode(own_entry.value)
        partition = own_record if self._task.attempt else stored
        for _ in range(_TRIES):
            record = None if entry.value is None else QueryRecord.decode(entry.value)
            info = target.cached_info
            known = (target.name, str(info.created))
            decision = decide(
                record,
                partition,
                target=known,
                epoch=self._epoch,
                run=location.run,
                ascending=location.ascending,
            )
            if not isinstance(decision, Begin):
                break
            # No task publishes before the beginning of its epoch is recorded, so all messages of the epoch follow this
            # last sequence.
            info = await target.info()
            beginning = Beginning(self._epoch, info.state.last_seq + 1, location.run)
            value = decision.record.with_epoch(beginning).encode()
            try:
                entry = StateEntry(entry.key, value, await keys.update(entry.key, value, entry.revision))
            except StateConflictError as conflict:
                entry = conflict.stored_entry  # another task wrote the record first
        else:
            raise ConfigError(
                f"the ledger of {location.query!r} is being written by something else all the time"
            )
        await keys.put(task_key, own_record.encode())
        return decision


async def forget(js: JetStream, location: LedgerLocation) -> None:
    """Delete the ledger records of a finished write that cannot be repeated."""
    await location.keys(js).purge()

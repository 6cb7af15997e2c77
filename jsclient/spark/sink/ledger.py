"""The epoch ledger on the server: what `ledger_rules` decides, asked and written. See there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ...client import JetStream
from ...errors import ConfigError, MessageNotFoundError, StreamNotFoundError, WrongLastSequenceError
from ...protocol.consumers.ack import sequences
from ...protocol.models.stream_config import DiscardPolicy, StreamConfig
from ...protocol.wire.headers import MSG_ID
from ...protocol.wire.names import check_stream_name
from ...streams.stream import Stream
from ..log.range_reader import ConsumerRange
from ..task_context import Task
from .ledger_rules import Begin, Beginning, PartitionRecord, QueryRecord, decide
from .message_ids import query_hash

__all__ = ["Ledger", "LedgerPlace", "ensure_bucket", "forget", "stored_ids"]

_TRIES = 100  # to write before another task does; each that fails is one that another has won
_PAGE = 10_000  # messages


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Which ledger, and of what.

    Attributes:
        bucket: Its bucket.
        query: Whose it is.
        target: The stream that is written to.
        run: What this try of Spark to write an epoch is called.
    """

    bucket: str
    query: str
    target: str
    run: str

    @property
    def stream(self) -> str:
        """The stream of the bucket."""
        return f"KV_{self.bucket}"

    def subject(self, key: str) -> str:
        """The subject of a key of this query."""
        return f"$KV.{self.bucket}.{query_hash(self.query)}.{key}"


async def ensure_bucket(js: JetStream, bucket: str, replicas: int) -> None:
    """Make the bucket, if it is not there; one that is there stays as it is.

    Raises:
        ConfigError: What is there holds no ledgers.
    """
    name = check_stream_name(f"KV_{bucket}")
    try:
        stream = await js.stream(name)
    except StreamNotFoundError:
        stream = await js.create_stream(
            StreamConfig(
                name=name,
                description="where the epochs of Spark queries begin (jsclient.spark)",
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
            f"stream {name!r} is there, but is no bucket that keeps its values: choose another one by option 'ledger'"
        )


class Ledger:
    """The ledger, for one task."""

    def __init__(self, js: JetStream, place: LedgerPlace, epoch: int, task: Task) -> None:
        self._js = js
        self._place = place
        self._epoch = epoch
        self._task = task

    async def begin(self, target: Stream) -> int:
        """Say that this task begins its epoch, before it publishes anything.

        Args:
            target: The stream that is written to, looked at now.

        Returns:
            The sequence from which on rows of this task may be stored already; 0: there can be none.

        Raises:
            ConfigError: The epoch is older than the ledger reaches back, or there is no bucket.
            And those of any request.
        """
        place = self._place
        try:
            bucket = await self._js.stream(place.stream)
        except StreamNotFoundError as error:
            raise ConfigError(
                f"the ledger's bucket {place.bucket!r} is gone: start the query again, which makes it; "
                "what was written before cannot be told by it"
            ) from error
        epoch_key, task_key = place.subject("epochs"), place.subject(f"p{self._task.partition}")
        (value, seq), (mine, _) = await asyncio.gather(_last(bucket, epoch_key), _last(bucket, task_key))
        begun = PartitionRecord(self._epoch, place.run)
        partition = begun if self._task.attempt else None if mine is None else PartitionRecord.decode(mine)
        for _ in range(_TRIES):
            record = None if value is None else QueryRecord.decode(value)
            info = target.cached_info
            decision = decide(
                record,
                partition,
                target=(target.name, str(info.created)),
                epoch=self._epoch,
                run=place.run,
            )
            if not isinstance(decision, Begin):
                break
            # Asked now: what others have published before is not of this epoch, for nobody publishes before it is
            # written down.
            info = await target.info()
            beginning = Beginning(self._epoch, info.state.last_seq + 1, place.run)
            try:
                await self._js.publish(
                    epoch_key,
                    decision.record.with_epoch(beginning).encode(),
                    expected_stream=place.stream,
                    expected_last_subject_seq=seq,
                )
            except WrongLastSequenceError:
                pass  # another task was first, or our own first try was stored
            value, seq = await _last(bucket, epoch_key)
        else:
            raise ConfigError(
                f"the ledger of {place.query!r} is being written by something else all the time"
            )
        await self._js.publish(task_key, begun.encode(), expected_stream=place.stream)
        return decision


async def stored_ids(target: Stream, start: int, prefix: bytes, subject: str | None) -> dict[bytes, int]:
    """The ids that begin with ``prefix`` of messages that are stored from ``start`` on, without it; their sequences.

    Args:
        subject: Only messages of this subject; None: all.
    """
    info = await target.info()
    found: dict[bytes, int] = {}
    first, last = max(start, info.state.first_seq), info.state.last_seq
    if last < first:
        return found
    name = f"\r\n{MSG_ID}: ".encode()
    wanted, skip = name + prefix, len(name) + len(prefix)
    reader = ConsumerRange(
        target,
        first,
        last,
        subjects=() if subject is None else (subject,),
        check_loss=False,  # what has left the stream is not stored in it
    )
    try:
        while frames := await reader.read(_PAGE):
            for _, reply, block, _ in frames:
                at = block.find(wanted)
                if at >= 0:
                    found[block[at + skip : block.find(b"\r\n", at + skip)]] = sequences(reply)[0]
    finally:
        await reader.close()
    return found


async def forget(js: JetStream, place: LedgerPlace) -> None:
    """Remove what the ledger has of a write that is over and never comes again."""
    bucket = await js.stream(place.stream)
    await bucket.purge(subject=place.subject(">"))


async def _last(bucket: Stream, subject: str) -> tuple[bytes | None, int]:
    """The value of a key, as the bucket's leader has it, and its sequence; None, 0: there is none."""
    try:
        message = await bucket.get_last_message(subject)
    except MessageNotFoundError:
        return None, 0
    return message.data, message.seq

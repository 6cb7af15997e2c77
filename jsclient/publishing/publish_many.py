"""Publishes many messages in one call, for `JetStream.publish_many` and `KeyValue.put_many`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from .._runtime.context import Context
from .._runtime.publish import check_payload, check_subject, headers_and_ids
from ..errors import ConfigError, JetStreamError, PublishManyError
from ..protocol.publishing.in_flight import MAX_BYTES
from ..protocol.wire.checks import check_count, check_seconds
from .bulk import BulkPublisher

__all__ = ["Columns", "PublishedMany", "publish_columns", "publish_many"]

_CHUNK: Final = 1000  # number of messages that are checked before the first of them is sent

Columns: TypeAlias = tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]
"""Subjects, header blocks and payloads of messages, in three sequences of the same length."""


class PublishedMany(msgspec.Struct, frozen=True):
    """The result of `JetStream.publish_many`, returned once all messages are stored.

    Attributes:
        stored: Number of payloads now in the stream, including duplicates. Equal to the number of payloads passed.
        duplicates: Number of messages that the stream had already stored, according to their ``msg_id``. A number
            greater than 0 is normal if an earlier attempt was interrupted.
        first_seq: Smallest stream sequence of the messages that aren't duplicates, or 0 if all are duplicates.
        last_seq: Largest stream sequence of the messages that aren't duplicates, or 0 if all are duplicates.
    """

    stored: int
    duplicates: int
    first_seq: int
    last_seq: int


async def publish_many(
    context: Context,
    subject: str,
    payloads: Iterable[bytes],
    *,
    headers: Mapping[str, str | Sequence[str]] | None,
    msg_ids: Iterable[str] | None,
    max_in_flight: int,
    timeout: float | None,
) -> PublishedMany:
    """See `JetStream.publish_many`."""
    check_count("max_in_flight", max_in_flight)
    if isinstance(payloads, str | bytes | bytearray | memoryview) or not isinstance(payloads, Iterable):
        raise ConfigError(
            f"payloads is {type(payloads).__name__}: an iterable of payloads is needed, such as a list of bytes"
        )
    to, common = check_subject(subject), headers_and_ids(headers, None, None)[0]
    return await publish_columns(
        context,
        _columns_of(to, common, iter(payloads), headers, None if msg_ids is None else iter(msg_ids)),
        max_in_flight=max_in_flight,
        timeout=context.timeout if timeout is None else check_seconds("timeout", timeout),
        repeatable=msg_ids is not None,
    )


def _columns_of(
    subject: bytes,
    common: bytes,
    payloads: Iterator[bytes],
    headers: Mapping[str, str | Sequence[str]] | None,
    ids: Iterator[str] | None,
) -> Iterator[Columns]:
    """Yield chunks of messages with the same subject. Each chunk is checked completely before it is yielded."""
    while chunk := list(islice(payloads, _CHUNK)):
        data = chunk if set(map(type, chunk)) == {bytes} else list(map(check_payload, chunk))
        blocks = [common] * len(data) if ids is None else _blocks(headers, ids, len(data))
        yield [subject] * len(data), blocks, data


def _blocks(headers: Mapping[str, str | Sequence[str]] | None, ids: Iterable[str], count: int) -> list[bytes]:
    """Return header blocks with the next ``count`` IDs. Raise `ConfigError` if there are fewer."""
    next_ids = list(islice(ids, count))
    if len(next_ids) < count:
        raise ConfigError("there are fewer msg_ids than payloads; each payload needs one")
    return [headers_and_ids(headers, msg_id, None)[0] for msg_id in next_ids]


async def publish_columns(
    context: Context,
    columns: Iterator[Columns],
    *,
    max_in_flight: int,
    timeout: float,
    repeatable: bool,
) -> PublishedMany:
    """Publish messages that have already been checked, and wait until all of them are stored.

    ``repeatable`` is True if all messages have an ID. See `BulkPublisher`.

    Raises:
        PublishManyError: Some messages could not be stored. If ``columns`` raises an error, it is one of the failures.
    """
    bulk = BulkPublisher(
        context, max_in_flight=max_in_flight, max_bytes=MAX_BYTES, timeout=timeout, repeatable=repeatable
    )
    unsent: JetStreamError | None = None
    try:
        try:
            while not bulk.failures and (chunk := next(columns, None)) is not None:
                subjects, blocks, payloads = chunk
                rows = range(bulk.sent, bulk.sent + len(payloads))
                await bulk.send(rows, subjects, blocks, payloads)
        except JetStreamError as error:
            unsent = error  # raise the error only after the outcome of the messages in flight is known
        await bulk.settle()
    finally:
        await bulk.close()
    tally, failures = (
        bulk.tally,
        [(failed.row, failed.error) for failed in sorted(bulk.failures, key=lambda failed: failed.row)],
    )
    if unsent is not None:
        failures.append((bulk.sent, unsent))
    if failures:
        raise PublishManyError(failures, bulk.sent, tally.stored) from failures[0][1]
    return PublishedMany(tally.stored, tally.duplicates, tally.first_seq, tally.last_seq)

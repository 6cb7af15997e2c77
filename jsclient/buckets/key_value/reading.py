"""Reading the entries of a bucket in order, with an ordered consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from ..._runtime.context import Context
from ...consumers.message import Message
from ...consumers.ordered.consumer import OrderedConsumer
from ...consumers.ordered.puller import OrderedPuller
from ...errors import BucketNotFoundError, JetStreamError, RequestTimeoutError, StreamNotFoundError
from ...protocol.buckets.entry import KeyValueEntry, operation_of, payload_size
from ...protocol.buckets.keys import KeySpace
from ...protocol.consumers.ordered import ordered_pull_config
from ...protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ...protocol.models.message import StoredMessage
from ...protocol.wire.header_names import MSG_SIZE

__all__ = ["BucketReader", "entry_of", "no_bucket", "reader_config", "stored_entry"]

_RECHECK = 0.25  # seconds without an entry after which a new consumer is looked at


def no_bucket(error: StreamNotFoundError) -> BucketNotFoundError:
    """Return the error for a bucket whose stream does not exist."""
    return BucketNotFoundError(
        error.code, error.err_code, error.description, error.stream, error.consumer,
        "check the name, or create it with create_key_value()",
    )  # fmt: skip


def reader_config(
    subjects: Sequence[str],
    *,
    policy: DeliverPolicy = DeliverPolicy.LAST_PER_SUBJECT,
    after: int | None = None,
    headers_only: bool = False,
) -> ConsumerConfig:
    """Return the configuration of a consumer of entries. ``after``: only entries after this revision, all of them."""
    return ConsumerConfig(
        filter_subject=subjects[0] if len(subjects) == 1 else None,
        filter_subjects=list(subjects) if len(subjects) > 1 else None,
        deliver_policy=policy if after is None else DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=None if after is None else after + 1,
        headers_only=headers_only or None,
    )


def entry_of(keys: KeySpace, message: Message, *, is_initial: bool = False) -> KeyValueEntry:
    """Return the entry that a consumer has delivered."""
    metadata, headers = message.metadata, message.headers
    data = message.data
    if not message._frame[2]:  # noqa: SLF001  most values have no headers
        return KeyValueEntry(
            bucket=keys.bucket,
            key=keys.key(message.subject),
            value=data,
            revision=metadata.stream_seq,
            created_ns=metadata.timestamp_ns,
            delta=metadata.num_pending,
            size=len(data),
            is_initial=is_initial,
        )
    return KeyValueEntry(
        bucket=keys.bucket,
        key=keys.key(message.subject),
        value=data,
        revision=metadata.stream_seq,
        created_ns=metadata.timestamp_ns,
        operation=operation_of(headers),
        delta=metadata.num_pending,
        headers=headers,
        size=payload_size(headers) if MSG_SIZE in headers else len(data),
        is_initial=is_initial,
    )


def stored_entry(keys: KeySpace, key: str, message: StoredMessage, delta: int = 0) -> KeyValueEntry:
    """Return the entry in a message that was requested from the stream."""
    return KeyValueEntry(
        bucket=keys.bucket,
        key=key,
        value=message.data,
        revision=message.seq,
        created_ns=message.time_ns,
        operation=operation_of(message.headers),
        delta=delta,
        headers=message.headers or None,
        size=len(message.data),
    )


class BucketReader:
    """Reads the entries of a bucket, first those that exist, then each new one. The server is asked on first use.

    Attributes:
        is_current: Whether all entries that existed when it was opened were returned.
    """

    def __init__(self, context: Context, stream: str, keys: KeySpace, config: ConsumerConfig) -> None:
        self._context, self._stream, self._keys = context, stream, keys
        self._config = ordered_pull_config(config)
        self._consumer: OrderedConsumer | None = None
        self._remaining = 0  # of the entries that existed at the start
        self._last = ("", 0)  # the consumer that delivered the last entry, and the number of the delivery
        self.is_current: bool = False

    async def open(self) -> OrderedConsumer:
        """Create the consumer. Raises `BucketNotFoundError`, and the errors of any API request."""
        puller = OrderedPuller(
            self._context, self._stream, self._config, name_prefix=None, max_reset_attempts=None
        )
        try:
            await puller.begin()
        except StreamNotFoundError as error:
            raise no_bucket(error) from None
        self._remaining = puller.num_pending
        self.is_current = not self._remaining
        self._consumer = OrderedConsumer(puller)
        return self._consumer

    async def next(self) -> KeyValueEntry | None:
        """Return the next entry, or None if the last of those that existed has disappeared.

        Raises the errors of `OrderedConsumer.next`.
        """
        consumer = self._consumer
        assert consumer is not None
        try:
            while True:
                try:
                    message = await consumer.next(None if self.is_current else _RECHECK)
                except RequestTimeoutError:
                    # The entries that were left may have been removed, or changed while the consumer was replaced.
                    if await self._has_nothing_left():
                        self.is_current = True
                        return None
                else:
                    return self._entry(message)
        except StreamNotFoundError as error:
            raise no_bucket(error) from None

    async def _has_nothing_left(self) -> bool:
        """Whether the consumer has delivered everything, and everything that it has delivered was returned."""
        consumer = self._consumer
        assert consumer is not None
        try:
            info = await consumer.info()
        except JetStreamError:
            return False  # the consumer is being replaced, or the server is away
        name, number = self._last
        returned = number if name == info.name else 0
        return not info.num_pending and not consumer.pending and info.delivered.consumer_seq == returned

    def _entry(self, message: Message) -> KeyValueEntry:
        if self.is_current:
            return entry_of(self._keys, message)
        entry = entry_of(self._keys, message, is_initial=True)
        self._remaining -= 1
        self._last = (message.metadata.consumer, message.metadata.consumer_seq)
        # An entry that is changed meanwhile moves behind the others, so that their number or the end may come first.
        self.is_current = not self._remaining or not entry.delta
        return entry

    async def initial(self) -> AsyncGenerator[KeyValueEntry, None]:
        """Open, and yield the entries that exist. Closes at the end."""
        consumer = await self.open()
        try:
            while not self.is_current:
                if (entry := await self.next()) is not None:
                    yield entry
        finally:
            await consumer.close()

    async def close(self) -> None:
        """Delete the consumer."""
        if self._consumer is not None:
            await self._consumer.close()

"""Reading the entries of a bucket in order, with an ordered consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from .._runtime.context import Context
from ..consumers.message import Message
from ..consumers.ordered.consumer import OrderedConsumer
from ..consumers.ordered.puller import OrderedPuller
from ..errors import ConfigError, ConsumerLimitError, JetStreamError, RequestTimeoutError, StreamNotFoundError
from ..protocol.consumers.ordered import ordered_pull_config
from ..protocol.events import Event
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.wire.checks import check_count
from .bucket_handle import no_bucket

if TYPE_CHECKING:
    from .log_entries import LogEntries

__all__ = ["RECHECK", "BucketReader", "has_nothing_left", "open_consumer", "policy_of", "reader_config"]

RECHECK: Final = 0.25
"""Seconds without a message after which a consumer is checked."""

EntryT = TypeVar("EntryT")


def policy_of(*, include_history: bool, updates_only: bool, after: int | None) -> DeliverPolicy:
    """Return the deliver policy for the arguments of a watch. Raises `ConfigError` if they contradict each other."""
    if sum((include_history, updates_only, after is not None)) > 1:
        raise ConfigError("give one of include_history, updates_only and after")
    if after is not None:
        check_count("after", after, 0)
    if include_history or updates_only:
        return DeliverPolicy.ALL if include_history else DeliverPolicy.NEW
    return DeliverPolicy.LAST_PER_SUBJECT


def reader_config(
    subjects: Sequence[str],
    *,
    policy: DeliverPolicy = DeliverPolicy.LAST_PER_SUBJECT,
    after: int | None = None,
    headers_only: bool = False,
) -> ConsumerConfig:
    """Return the configuration of a consumer of entries. ``after`` selects all entries after this revision."""
    return ConsumerConfig(
        filter_subject=subjects[0] if len(subjects) == 1 else None,
        filter_subjects=list(subjects) if len(subjects) > 1 else None,
        deliver_policy=policy if after is None else DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=None if after is None else after + 1,
        headers_only=headers_only or None,
    )


async def open_consumer(
    context: Context, stream: str, config: ConsumerConfig, create: str
) -> tuple[OrderedConsumer, int]:
    """Create a consumer that reads in order. Return it with the number of messages that it has to deliver.

    ``create`` is the method that creates such a bucket.

    Raises `BucketNotFoundError`, and the errors of any API request.
    """
    puller = OrderedPuller(
        context, stream, ordered_pull_config(config), name_prefix=None, max_reset_attempts=None
    )
    try:
        await puller.create_first_consumer()
    except StreamNotFoundError as error:
        raise no_bucket(error, create) from None
    return OrderedConsumer(puller), puller.num_pending


async def has_nothing_left(consumer: OrderedConsumer, last: Message | None) -> bool:
    """Return whether the consumer has delivered all its messages, ``last`` being the last message."""
    try:
        info = await consumer.info()
    except JetStreamError:
        return False  # the consumer is being replaced, or the server is unavailable
    returned = 0
    if last is not None and last.metadata.consumer == info.name:
        returned = last.metadata.consumer_seq
    return not info.num_pending and not consumer.pending and info.delivered.consumer_seq == returned


class BucketReader(Generic[EntryT]):
    """Reads the existing entries of a bucket, and then each new entry. The first request is sent on first use.

    Attributes:
        is_current: Whether all entries that existed at the opening were returned.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        config: ConsumerConfig,
        decode: Callable[[Message, bool], EntryT | None],
        create: str,
    ) -> None:
        """Prepare to read.

        ``decode`` returns the entry in a message, or None to skip it. Its second argument tells whether the entry
        existed at the opening. ``create`` is the method that creates such a bucket.
        """
        self._context, self._stream, self._config = context, stream, config
        self._decode, self._create = decode, create
        self._consumer: OrderedConsumer | None = None
        self._log: LogEntries | None = None  # instead of a consumer, if the server creates no further one
        self._remaining = 0  # number of entries that existed at the start and were not read yet
        self._last: Message | None = None
        self.is_current: bool = False

    async def open(self) -> None:
        """Create the consumer, or read without one if the stream has as many as it may have.

        Raises `BucketNotFoundError`, and the errors of any API request.
        """
        try:
            self._consumer, self._remaining = await open_consumer(
                self._context, self._stream, self._config, self._create
            )
        except ConsumerLimitError as error:
            # The readers of topics are imported only here, because a bucket seldom needs them.
            from .log_entries import LogEntries

            log = LogEntries(self._context, self._stream, self._config, error)
            try:
                await log.begin_entries()
            except StreamNotFoundError as missing:
                raise no_bucket(missing, self._create) from None
            self._log = log
            self.is_current = log.is_current
        else:
            self.is_current = not self._remaining

    def entry_events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the open reader."""
        if self._log is not None:
            return self._log.entry_events()
        assert self._consumer is not None
        return self._consumer.events()

    async def next(self) -> EntryT | None:
        """Return the next entry. None stands for a skipped entry, or for a last existing entry that was removed.

        Raises the errors of `OrderedConsumer.next`.
        """
        try:
            if self._log is not None:
                message, is_initial = await self._log.next_message()
                self.is_current = self._log.is_current
                return self._decode(message, is_initial)
            consumer = self._consumer
            assert consumer is not None
            while True:
                try:
                    message = await consumer.next(None if self.is_current else RECHECK)
                except RequestTimeoutError:
                    # The remaining entries may have been removed, or changed while the consumer was replaced.
                    if await has_nothing_left(consumer, self._last):
                        self.is_current = True
                        return None
                else:
                    return self._entry(message)
        except StreamNotFoundError as error:
            raise no_bucket(error, self._create) from None

    def _entry(self, message: Message) -> EntryT | None:
        if self.is_current:
            return self._decode(message, False)
        self._remaining -= 1
        self._last = message
        # An entry that changes meanwhile moves behind the others, so either the count or the end may come first.
        self.is_current = not self._remaining or not message.metadata.num_pending
        return self._decode(message, True)

    async def initial(self) -> AsyncGenerator[EntryT, None]:
        """Open the reader, yield the entries that exist, and close the reader."""
        await self.open()
        try:
            while not self.is_current:
                if (entry := await self.next()) is not None:
                    yield entry
        finally:
            await self.close()

    async def close(self) -> None:
        """Delete the consumer."""
        if self._log is not None:
            await self._log.end_entries()
        if self._consumer is not None:
            await self._consumer.close()

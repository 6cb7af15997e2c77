"""Reading the entries of a bucket in order, with an ordered consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from .._runtime.connection.speedups import chosen
from .._runtime.context import Context
from .._runtime.event_hub import EventLog
from ..consumers.message import frames_of
from ..consumers.ordered.consumer import OrderedConsumer
from ..consumers.ordered.puller import OrderedPuller
from ..errors import ConfigError, ConsumerLimitError, JetStreamError, RequestTimeoutError, StreamNotFoundError
from ..protocol.consumers.ack import Metadata, read_jsack
from ..protocol.consumers.ack_numbers import AckNumbers, ack_numbers
from ..protocol.consumers.ordered import ordered_pull_config
from ..protocol.events import ConsumerRefused, Event
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.wire.checks import check_count
from ..protocol.wire.frames import Frame
from .bucket_handle import no_bucket

if TYPE_CHECKING:
    from .log_entries import LogEntries

__all__ = [
    "RECHECK",
    "BucketReader",
    "Decode",
    "DecodeOne",
    "EntryQuery",
    "decoded",
    "each_by",
    "has_nothing_left",
    "numbers_of",
    "open_consumer",
    "open_puller",
    "policy_of",
    "reader_config",
]

RECHECK: Final = 0.25
"""If no message arrives for this many seconds, the consumer is checked."""

_MEANWHILE: Final = (
    "the bucket is read by direct gets, which needs the right to subscribe to {subject!r} to be fast"
)
_RUN: Final = 500  # maximum number of messages that are decoded together

_SILENT_LOOKS: Final = 8  # a consumer is replaced after this many silent checks, each after RECHECK
_COLUMNS: Final = (1, 3, 4)  # columns of the compiled function's result that belong to `AckNumbers`

EntryT = TypeVar("EntryT")
EntryT_co = TypeVar("EntryT_co", covariant=True)


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
    """Create a consumer that reads in order. Return it with its number of pending messages.

    ``create`` is the name of the method that creates such a bucket.

    Raises `BucketNotFoundError`, or any error common to API requests.
    """
    puller = await open_puller(context, stream, config, create)
    return OrderedConsumer(puller), puller.num_pending


async def open_puller(context: Context, stream: str, config: ConsumerConfig, create: str) -> OrderedPuller:
    """Create a consumer. May raise any error of `open_consumer`."""
    puller = OrderedPuller(
        context, stream, ordered_pull_config(config), name_prefix=None, max_reset_attempts=None
    )
    try:
        await puller.create_first_consumer()
    except StreamNotFoundError as error:
        raise no_bucket(error, create) from None
    return puller


async def has_nothing_left(consumer: OrderedConsumer, last: Metadata | None) -> bool:
    """Return whether the consumer has delivered all its messages. ``last`` describes the last message, if any."""
    try:
        info = await consumer.info()
    except JetStreamError:
        return False  # the consumer is being replaced, or the server is unavailable
    returned = last.consumer_seq if last is not None and last.consumer == info.name else 0
    return not info.num_pending and not consumer.pending and info.delivered.consumer_seq == returned


class Decode(Protocol[EntryT]):
    """Reads the entries from the frames of messages, and omits those to be skipped."""

    def __call__(self, frames: list[Frame], numbers: AckNumbers, *, is_initial: bool) -> list[EntryT]:
        """There is at least one frame. ``is_initial`` tells whether the entries existed when the reader was opened."""


class DecodeOne(Protocol[EntryT_co]):
    """Reads an entry from the frame of a message, or returns None to skip it."""

    def __call__(
        self, frame: Frame, revision: int, time_ns: int, pending: int, *, is_initial: bool
    ) -> EntryT_co | None:
        """``pending`` messages follow. ``is_initial`` tells whether the entry existed when the reader was opened."""


def each_by(decode: DecodeOne[EntryT]) -> Decode[EntryT]:
    """Return a function that reads each entry with a call of ``decode``."""

    def decode_each(frames: list[Frame], numbers: AckNumbers, *, is_initial: bool) -> list[EntryT]:
        entries = [
            decode(frame, revision, time_ns, pending, is_initial=is_initial)
            for frame, revision, time_ns, pending in zip(frames, *numbers, strict=True)
        ]
        return [entry for entry in entries if entry is not None]

    return decode_each


def numbers_of(frames: list[Frame]) -> AckNumbers:
    """Return the numbers in the JSAcks of these frames."""
    compiled = chosen().jsack_numbers
    if compiled is not None and (packed := compiled(frames)):
        count, numbers = len(frames), memoryview(packed).cast("q")
        columns = [numbers[index * count : (index + 1) * count].tolist() for index in _COLUMNS]
        return AckNumbers(*columns)
    return ack_numbers(frames)


def decoded(decode: Decode[EntryT], frames: list[Frame], *, is_initial: bool) -> list[EntryT]:
    """Return the entries of these messages, without those that are skipped."""
    return decode(frames, numbers_of(frames), is_initial=is_initial) if frames else []


@dataclass(frozen=True, slots=True)
class EntryQuery(Generic[EntryT]):
    """The entries that a reader of a bucket returns.

    Attributes:
        context: The context of the handle of the bucket.
        stream: Name of the stream that stores the bucket.
        config: The configuration of a consumer that delivers these entries.
        decode: Returns the entries in messages.
        create: Name of the method that creates such a bucket, for errors.
    """

    context: Context
    stream: str
    config: ConsumerConfig
    decode: Decode[EntryT]
    create: str


class BucketReader(Generic[EntryT]):
    """Reads the existing entries of a bucket, and then each new entry. The first request is sent on first use.

    Attributes:
        is_current: Whether all entries that existed at the opening were returned.
        query: The entries that the reader returns.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        config: ConsumerConfig,
        decode: Decode[EntryT],
        create: str,
        *,
        events: EventLog | None = None,
    ) -> None:
        """Prepare to read.

        ``create`` is the name of the method that creates such a bucket. ``events`` receives the events.
        """
        self.query: EntryQuery[EntryT] = EntryQuery(context, stream, config, decode, create)
        self._context, self._stream, self._config = context, stream, config
        self._decode, self._create = decode, create
        self._events = EventLog() if events is None else events
        self._puller: OrderedPuller | None = None
        self._log: LogEntries | None = None  # reads without a consumer, if the server refuses to create one
        self._consumer: OrderedConsumer | None = None
        self._remaining = 0  # number of entries that existed at the start and were not read yet
        self._last: Frame | None = None
        # The state of a silent consumer at the last check, as its name and the number of messages, and how many checks
        # in a row found this state.
        self._silent: tuple[str, int] = "", 0
        self._silent_looks = 0
        self._arrived: list[Frame] = []  # messages that have arrived and were not decoded yet
        self.is_current: bool = False

    async def open(self) -> None:
        """Create the consumer, or read without one if the stream has the maximum number of consumers.

        Raises `BucketNotFoundError`, or any error common to API requests.
        """
        try:
            puller = await open_puller(self._context, self._stream, self._config, self._create)
        except ConsumerLimitError as error:
            await self._open_log(error)
            return
        puller.log = self._events
        self._puller, self._consumer = puller, OrderedConsumer(puller)
        self._remaining = puller.num_pending
        self.is_current = not self._remaining

    async def _open_log(self, error: ConsumerLimitError) -> None:
        """Read without a consumer, and report why."""
        # Import the topic readers lazily, because a bucket seldom needs them.
        from .log_entries import LogEntries, common_filter

        log = LogEntries(self._context, self._stream, self._config, self._events, push="auto")
        subject = common_filter(self._config.filters)
        refused = ConsumerRefused(
            stream=self._stream, error=error, meanwhile=_MEANWHILE.format(subject=subject)
        )
        self._events.add_event(refused)
        self._context.emit(refused)
        try:
            await log.begin_entries()
        except StreamNotFoundError as missing:
            raise no_bucket(missing, self._create) from None
        self._log, self.is_current = log, log.is_current

    def skip_initial(self) -> None:
        """Return every entry as a change, including entries that existed at the opening.

        Call this before the first read.
        """
        self.is_current = True
        if self._log is not None:
            self._log.is_current = True

    @property
    def place(self) -> tuple[int, str] | None:
        """The sequence up to which all messages were returned, and the incarnation of the stream.

        None if messages have arrived that were not returned yet.
        """
        if self._log is not None:
            return self._log.position, self._log.incarnation
        puller = self._puller
        if puller is None or puller.front or self._arrived:
            return None
        return puller.tracker.position, puller.recreator.incarnation

    @property
    def restarts(self) -> int:
        """How often the reader detected that the stream had been replaced or restored."""
        if self._log is not None:
            return self._log.restarts
        return 0 if self._puller is None else self._puller.recreator.restarts

    @property
    def puller(self) -> OrderedPuller | None:
        """The puller that receives the messages of the consumer, or None if there is no consumer."""
        return self._puller

    @property
    def has_unread(self) -> bool:
        """Whether messages have arrived that were not returned yet."""
        return bool(self._arrived) or (self._puller is not None and bool(self._puller.front))

    def give_up_consumer(self) -> None:
        """Leave the consumer to another reader, which is possible while `has_unread` is False."""
        self._puller = self._consumer = None

    def silence(self) -> None:
        """Stop adding events to the log that was passed to the reader."""
        self._events = EventLog()
        if self._puller is not None:
            self._puller.log = self._events

    def entry_events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the open reader."""
        return self._events.read_events()

    async def next_run(self) -> list[EntryT]:
        """Wait for entries, and return those that have arrived. All of them existed at the opening, or none of them.

        The list is empty if all entries were skipped, or if the last existing entries were removed.

        May raise any error of `OrderedConsumer.next`.
        """
        if self._log is not None:
            return await self._next_of_log(self._log)
        if not self._arrived:
            consumer, puller = self._consumer, self._puller
            assert consumer is not None
            assert puller is not None
            try:
                first = await consumer.next(None if self.is_current else RECHECK)
                # Another task may have appended messages during the await. They are older, so return them first.
                self._arrived += frames_of([first]) + puller.take_frames(_RUN - 1)
            except RequestTimeoutError:
                await self._check_silence(consumer, puller)
                return []
            except StreamNotFoundError as error:
                raise no_bucket(error, self._create) from None
        return self._initial_entries() if not self.is_current else self._changes()

    async def _check_silence(self, consumer: OrderedConsumer, puller: OrderedPuller) -> None:
        """Find out why no entry arrives, although entries that existed at the opening have not been read."""
        last = None if self._last is None else read_jsack(self._last[1])
        if await has_nothing_left(consumer, last):
            # The remaining entries were removed, or were changed while the consumer was replaced. They won't arrive, so
            # stop waiting for them. Otherwise, the watch would never become current.
            self.is_current = True
            if not puller.tracker.cursor.requested_from:
                # Replace the first consumer, which has a fixed list of entries to deliver. For each listed entry that
                # was removed, the server waits for another message, so changes would be delivered late.
                puller.replace_consumer("entries that it was to deliver were removed")
            return
        # Give up a consumer whose state stays the same for several checks. After a purge, a server may count messages
        # as pending that the consumer never delivers.
        state = puller.consumer, puller.arrived
        self._silent_looks = self._silent_looks + 1 if state == self._silent else 1
        self._silent = state
        if self._silent_looks >= _SILENT_LOOKS and not puller.context.connection.problem:
            self._silent_looks = 0
            puller.replace_consumer("it delivers nothing, although messages are pending")

    async def _next_of_log(self, log: LogEntries) -> list[EntryT]:
        is_initial = not log.is_current
        try:
            frames = await log.next_frames()
        except StreamNotFoundError as error:
            raise no_bucket(error, self._create) from None
        self.is_current = log.is_current
        return decoded(self._decode, frames, is_initial=is_initial)

    def _changes(self) -> list[EntryT]:
        frames, self._arrived = self._arrived, []
        return decoded(self._decode, frames, is_initial=False)

    def _initial_entries(self) -> list[EntryT]:
        """Decode the messages that have arrived, up to the last entry that existed at the opening."""
        frames = self._arrived
        numbers = numbers_of(frames)
        # An entry that changes in the meantime moves behind the others. The initial entries therefore end when all of
        # them have been counted or when nothing is pending, whichever comes first.
        pending = numbers.pending
        count = min(pending.index(0) + 1 if 0 in pending else len(pending), self._remaining)
        if count < len(frames):
            later, frames, numbers = frames[count:], frames[:count], numbers.between(0, count)
        else:
            later = []
        entries = self._decode(frames, numbers, is_initial=True)
        if not pending[count - 1] or count == self._remaining:
            self.is_current = True
        self._remaining -= count
        self._last = frames[-1]
        self._arrived = later
        return entries

    async def initial_runs(self) -> AsyncGenerator[list[EntryT], None]:
        """Open the reader, yield the entries that exist in lists, and close the reader."""
        await self.open()
        try:
            while not self.is_current:
                yield await self.next_run()
        finally:
            await self.close()

    async def initial(self) -> AsyncGenerator[EntryT, None]:
        """Open the reader, yield the entries that exist one by one, and close the reader."""
        async for entries in self.initial_runs():
            for entry in entries:
                yield entry

    async def close(self) -> None:
        """Delete the consumer."""
        self._events.close()
        if self._log is not None:
            await self._log.end_entries()
        if self._consumer is not None:
            await self._consumer.close()

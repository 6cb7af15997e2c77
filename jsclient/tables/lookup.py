"""Blocking requests of the driver about a stream. Transient failures are retried."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from .._runtime.retry import PATIENT, Retry
from ..client import JetStream
from ..errors import (
    ConfigError,
    ConsumerNotFoundError,
    JetStreamError,
    MessageNotFoundError,
    NoRespondersError,
    PermissionDeniedError,
    StreamNotFoundError,
    TooManyResultsError,
)
from ..protocol.consumers.ordered import ephemeral_config
from ..protocol.models.consumer import ConsumerConfig, ConsumerInfo, DeliverPolicy
from ..protocol.streams.direct_get import BATCH_GET_SERVER
from ..protocol.topics.position import EndCheck
from ..protocol.wire.checks import is_at_least
from ..protocol.wire.names import subjects_overlap
from ..streams.stream import Stream
from .loss_policy import LossPolicy
from .offsets import LogOffset, StreamFacts
from .session import Session, context_of, session
from .source_options import SourceOptions

if TYPE_CHECKING:
    from .listing import StreamListing

__all__ = [
    "Lookup",
    "NoSuchStreamError",
    "WorkQueueError",
    "check_filters",
    "matches",
    "matching_names",
]

T = TypeVar("T")

log: logging.Logger = logging.getLogger("jsclient.spark")

_AGAIN = 0.25  # seconds before a request is repeated because a server may lag
_FILTERS = 500  # maximum number of filters in one request
_SHORT_LIVED = 5.0  # inactivity threshold, in seconds, of the consumers that count messages


class NoSuchStreamError(ConfigError):
    """Raised when a stream does not exist."""


class WorkQueueError(ConfigError):
    """Raised when a work queue cannot be read beside its workers with these options or by this server."""


class Lookup:
    """Blocking requests about one stream.

    Every method raises `ConfigError` if the stream does not exist, permissions are missing, or the stream cannot be
    read with these options. If the server stays unavailable, a method raises the usual errors of a request.

    Args:
        options: Options with the name of one stream.
        narrows: Whether to omit filters that can match no message of the stream, as soon as `facts` knows its subjects.
        known: Whether an earlier request with these options has succeeded, so that failures are transient.
        listing: The states of many streams, for a source that reads several streams.

    Attributes:
        subjects: The filters.
        fits: Whether any filter can match a message of the stream. This is always True unless the lookup ``narrows``.
            If False, ``subjects`` are the filters of the options, and the stream must not be read with them.
        was_listed: Whether the last facts came from the listing.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        narrows: bool = False,
        known: bool = False,
        listing: StreamListing | None = None,
    ) -> None:
        self._options = options
        self._listing = listing
        self._session: Session | None = None
        self._stream: Stream | None = None
        self._policy = LossPolicy(options.fail_on_data_loss)
        self._narrows = narrows and bool(options.subjects)
        self._known = known
        self._failures = 0  # number of requests that failed and were repeated
        self._narrowed_for: object = None  # the subjects with which the filters were compared
        self.subjects: tuple[str, ...] = options.subjects
        self.fits: bool = True
        self.was_listed: bool = False

    def facts(self) -> StreamFacts:
        """Return the current state of the stream from its leader. Takes one request, or more to compare the filters."""

        async def query() -> StreamFacts:
            stream = self._stream
            info = (await self._open_stream()).cached_info if stream is None else await stream.info()
            return StreamFacts.from_info(info, context_of(self.js).connection.connects + self._failures)

        self.was_listed = False
        if self._listing is not None:
            self._listing.drop(self._options.stream)
        facts = self._run_retried(query)
        if self._narrows:
            self._narrow(facts)
        return facts

    def confirm_end(self, facts: StreamFacts, offset: LogOffset) -> StreamFacts:
        """Return the facts, or newer facts if the stream seems to end before the offset.

        The requests are repeated for up to 10 seconds until the end is certain, see `EndCheck`.
        """
        check, seq = EndCheck(), offset.last_known
        while facts.last_seq < seq:
            facts = self.facts()
            if facts.created != offset.created or check.check_end(facts, seq, time.monotonic()) is not None:
                break
            time.sleep(_AGAIN)
        return facts

    def polled_facts(self) -> StreamFacts:
        """Return the state of the stream from the listing, if there is one, and else from `facts`.

        A listed state may be as old as the current round.
        """
        listed = None if self._listing is None else self._listing.take_facts(self._options.stream)
        if listed is None:
            return self.facts()
        self.was_listed = True
        if self._narrows:
            self._narrow(listed)
        return listed

    def _narrow(self, facts: StreamFacts) -> None:
        """Omit filters that can match no message. They are compared again when the subjects of the stream change."""
        compared = (facts.created, facts.subjects, facts.copies)
        if compared == self._narrowed_for:
            return
        before = (self.subjects, self.fits)
        requested = self._options.subjects
        fitting = self._fitting(requested, facts)
        self.subjects, self.fits = fitting or requested, bool(fitting)
        if self._narrowed_for is not None and before != (self.subjects, self.fits):
            log.info(
                "stream %r has other subjects now: it is read by %s",
                facts.name,
                "the filters " + ", ".join(fitting) if fitting else "no filter of option 'subjects'",
            )
        self._narrowed_for = compared

    def stream_names(self) -> list[str]:
        """Return the names of all streams, with one request for each 1,024 streams. A new lookup does not retry."""

        async def query() -> list[str]:
            return [name async for name in self._opened().js.stream_names()]

        return self._run_retried(query)

    def last_matching(self) -> int:
        """Return the sequence of the last matching message, from the leader, or 0 if no message matches.

        Takes one request per filter.
        """

        async def query(stream: Stream) -> int:
            last = 0
            for subject in self.subjects:
                with contextlib.suppress(MessageNotFoundError):
                    last = max(last, (await stream.get_last_message(subject)).seq)
            return last

        return self.run(query)

    def next_matching(self, seq: int) -> int:
        """Return the sequence of the first matching message at or after ``seq``, from the leader, or 0 for no match.

        Takes one request per filter.
        """

        async def query(stream: Stream) -> int:
            sequences: list[int] = []
            for subject in self.subjects:
                with contextlib.suppress(MessageNotFoundError):
                    sequences.append((await stream.get_next_message(subject, seq)).seq)
            return min(sequences, default=0)

        return self.run(query)

    def stored_at(self, seq: int) -> str | None:
        """Return the time when a message was stored, in ISO 8601, or None if the message was removed.

        Takes one request to the leader.
        """

        async def query(stream: Stream) -> str | None:
            with contextlib.suppress(MessageNotFoundError):
                return (await stream.get_message(seq)).time.isoformat()
            return None

        return self.run(query)

    def rest(self, seq: int, facts: StreamFacts) -> int:
        """Return the number of matching messages at or after ``seq``. The number may lag slightly.

        Takes one request, or three if a direct get cannot be used.
        """

        async def count(stream: Stream) -> int:
            if not self._gets(facts):
                return (await self._count_consumer(stream, opt_start_seq=seq)).num_pending
            subject = self.subjects[0] if self.subjects else None
            async for message in stream.get_batch(1, seq=seq, subject=subject):
                return (message.num_pending or 0) + 1
            return 0

        return 0 if seq > facts.last_seq else self.run(count)

    def counts_cheaply(self, facts: StreamFacts) -> bool:
        """Return whether `rest` takes one request and the messages can be read by direct get."""
        self._run_retried(self._open_stream)
        return self._gets(facts)

    def sequence_at(self, moment: str, facts: StreamFacts) -> int:
        """Return the sequence of the first message stored at or after ``moment``, or ``last_seq`` + 1 without one."""
        if not facts.messages or (facts.last_time and facts.last_time < datetime.fromisoformat(moment)):
            return facts.last_seq + 1
        return self.run(lambda stream: self._sequence_at(stream, moment, facts))

    def accept(self, error: JetStreamError | None) -> bool:
        """Return True if there is no error. Otherwise raise it, or log it and return False, see `LossPolicy`."""
        return self._policy.accept(error)

    def is_lost(self, facts: StreamFacts, since: datetime | None) -> bool:
        """Return whether a limit of the stream may have removed its oldest messages, see `Removal.is_harmless`."""
        return not facts.removal.is_harmless(since, context_of(self.js).connection.max_payload)

    def drive(self, counting: Generator[int, int, T], facts: StreamFacts) -> T:
        """Run a generator of `ranges` to its end, send it the counts that it requests, and return its result."""
        try:
            ask = next(counting)
            while True:
                ask = counting.send(self.rest(ask, facts))
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def read_mode(self, facts: StreamFacts) -> str:
        """Return the read mode for the executors, see `ReadSpec`. Also checks what can be checked on the driver."""
        read_mode = self._options.read_mode
        self._check_filters(facts)
        if facts.work_queue and read_mode == "consumer":
            raise WorkQueueError(
                f"option 'readMode' is 'consumer', but stream {facts.name!r} is a work queue, which allows no reader "
                "beside its workers: use 'readMode' = 'direct' to look at it, or 'mode' = 'queue' to work on it"
            )
        if read_mode == "direct":
            self._check_gets(facts, "option 'readMode' is 'direct'")
        elif facts.work_queue:
            self._check_gets(facts, f"stream {facts.name!r} is a work queue")
        else:
            # Only creating a consumer shows whether the user may create consumers on the executors.
            try:
                self.run(lambda stream: self._count_consumer(stream, opt_start_seq=1))
            except ConfigError as error:
                if read_mode == "consumer" or not self.counts_cheaply(facts):
                    raise
                log.info("stream %r is read by direct get: %s", facts.name, error)
            else:
                return read_mode
        return "direct"

    def _check_filters(self, facts: StreamFacts) -> None:
        """Raise `ConfigError` for a filter that no message can match, because a read would silently wait forever.

        If the stream copies other streams, the check is not certain, and only logs a warning.
        """
        for subject in self.subjects:
            if self._fits(subject, facts):
                continue
            stored = ", ".join(facts.subjects) or "those of its origin"
            stream = f"stream {facts.name!r}, whose messages have the subjects {stored}"
            if facts.copies:
                log.warning("option 'subjects': %r matches no message of %s", subject, stream)
            else:
                raise ConfigError(
                    f"option 'subjects': {subject!r} can match no message of {stream}: correct the filter or 'stream'"
                )

    def fitting(self, facts: StreamFacts) -> tuple[str, ...]:
        """Return the filters that can match a message of the stream. If it copies other streams, return all filters."""
        return self._fitting(self.subjects, facts)

    def _fitting(self, subjects: tuple[str, ...], facts: StreamFacts) -> tuple[str, ...]:
        if facts.copies:
            return subjects
        others = [subject for subject in subjects if not _takes(facts, subject)]
        stored = self._stored(others, facts) if others else frozenset()
        return tuple(subject for subject in subjects if subject in stored or _takes(facts, subject))

    def _fits(self, subject: str, facts: StreamFacts) -> bool:
        return _takes(facts, subject) or bool(self._stored([subject], facts))

    def _stored(self, subjects: Sequence[str], facts: StreamFacts) -> frozenset[str]:
        """Return the filters that a stored message matches, even if the stream no longer accepts their subjects.

        Usually there are no such filters, which takes one request. Otherwise, or without direct gets, this takes one
        request for each filter.
        """
        at_once = len(subjects) > 1 and facts.direct and is_at_least(self.js.server_version, BATCH_GET_SERVER)

        async def query(stream: Stream) -> frozenset[str]:
            stored: set[str] = set()

            async def ask(subject: str) -> None:
                with contextlib.suppress(MessageNotFoundError):
                    await stream.get_last_message(subject)
                    stored.add(subject)

            for first in range(0, len(subjects), _FILTERS):
                filters = subjects[first : first + _FILTERS]
                # Usually no filter matches. A single request finds that out, and saves one request for each filter.
                if not at_once or await _any_stored(stream, filters):
                    await asyncio.gather(*map(ask, filters))
            return frozenset(stored)

        return self.run(query) if facts.messages else frozenset()

    def _check_gets(self, facts: StreamFacts, because: str) -> None:
        version = self.js.server_version
        refused = WorkQueueError if facts.work_queue else ConfigError
        if not facts.direct:
            raise refused(
                f"{because}, but its direct gets are not allowed: update stream {facts.name!r} with allow_direct = true"
            )
        if not is_at_least(version, BATCH_GET_SERVER):
            instead = "'mode' = 'queue'" if facts.work_queue else "'readMode' = 'consumer'"
            raise refused(f"{because}, which needs nats-server 2.11; {version} is connected: use {instead}")
        if len(self.subjects) > 1:
            raise refused(
                f"{because}, but option 'subjects' has more than one filter: use one source for each, and union them"
            )

    @property
    def js(self) -> JetStream:
        """The client. Use it only in coroutines that are passed to `run`."""
        return self._opened().js

    def run(self, work: Callable[[Stream], Awaitable[T]]) -> T:
        """Call a function with the stream, and return the result of its coroutine. Transient failures are retried."""

        async def ask() -> T:
            return await work(await self._open_stream())

        return self._run_retried(ask)

    async def _open_stream(self) -> Stream:
        if self._stream is None:
            self._stream = await self._opened().js.stream(self._options.stream)
        return self._stream

    def _gets(self, facts: StreamFacts) -> bool:
        recent = is_at_least(self.js.server_version, BATCH_GET_SERVER)
        return facts.direct and recent and len(self.subjects) < 2

    async def _sequence_at(self, stream: Stream, moment: str, facts: StreamFacts) -> int:
        if facts.direct and is_at_least(self.js.server_version, BATCH_GET_SERVER):
            # The leader has reported a message at or after this time. If a replica has none, it lags, so ask again.
            for _ in range(8):
                async for message in stream.get_batch(1, start_time=moment):
                    return message.seq
                await asyncio.sleep(_AGAIN)
            return facts.last_seq + 1
        if facts.work_queue:
            raise ConfigError(
                f"a start or end by time needs direct gets on a work queue: update stream {facts.name!r} with "
                "allow_direct = true, or give a sequence"
            )
        return (await _short_lived(stream, opt_start_time=moment)).delivered.stream_seq + 1

    async def _count_consumer(self, stream: Stream, **where: object) -> ConsumerInfo:
        return await _short_lived(stream, **where, filter_subjects=list(self.subjects) or None)

    def _opened(self) -> Session:
        if self._session is None or self._session.js.is_closed:
            self._session, self._stream = session(self._options.connect), None
        return self._session

    def _run_retried(self, ask: Callable[[], Awaitable[T]]) -> T:
        return self._opened().run(self._retried(ask))

    async def _retried(self, ask: Callable[[], Awaitable[T]]) -> T:
        retry = Retry(PATIENT)
        while True:
            try:
                return await ask()
            except JetStreamError as error:
                # Until a request has succeeded, a wrong option is likelier than an unavailable server, so don't retry.
                known = self._known or self._stream is not None
                if (explained := self._explained(error, known=known)) is not None:
                    # Drop the cause, because the text is complete, and Spark would print the whole chain of errors.
                    raise explained from None
                if not known or not await retry.again(error):
                    raise
                self._failures += 1
                log.warning("stream %r: %s; asking again", self._options.stream, error)

    def _explained(self, error: JetStreamError, *, known: bool) -> ConfigError | None:
        """Return the `ConfigError` for an error that the options may have caused, or None for any other error.

        ``known`` says whether an earlier request has succeeded.
        """
        name, where = self._options.stream, ", ".join(self._options.connect.servers)
        if isinstance(error, StreamNotFoundError):
            return NoSuchStreamError(
                f"option 'stream': stream {name!r} does not exist on {where}: create it first; "
                "is it in another account or 'domain'?"
            )
        if isinstance(error, PermissionDeniedError):
            return ConfigError(
                f"the user of the options may not {error.operation} to {error.subject!r}, which reading stream "
                f"{name!r} needs: allow it, or give another user ('credentialsFile', 'user', 'nkeySeedFile')"
            )
        if isinstance(error, NoRespondersError) and not known:
            return ConfigError(
                f"option 'servers': JetStream does not answer on {where}: is it enabled there and for this account, "
                "and are 'domain' and 'prefix' right?"
            )
        return None


def _takes(facts: StreamFacts, subject: str) -> bool:
    """Return whether the stream accepts messages that match a filter."""
    return any(subjects_overlap(subject, stored) for stored in facts.subjects)


async def _any_stored(stream: Stream, subjects: Sequence[str]) -> bool:
    try:
        async for _ in stream.get_last_messages(subjects, batch=1):
            return True
    except TooManyResultsError:
        return True
    return False


def check_filters(options: SourceOptions, fitting: Mapping[str, tuple[str, ...]]) -> None:
    """Raise `ConfigError` for a filter that can match no message of any stream, or log a warning with a pattern.

    ``fitting`` maps the name of each stream to the filters that can match its messages.
    """
    matched = {subject for subjects in fitting.values() for subject in subjects}
    for subject in options.subjects:
        if subject in matched:
            continue
        problem = (
            f"option 'subjects': {subject!r} can match no message of the streams {', '.join(sorted(fitting))}"
        )
        if options.stream_pattern is None:
            raise ConfigError(f"{problem}: correct the filter or 'stream'")
        log.warning("%s, which match option 'streamPattern' now", problem)


def matching_names(options: SourceOptions) -> tuple[str, ...]:
    """Return the names of the streams that match ``options.stream_pattern`` now, in order."""
    assert options.stream_pattern is not None
    names = Lookup(options.for_stream(options.stream_pattern)).stream_names()
    return tuple(sorted(name for name in names if matches(name, options.stream_pattern)))


def matches(name: str, pattern: str) -> bool:
    """Return whether the name of a stream matches a pattern, in which ``*`` stands for any characters."""
    return fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


async def _short_lived(stream: Stream, **fields: object) -> ConsumerInfo:
    """Create a consumer that only counts messages, delete it, and return its info."""
    by_time = "opt_start_time" in fields
    config = ConsumerConfig(
        name=f"spark_{secrets.token_hex(8)}",
        deliver_policy=DeliverPolicy.BY_START_TIME if by_time else DeliverPolicy.BY_START_SEQUENCE,
        **fields,  # type: ignore[arg-type]
    )
    consumer = await stream.create_consumer(ephemeral_config(config, _SHORT_LIVED))
    with contextlib.suppress(ConsumerNotFoundError, PermissionDeniedError):
        await consumer.delete()  # if this fails, the consumer expires
    return consumer.cached_info

"""`StreamLog`, which makes a stream on a server, or some of its subjects, available as a log."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from .._runtime.calls import find_streams
from .._runtime.context import Closable, Context
from .._runtime.publish import publish, publish_now
from .._runtime.retry import is_transient
from .._runtime.tasks import Tasks
from ..consumers.message import frames_of
from ..errors import (
    ConfigError,
    ConsumerDeletedError,
    ConsumerLimitError,
    ConsumerNotFoundError,
    DisconnectedError,
    JetStreamError,
    MessageNotFoundError,
    NoMatchingStreamError,
    NoRespondersError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
    StreamExistsError,
    StreamNotFoundError,
)
from ..protocol.consumers.ordered import ephemeral_config
from ..protocol.consumers.status import Ending
from ..protocol.events import Event
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import RetentionPolicy, StreamConfig
from ..protocol.streams.direct_get import BATCH_GET_SERVER
from ..protocol.topics.links import MissingRule
from ..protocol.topics.position import CoveredEnd, Extent, Position
from ..protocol.topics.record import Kind, Record
from ..protocol.topics.record_codec import DeliveredRecords, kind_headers, republished_subject, stored_record
from ..protocol.wire.checks import is_at_least
from ..protocol.wire.codec import from_wire
from ..protocol.wire.headers import linked_block
from ..protocol.wire.names import check_filter_subject, has_wildcard, subject_matches, subjects_overlap
from ..protocol.wire.units import format_time_ns, parse_time_ns
from ..streams.api import StreamManager
from ..streams.stream import Stream
from .consumer_feed import ConsumerFeed, Doubted
from .consumers import Consumers
from .feeds import RepublishFeed
from .log import Feed, Log, Page, Push
from .stall_watch import StreamStallWatch

__all__ = ["MAX_BYTES", "StreamLog", "find_log", "find_stream", "read_extent", "stream_for"]

_SINGLE: Final = 100  # records that are read one by one for a page
_FETCH: Final = 5000  # records that are fetched together if direct gets are unavailable
_LONG_AGE: Final = 60.0  # after this many seconds, a delivery is no longer in flight
_INACTIVE: Final = 5.0  # seconds after which the server removes an unused consumer
_OTHERS: Final = 2  # maximum number of consumers that replace a consumer lost by a server
_GUESS: Final = 0.25  # share of the timeout that the likeliest stream has to answer
_PLACEHOLDER: Final = re.compile(r"\{\{[^.]*\}\}|\$[0-9]+")  # in the destination of a subject transform
_PUSHES: Final = "jsc.push"  # prefix of the subjects to which streams created here republish
_READABLE: Final = 40  # characters of the subject that become part of a stream's name
MAX_BYTES: Final = 8 * 1024 * 1024  # limit of a direct get, whose answers are all kept in memory


class StreamLog(Log):
    """A log whose records are the messages of a stream that match a subject. Returned by `Topic.log`, `Topic.create`.

    Use it for single requests, such as `last` and `extent`. To read records one after the other, use the readers of
    `Topic`.

    Attributes:
        context: The connection and settings, shared with the other objects of a `JetStream`. For internal use.
        handle: The stream.
        known_extent: Where the stream began and ended when the log was looked up. None if a reader must request it.
        newest_only: True if only the latest record of each subject is needed. Missing older records are then ignored.
        origin: Identifies the stream in `Record.origin`. None until the extent has been requested.
    """

    def __init__(self, context: Context, stream: Stream, subject: str = ">") -> None:
        self.stream: str = stream.name
        self.subject: str = check_filter_subject(subject)
        self.is_one_subject: bool = not has_wildcard(subject)
        self.tasks: Tasks = context.tasks
        self.open: set[Closable] = context.open
        self.context = context
        self.handle: Stream = stream
        self.origin: Position | None = None
        self.newest_only = False
        self.known_extent: Extent | None = None
        self._covered = CoveredEnd()
        self._consumers = Consumers(context, stream)

    @property
    def problem(self) -> str:
        return self.context.connection.problem

    @property
    def config(self) -> StreamConfig:
        """The configuration of the stream, as last received."""
        return self.handle.config

    @property
    def _linked(self) -> bool:
        """Whether records may name their predecessors. Sequences of other streams are meaningless here."""
        return self.is_one_subject and not self.handle.config.sources

    def emit(self, event: Event) -> None:
        self.context.emit(event)

    def report(self, error: BaseException) -> None:
        self.context.report(error)

    async def wait_ready(self) -> None:
        await self.context.connection.wait_connected(None)

    async def extent(self) -> Extent:
        limit = self.handle.config.max_msgs_per_subject or 0
        counts = {"subjects_filter": self.subject} if self.is_one_subject and limit > 0 else None
        info = self.context.api.stream_info(self.stream)
        answer = await self.context.call(info, counts, what="stream info")
        extent = self.read_extent(answer)
        stored = (answer["state"].get("subjects") or {}).get(self.subject, 0) if counts else 0
        return await self._from_own_first(extent) if counts and stored >= limit else extent

    def read_extent(self, answer: Mapping[str, Any]) -> Extent:
        """Parse the extent in a stream info response, or raise `ProtocolError`. For internal use."""
        extent = read_extent(self.stream, answer, self.context.connection.connects)
        if self.origin is None or self.origin.incarnation != extent.incarnation:
            self.origin = Position(self.stream, extent.incarnation, 0)
        return extent

    async def _from_own_first(self, extent: Extent) -> Extent:
        """Let the extent begin with the subject's first record, since the limit may have removed earlier records."""
        try:
            first = await self.handle.get_next_message(self.subject)
        except MessageNotFoundError:
            return extent
        return replace(extent, first_seq=first.seq, first_time_ns=first.time_ns)

    async def history(self, since: int, limit: int, max_bytes: int) -> Page:
        if self.reads_directly:
            batch = self.handle.get_batch(
                limit, seq=since + 1, subject=self.subject, max_bytes=min(max_bytes, MAX_BYTES)
            )
            records: list[Record] = []
            try:
                async for part in batch.records(linked=self._linked, origin=self.origin):
                    records += part
                page = Page(records, more=batch.num_pending > 0)
            except (ProtocolError, RequestTimeoutError, DisconnectedError):
                if not records:
                    raise
                page = Page(records, more=True)  # the page is complete up to its last record
            except NoRespondersError as error:
                page = await self._without_direct_gets(error, since, limit, max_bytes)
            first = page.records[0] if page.records else None
            follows = first is not None and (first.seq == since + 1 or 0 < (first.previous or 0) <= since)
        else:
            page = await self._after(since, limit, max_bytes)
            follows = bool(page.records)
        return page if follows else await self._checked(page, since)

    async def _without_direct_gets(
        self, error: NoRespondersError, since: int, limit: int, max_bytes: int
    ) -> Page:
        """Read a page with a consumer, because direct gets are no longer allowed or the stream can't be reached."""
        await self.extent()  # raises if the stream was deleted
        try:
            return await self._after(since, limit, max_bytes)
        except PermissionDeniedError:
            raise error from None

    async def _after(self, since: int, limit: int, max_bytes: int) -> Page:
        try:
            return await self._fetched(
                limit, max_bytes, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=since + 1
            )
        except ConsumerLimitError as error:
            return await self._one_by_one(error, since, limit, max_bytes)

    async def _one_by_one(self, error: ConsumerLimitError, since: int, limit: int, max_bytes: int) -> Page:
        """Read a page with a request for each record, because the stream allows no further consumer."""
        records: list[Record] = []
        while len(records) < min(limit, _SINGLE) and max_bytes > 0:
            try:
                message = await self.handle.get_next_message(self.subject, since + 1)
            except MessageNotFoundError:
                return Page(records)
            except PermissionDeniedError:
                raise error from None
            records.append(stored_record(message, linked=self._linked, origin=self.origin))
            since, max_bytes = message.seq, max_bytes - records[-1].size
        return Page(records, more=True)

    @property
    def reads_directly(self) -> bool:
        """Whether records are read with direct gets. These need no consumer, but require nats-server 2.11 or later."""
        version = self.context.connection.server_version
        return bool(self.handle.config.allow_direct) and is_at_least(version, BATCH_GET_SERVER)

    async def _checked(self, page: Page, since: int) -> Page:
        """Check a page with the leader, since the replica that sent it may lag or be a mirror with fewer records."""
        end = 0
        try:
            if not page.records:
                end = self._covered.reported(await self.extent(), self.context.connection.now())
            first = await self.handle.get_next_message(self.subject, since + 1)
        except MessageNotFoundError:
            return page._replace(up_to=end)
        except PermissionDeniedError:
            return page
        if page.records and page.records[0].seq <= first.seq:
            return page
        return Page([stored_record(first, linked=self._linked, origin=self.origin)], more=True)

    async def _fetched(self, limit: int, max_bytes: int = MAX_BYTES, **start: Any) -> Page:
        """Read a page with a temporary consumer. If a restarted server has forgotten it, create another one."""
        for _ in range(_OTHERS):
            with suppress(ConsumerDeletedError, ConsumerNotFoundError):
                return await self._fetched_once(limit, max_bytes, **start)
        return await self._fetched_once(limit, max_bytes, **start)

    async def _fetched_once(self, limit: int, max_bytes: int, **start: Any) -> Page:
        # Keep this prefix, because users may have permissions for consumers whose names begin with it.
        name = f"jsc-{secrets.token_hex(8)}"
        config = ConsumerConfig(name=name, filter_subject=self.subject, **start)
        consumer = await self._consumers.create(ephemeral_config(config, _INACTIVE))
        try:
            batch = await consumer.fetch(
                min(limit, _FETCH), max_bytes=min(max_bytes, MAX_BYTES), no_wait=True
            )
            if not batch and batch.ending is Ending.MAX_BYTES:
                batch = await consumer.fetch(1, no_wait=True)
            if batch.error is not None and not batch:
                raise batch.error
        finally:
            await consumer.close()
            with suppress(JetStreamError):  # if this call fails, the server removes the unused consumer
                await self._consumers.delete(name)
        records = DeliveredRecords(linked=self._linked, origin=self.origin).read_frames(frames_of(batch))
        return Page(records, more=bool(batch) and batch[-1].metadata.num_pending > 0)

    async def after_time(self, time_ns: int, *, allow_truncated: bool = False) -> Position:
        extent = await self.extent()
        # Add a nanosecond, because the server's start time is inclusive.
        first = await self._first_at(time_ns + 1)
        records = () if first is None else (first,)
        return extent.after_time(time_ns, records, allow_truncated=allow_truncated) or extent.end

    async def _first_at(self, time_ns: int) -> tuple[int, int] | None:
        """Return sequence and time stamp of the first record stored at a time or later."""
        start = format_time_ns(time_ns)
        if self.reads_directly:
            async for message in self.handle.get_batch(1, start_time=start, subject=self.subject):
                return message.seq, message.time_ns
        # A consumer must not start in the future, so first ask the leader for the time of the last record.
        last = await self.last()
        if last is None or last.time_ns < time_ns:
            return None
        page = await self._fetched(1, deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=start)
        return (page.records[0].seq, page.records[0].time_ns) if page.records else None

    async def last(self, subject: str | None = None) -> Record | None:
        try:
            message = await self.handle.get_last_message(self.subject if subject is None else subject)
        except MessageNotFoundError:
            return None
        return stored_record(message, linked=self._linked, origin=self.origin)

    async def append(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        kind: Kind = Kind.VALUE,
        headers: Mapping[str, str] | None = None,
        expected: int | None = None,
        msg_id: str | None = None,
    ) -> Position:
        to = self.own_subject(subject)
        # Request the extent before publishing, so that this request can't fail once the record is stored.
        origin = self.origin or (await self.extent()).end
        ack = await publish(
            self.context,
            to,
            data,
            headers={**(headers or {}), **kind_headers(kind)},
            expected_stream=self.stream,
            expected_last_subject_seq=expected,
            msg_id=msg_id,
        )
        return origin.at(ack.seq)

    def append_now(
        self,
        data: bytes,
        *,
        expected: int,
        msg_id: str,
        timeout: float,
        stored: Callable[[int | JetStreamError], None],
    ) -> bool:
        block = linked_block(self.stream, expected, msg_id)
        return publish_now(self.context, self.own_subject(None), data, block, timeout=timeout, stored=stored)

    def feed(self, push: Push) -> Feed:
        if push not in ("auto", "consumer", "republish", None):
            raise ConfigError(f"push is {push!r:.40}: 'auto', 'consumer', 'republish' or None is needed")
        # With several subjects, use a consumer, because republished records are only ordered within each subject.
        by_consumer = push == "consumer" or (push == "auto" and not self.is_one_subject)
        subject = None if by_consumer else republished_subject(self.handle.config.republish, self.subject)
        if subject is not None:
            return RepublishFeed(self.context, self.stream, subject, by_subject=not self.is_one_subject)
        if push == "republish":
            raise ConfigError(
                f"stream {self.stream!r} does not republish {self.subject!r} with its payloads: use push='consumer'"
            )
        return ConsumerFeed(
            self.context, self.handle, self.subject, linked=self._linked, doubted=self._doubted
        )

    def stall_watch(
        self,
        *,
        progress: Callable[[], int],
        waits: Callable[[], bool],
        failure: Callable[[], JetStreamError | None] = lambda: None,
    ) -> StreamStallWatch | None:
        return StreamStallWatch(self.context, self.stream, progress=progress, waits=waits, failure=failure)

    def missing_rule(self, feed: Feed, *, allow_truncated: bool = False) -> MissingRule:
        config = self.handle.config
        per_subject = (config.max_msgs_per_subject or 0) > 0 or bool(config.allow_msg_ttl)
        return MissingRule(
            by_subject=feed.by_subject,
            holes_are_deletions=not per_subject,
            allow_truncated=allow_truncated,
            newest_only=self.newest_only,
        )

    @property
    def _doubted(self) -> Doubted:
        """Which jumps of the sequence may hide records that were removed while other deliveries were in flight."""
        if self.newest_only:
            return "none"
        config = self.handle.config
        per_subject = config.max_msgs_per_subject or 0
        if (
            any((limit or 0) > 0 for limit in (config.max_msgs, config.max_bytes))
            or (0 < (config.max_age or 0) < _LONG_AGE or config.allow_msg_ttl)
            or per_subject == 1
        ):
            return "all"
        # A record is removed only after several newer records of its subject have been stored. Some of these are still
        # pending at the first delivery after the jump, so a jump without pending messages hides nothing.
        return "late" if per_subject > 0 else "none"


def read_extent(stream: str, answer: Mapping[str, Any], connects: int) -> Extent:
    """Parse the extent in a stream info response. Raises `ProtocolError`."""
    try:
        state = answer["state"]
        return Extent(
            stream,
            answer["created"],
            state["first_seq"],
            state["last_seq"],
            _stamp(state.get("first_ts")),
            _stamp(state.get("last_ts")),
            answer["config"].get("num_replicas", 1),
            connects,
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the info of stream {stream!r} has no {error}") from None


def _stamp(text: Any) -> int:
    return max(parse_time_ns(text), 0) if isinstance(text, str) else 0


async def find_log(
    context: Context, subject: str, stream: str | None = None, *, likely: str | None = None
) -> StreamLog:
    """Return the log of a subject, which may contain wildcards. If no stream is named, look it up.

    ``likely`` is the stream to try first. If it stores the whole subject, no other stream can store any of it, because
    the server refuses streams whose subjects overlap. The lookup takes at most one request timeout.

    Raises:
        NoMatchingStreamError: No stream or more than one stores the subject.
        StreamNotFoundError: The named stream doesn't exist.
        ConfigError: The named stream doesn't store the subject.
    """
    now = context.connection.now
    deadline = now() + context.timeout
    if stream is None and likely is not None:
        log = await _try_likely(context, subject, likely)
        if log is not None:
            return log
    if stream is None:
        names = await find_streams(context, subject, timeout=deadline - now())
        if len(names) != 1:
            raise NoMatchingStreamError(subject, names)
        stream = names[0]
    return await _log_in(context, subject, stream, timeout=deadline - now())


async def _try_likely(context: Context, subject: str, stream: str) -> StreamLog | None:
    """Return the log in this stream, or None if the stream lacks part of the subject or does not answer now."""
    try:
        log = await _log_in(context, subject, stream, timeout=context.timeout * _GUESS)
    except (ConfigError, StreamNotFoundError, PermissionDeniedError):
        return None  # the event `PermissionDenied` reports a refusal as well
    except JetStreamError as error:
        if not is_transient(error):
            raise
        return None
    return log if _covers(log.config, subject) else None


async def _log_in(context: Context, subject: str, stream: str, *, timeout: float) -> StreamLog:
    answer = await context.call(context.api.stream_info(stream), timeout=timeout, what="stream info")
    info = from_wire(StreamInfo, answer)
    config = info.config
    renamed = config.subject_transform
    if renamed is not None and subject_matches(renamed.src or ">", subject):
        stored = _PLACEHOLDER.sub("*", renamed.dest or ">")
        if not subjects_overlap(stored, subject):
            raise ConfigError(
                f"stream {stream!r} stores {subject!r} under another subject: use one that matches {stored!r}"
            )
    anything = config.mirror or config.sources or renamed
    if not anything and not any(subjects_overlap(published, subject) for published in config.subjects or ()):
        raise ConfigError(f"stream {stream!r} does not hold {subject!r}: use another stream or subject")
    log = StreamLog(context, Stream(context, info), subject)
    extent = log.read_extent(answer)
    if (config.max_msgs_per_subject or 0) <= 0:  # with a limit, the extent depends on the subject's records
        log.known_extent = extent
    return log


def _covers(config: StreamConfig, subject: str) -> bool:
    """Return whether the stream stores every subject that matches this subject."""
    return any(subject_matches(published, subject) for published in config.subjects or ())


async def stream_for(
    manager: StreamManager, subject: str, name: str | None, fields: dict[str, Any]
) -> Stream:
    """Return the stream that has the subject. Create it if it is missing. An existing stream is never changed."""
    if name is None:
        names = await find_streams(manager._context, subject)  # noqa: SLF001  shared by all handles of a connection
        if len(names) > 1:
            raise NoMatchingStreamError(subject, names)
        name = names[0] if names else _stream_name(subject)
    try:
        stream = await manager.stream(name)
    except StreamNotFoundError:
        # A destination can't contain "*". Since ">" matches all subjects of the stream, use it as the source.
        source = ">" if "*" in subject.split(".") else subject
        republish = {"src": source, "dest": f"{_PUSHES}.{source}"}
        settings = {"allow_direct": True, "republish": republish, **fields}
        try:
            stream = await manager.create_stream(name, subjects=[subject], **settings)
        except StreamExistsError:
            stream = await manager.stream(name)  # another client has created the stream in the meantime
    config = stream.config
    if not _covers(config, subject):
        raise ConfigError(f"stream {name!r} does not hold {subject!r}: use another stream or subject")
    check_retention(config)
    return stream


def check_retention(config: StreamConfig) -> None:
    """Raise `ConfigError` if the stream removes messages that its consumers have acked."""
    if config.retention not in (None, RetentionPolicy.LIMITS):
        raise ConfigError(
            f"retention of stream {config.name!r} is {config.retention}: 'limits' is needed, because records must be "
            "kept after they were read; use Topic.work"
        )


def _stream_name(subject: str) -> str:
    """Return the name of the stream created for a subject, which is the same in every process and unique to it."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", subject)[:_READABLE]
    return f"KIT_{readable}_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"


async def find_stream(context: Context, name: str) -> Stream:
    """Return the stream with this name. Raises `StreamNotFoundError` or any other error of a request."""
    answer = await context.call(context.api.stream_info(name), what="stream info")
    return Stream(context, from_wire(StreamInfo, answer))

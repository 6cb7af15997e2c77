"""The offsets of log mode, and the checks for ``failOnDataLoss`` whether a stream still has the messages after them.

Spark stores offsets as JSON and compares them as text. If there are no new messages, a source must therefore return
exactly the same JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec

from ..errors import ConfigError, HistoryTruncatedError, JetStreamError, PositionInvalidError
from ..protocol.models.stored_subjects import stored_subjects
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import RetentionPolicy
from .ranges import SequenceRange
from .removal import Removal
from .source_options import Place

__all__ = [
    "LogOffset",
    "LostHeadError",
    "StoredMark",
    "StreamFacts",
    "StreamOffsets",
    "another_stream",
    "check_not_future",
    "cut_short",
    "deleted",
    "lost_head",
    "nothing_fits",
    "other_messages",
    "unknown_stream",
]


T = TypeVar("T")

_Sequence = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class StoredMark(msgspec.Struct, frozen=True, array_like=True):
    """A message that identifies the content of a stream.

    If the stream later has another message at this sequence, the stream was restored from an older copy.
    """

    seq: _Positive
    time: str  # the time when the message was stored, in ISO 8601 with microseconds

    @property
    def following(self) -> str:
        """The time one microsecond after the message."""
        return (datetime.fromisoformat(self.time) + timedelta(microseconds=1)).isoformat()


class LogOffset(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Position up to which a stream is read, inclusive. A batch covers (start.seq, end.seq]."""

    seq: _Sequence  # stream sequence, 0 before the first message
    # When the stream was created, as ``StreamInfo.created.isoformat()``. This distinguishes the stream from another
    # stream that is created later under the same name.
    created: str
    init: bool = False  # true at the start of a new query, before it has processed any message
    # In an end offset: no message of the batch up to this sequence matches a filter, so tasks start reading after it. 0
    # if unknown.
    free: _Sequence = 0
    # In an end offset: the first sequence of each task of the batch, or () if unknown. The sink's message ids contain
    # the number of the task, so a replay must split the batch at the same sequences to produce the same ids, even if
    # the options or the stream have changed.
    cuts: tuple[_Positive, ...] = ()
    owner: str = ""  # random name of the query, stored in its progress consumer, or "" before it has a name
    # True if several streams are read and no message of this stream up to ``seq`` matched a filter. The stream may then
    # be deleted or recreated without losing data.
    idle: bool = False
    rewound: bool = False  # true if a rewind added an empty batch, which ends at this offset
    # The last message of the stream when the offset was recorded, or None if unknown. If a different message has this
    # sequence later, the stream was restored.
    mark: StoredMark | None = None

    def __post_init__(self) -> None:
        ends = (*self.cuts, self.seq + 1)
        if any(one >= other for one, other in pairwise(ends)):
            raise ValueError("'cuts' are not in ascending order up to 'seq'")

    @property
    def since(self) -> datetime | None:
        """The time after which all messages after this offset were stored, or None if unknown."""
        return datetime.fromisoformat(self.mark.time) if self.mark and self.mark.seq <= self.seq else None

    @property
    def last_known(self) -> int:
        """The last sequence that the query has read or seen.

        The start of a new query does not count, because it may be after the current end of the stream.
        """
        return max(0 if self.init else self.seq, self.mark.seq if self.mark else 0)

    @property
    def parts(self) -> list[SequenceRange]:
        """The ranges of the tasks of the batch that ends here, or [] if unknown."""
        ends = (*self.cuts, self.seq + 1)
        return [SequenceRange(first, following - 1) for first, following in pairwise(ends)]

    @property
    def is_start(self) -> bool:
        """Whether a batch that ends here reads no message of the stream. The next batch begins to read the stream."""
        return self.init or self.idle

    @property
    def first(self) -> LogOffset:
        """The recorded start of the batch that ends here.

        If the start is unknown, it is this offset itself, so that the batch has no message to read.
        """
        return LogOffset(self.cuts[0] - 1, self.created, init=True, mark=self.mark) if self.cuts else self

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> LogOffset:
        """Parse an offset from a checkpoint. Raises `PositionInvalidError` if it is not valid in log mode."""
        if "streams" in offset and "seq" not in offset:
            names = ", ".join(sorted(StreamOffsets.of_json(offset).streams)) or "none yet"
            raise PositionInvalidError(
                f"the checkpoint is of a source of several streams ({names}), but option 'stream' has one: use a new "
                "checkpoint, or 'streamPattern' with the name of that one"
            )
        return _converted(offset, cls)


class StreamOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offset of a source of several streams, with a `LogOffset` for the name of each stream.

    When a stream joins the source without messages, the end offset of that batch includes it, and the next batch begins
    to read it. A batch therefore reads the streams that have cuts in its end offset, or that are in both of its
    offsets.
    """

    streams: dict[str, LogOffset]
    # In an end offset, the maximum number of sequences that one task reads from several streams. With 0, each task
    # reads a single stream.
    together: _Sequence = 0

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "streams": {name: self.streams[name].to_json() for name in sorted(self.streams)}
        }
        return fields | ({"together": self.together} if self.together else {})

    @classmethod
    def of_json(cls, offset: Mapping[str, Any]) -> StreamOffsets:
        """Parse an offset from a checkpoint. Raises the same errors as `LogOffset.of_json`."""
        return _converted(offset, cls)


def _converted(offset: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(dict(offset), kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise PositionInvalidError(
            f"the checkpoint has an offset that is not valid in mode 'log' ({error}): {str(dict(offset))[:200]}; "
            "was it made in another mode, by another source, or by a newer version?"
        ) from None


_CONTINUES = "with option 'failOnDataLoss' = 'false' the query continues"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A snapshot of a stream's state and configuration."""

    name: str
    created: str  # when the stream was created, in the format of `LogOffset.created`
    first_seq: int  # sequence of the oldest message, ``last_seq`` + 1 if the stream is empty
    last_seq: int  # the last sequence assigned
    messages: int  # number of stored messages
    bytes: int  # total size of the stored messages
    gaps: int  # number of deleted sequences between first and last
    direct: bool  # true if the stream allows direct gets
    work_queue: bool  # true if messages are removed when they are acked
    last_time: datetime | None = None  # when the last message was stored
    seen_at: datetime | None = None  # when the snapshot was taken, by the server's clock
    subjects: tuple[str, ...] = ()  # subjects of stored messages, after subject transforms
    # True if the stream copies other streams, so it may store other subjects as well.
    copies: bool = False
    removal: Removal = field(default_factory=Removal)
    replicas: int = 1
    connects: int = 0  # reconnects and failed requests before this snapshot

    @classmethod
    def from_info(cls, info: StreamInfo, connects: int = 0) -> StreamFacts:
        state, config = info.state, info.config
        subjects = stored_subjects(config)
        return cls(
            name=info.name,
            created="" if info.created is None else info.created.isoformat(),
            first_seq=state.first_seq if state.messages else state.last_seq + 1,
            last_seq=state.last_seq,
            messages=state.messages,
            bytes=state.bytes,
            gaps=state.num_deleted,
            direct=bool(config.allow_direct),
            work_queue=config.retention == RetentionPolicy.WORKQUEUE,
            last_time=state.last_ts,
            seen_at=info.ts,
            subjects=tuple(config.subjects or ()) if subjects is None else subjects,
            copies=subjects is None,
            removal=Removal.from_info(info),
            replicas=config.num_replicas or 1,
            connects=connects,
        )

    @property
    def incarnation(self) -> str:
        """The same as ``created``, under the name that `StreamEnd` requires."""
        return self.created

    @property
    def mean_bytes(self) -> int:
        """Mean size of a message including its headers, at least 1."""
        return max(1, self.bytes // self.messages) if self.messages else 1

    @property
    def mark(self) -> StoredMark | None:
        """The last message, or None if the stream is empty."""
        return (
            StoredMark(self.last_seq, self.last_time.isoformat())
            if self.messages and self.last_time
            else None
        )


def another_stream(start: LogOffset, facts: StreamFacts) -> JetStreamError | None:
    """Return an error if the stream was deleted and recreated, which invalidates the offset."""
    if start.created == facts.created:
        return None
    return PositionInvalidError(
        f"stream {facts.name!r} was recreated: the query has read the one created at {start.created}, this one was "
        f"created at {facts.created}, so sequence {start.seq} of the checkpoint is not valid. Use a new checkpoint; "
        f"{_CONTINUES} with the first message of the new stream"
    )


def deleted(name: str, start: LogOffset) -> PositionInvalidError:
    """Return the error for the deletion of one of several streams. Messages after the offset may be lost."""
    return PositionInvalidError(
        f"stream {name!r} was deleted: the query has read it up to sequence {start.seq}, and whatever was stored after "
        f"that is lost. Remove it from option 'stream' if it is there, or use a new checkpoint; {_CONTINUES} with the "
        "other streams"
    )


def unknown_stream(start: LogOffset) -> PositionInvalidError:
    """Return the error for a checkpoint of one stream, if the source now reads several streams without that stream."""
    return PositionInvalidError(
        f"the checkpoint is of a source of one stream, created at {start.created}, which is not one of the streams of "
        f"the options: add it, or use a new checkpoint if it was recreated; {_CONTINUES} with the first message of "
        "the streams that were created later, and reads the others as the options say"
    )


def cut_short(
    start: LogOffset, facts: StreamFacts, where: str = "after the last message that the backup had"
) -> JetStreamError | None:
    """Return an error if the stream ends before a message that the query has read or seen."""
    if facts.last_seq >= start.last_known:
        return None
    is_read = not start.init and start.seq > facts.last_seq
    before = f"the query has read up to {start.seq}" if is_read else f"it had message {start.last_known}"
    return PositionInvalidError(
        f"stream {facts.name!r} ends at sequence {facts.last_seq}, but {before}: was it restored from a backup? Use a "
        f"new checkpoint; {_CONTINUES} {where}"
    )


def other_messages(mark: StoredMark, stored: str, name: str) -> JetStreamError | None:
    """Return an error if the stream has another message at the mark's sequence.

    ``stored`` is the time when the message that is now at this sequence was stored.
    """
    if stored == mark.time:
        return None
    return PositionInvalidError(
        f"stream {name!r} has other messages than those that the query has seen: message {mark.seq} was stored at "
        f"{mark.time}, now it is one of {stored}. Was the stream restored from a backup and written again? Use a new "
        f"checkpoint; {_CONTINUES} after the last message that the backup had"
    )


def lost_head(first: int, last: int, facts: StreamFacts, instead: str | None = None) -> JetStreamError | None:
    """Return an error if messages at the head of the range were removed. For ``instead`` see `LostHeadError`."""
    if facts.first_seq <= first:
        return None
    last_removed = min(last, facts.first_seq - 1)
    return LostHeadError(facts.first_seq, first, facts.name, last_removed, instead or _EARLIEST)


def nothing_fits(whole: SequenceRange, facts: StreamFacts) -> JetStreamError:
    """Return the error for a batch with messages of a stream that the filters can no longer match."""
    return ConfigError(
        f"option 'subjects': no filter can match a message of stream {facts.name!r}, but the batch that is run again "
        f"has its sequences {whole.first} to {whole.last}: use the filters that the query had; {_CONTINUES} without "
        "them"
    )


_EARLIEST = "option 'startingOffsets' = 'earliest' and a new checkpoint"


class LostHeadError(HistoryTruncatedError):
    """Raised when messages were removed from a stream before a query read them.

    Attributes:
        gone: Sequence of the last removed message in the range to be read.
        instead: The option or argument with which to start instead.
    """

    gone: int = 0
    instead: str = _EARLIEST

    def __str__(self) -> str:
        return (
            f"messages {self.wanted} to {self.gone} of stream {self.stream!r} were removed before they were read (by a "
            f"limit, a purge, or an ack): it begins at {self.first_available} now. Keep messages longer, or start with "
            f"{self.instead}; {_CONTINUES} with the messages that exist"
        )


def check_not_future(start: Place, facts: StreamFacts) -> None:
    """Raise `ConfigError` for a start at a time that the server has not reached."""
    if facts.seen_at is not None and datetime.fromisoformat(start.time) > facts.seen_at:
        name = start.argument or "option 'startingTimestamp'"
        instead = 'start = "now"' if start.argument else "'startingOffsets' = 'latest'"
        raise ConfigError(
            f"{name} is {start.time}, which is in the future (on the server "
            f"it is {facts.seen_at.isoformat()}): give an earlier time, or {instead}"
        )

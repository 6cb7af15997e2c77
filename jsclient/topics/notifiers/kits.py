"""Kits whose iteration is on a server: made, found, and made again elsewhere of what they share."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, Self

import msgspec

from ..._runtime.context import Context
from ...consumers.push.binder import find_streams
from ...errors import (
    ConfigError,
    MessageNotFoundError,
    NoMatchingStreamError,
    StreamExistsError,
    StreamNotFoundError,
)
from ...protocol.models.stream_config import RetentionPolicy, StreamConfig
from ...protocol.streams.republish import republished_subject
from ...protocol.topics.position import Position
from ...protocol.topics.record_codec import stored_record
from ...protocol.topics.value_codec import Codec, JsonCodec
from ...protocol.wire.names import check_publish_subject, subject_matches
from ...streams.api import StreamManager
from ...streams.stream import Stream
from ..log import Log
from ..log_reader import Push
from ..stream_log import StreamLog
from .descriptors import NotifierDescriptor, SubscriptionDescriptor, codec_for, codec_name, read_descriptor
from .iteration import (
    NO_STATE,
    IterationSubscription,
    Kind,
    Notifier,
    NotifierKit,
    NotifierSource,
    Producer,
    SubscriptionKit,
    SubscriptionSource,
)
from .newest import find_stream, newest_log
from .permissions import Role, permissions_for
from .producer import LogProducer
from .stream_notifier import StreamNotifier
from .subscription import LogSubscription

__all__ = [
    "StreamNotifierKit",
    "StreamSubscriptionKit",
    "notifier_source",
    "open_notifier_kit",
    "open_subscription_kit",
    "stream_for",
    "subscription_source",
]

_PUSHES: Final = "jsc.push"  # what the subjects begin with to which streams that are made here republish
_READABLE: Final = 40  # characters of the subject in a stream's name


class _Placed:
    """What a kit on a server knows of its place."""

    _rights: dict[str, Any]

    def permissions(self, role: Role, *, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """What a user of the server must be allowed, as it stands in the server's configuration.

        Args:
            role: "writer": who produces. "reader": who consumes, and is trusted to make consumers. "untrusted
                reader": who consumes, and can disturb nobody.
            inbox_prefix: That of the user's connection. With one of its own, no other user can read what it is
                answered.

        Raises:
            ConfigError: There is no such role; or an untrusted reader would need consumers, or could read what else
                the stream holds.
        """
        return permissions_for(role, **self._rights, inbox_prefix=inbox_prefix)


class StreamNotifierKit(_Placed, NotifierKit):
    """Both facets of an iteration on a server of which the newest value counts. Made by `JetStream.notifier_kit`."""

    def __new__(cls, updater: Producer, notifier: Notifier, rights: dict[str, Any]) -> Self:
        kit = super().__new__(cls, updater, notifier)
        kit._rights = rights
        return kit


class StreamSubscriptionKit(_Placed, SubscriptionKit):
    """Both facets of an iteration on a server of which every value counts. Made by `JetStream.subscription_kit`."""

    def __new__(
        cls, publication: Producer, subscription: IterationSubscription, rights: dict[str, Any]
    ) -> Self:
        kit = super().__new__(cls, publication, subscription)
        kit._rights = rights
        return kit


async def open_notifier_kit(
    manager: StreamManager,
    context: Context,
    subject: str,
    *,
    initial: Any,
    stream: str | None,
    codec: Codec | None,
    quiet: float,
    timeout: float,
    fields: dict[str, Any],
) -> StreamNotifierKit:
    """See `JetStream.notifier_kit`."""
    codec = JsonCodec() if codec is None else codec
    check_publish_subject(subject)
    if initial is not NO_STATE:
        codec.encode(initial)  # refused before anything was made
    found = await stream_for(manager, context, subject, stream, {"max_msgs_per_subject": 1, **fields})
    at = NotifierDescriptor(
        stream=found.name,
        subject=subject,
        republished=republished_subject(found.config.republish, subject) or "",
        direct=bool(found.config.allow_direct),
        codec=codec_name(codec),
        api_prefix=context.api.prefix,
    )
    notifier = Notifier(StreamNotifier(newest_log(context, at, quiet=quiet), codec, quiet=quiet))
    producer = await _producer(context, found, subject, codec, timeout)
    if initial is not NO_STATE:
        await producer.publish(Kind.VALUE, initial)
    rights = _rights(context, found, subject, history=False)
    return StreamNotifierKit(Producer(producer.publish), notifier, rights)


async def open_subscription_kit(
    manager: StreamManager,
    context: Context,
    subject: str,
    *,
    stream: str | None,
    codec: Codec | None,
    push: Push,
    quiet: float,
    timeout: float,
    fields: dict[str, Any],
) -> StreamSubscriptionKit:
    """See `JetStream.subscription_kit`."""
    codec = JsonCodec() if codec is None else codec
    check_publish_subject(subject)
    found = await stream_for(manager, context, subject, stream, fields)
    start = await _beginning(context, found, subject)
    at = SubscriptionDescriptor(
        stream=found.name,
        subject=subject,
        start=start.to_json(),
        codec=codec_name(codec),
        api_prefix=context.api.prefix,
    )
    source = _subscription_source(context, at, codec, push=push, quiet=quiet)
    producer = await _producer(context, found, subject, codec, timeout)
    rights = _rights(context, found, subject, history=True)
    return StreamSubscriptionKit(Producer(producer.publish), IterationSubscription(source), rights)


def notifier_source(context: Context, given: object, codec: Codec | None, *, quiet: float) -> NotifierSource:
    """The source that a descriptor names. Raises `ConfigError`."""
    at = read_descriptor(given, NotifierDescriptor)
    context = context.reaching(at.api_prefix)
    return StreamNotifier(newest_log(context, at, quiet=quiet), codec_for(at.codec, codec), quiet=quiet)


def subscription_source(
    context: Context, given: object, codec: Codec | None, *, push: Push, quiet: float
) -> SubscriptionSource:
    """The source that a descriptor names. Raises `ConfigError`, `PositionInvalidError`."""
    at = read_descriptor(given, SubscriptionDescriptor)
    context = context.reaching(at.api_prefix)
    return _subscription_source(context, at, codec_for(at.codec, codec), push=push, quiet=quiet)


def _subscription_source(
    context: Context, at: SubscriptionDescriptor, codec: Codec, *, push: Push, quiet: float
) -> LogSubscription:
    async def log() -> Log:
        return StreamLog(context, await find_stream(context, at.stream), at.subject)

    def share(position: Position) -> dict[str, Any]:
        return msgspec.structs.replace(at, start=position.to_json()).to_dict()

    return LogSubscription(log, at.position, codec, share, push=push, quiet=quiet)


# --- the stream ------------------------------------------------------------------------------------------


async def stream_for(
    manager: StreamManager, context: Context, subject: str, name: str | None, fields: dict[str, Any]
) -> Stream:
    """The stream that holds the subject; it is made if there is none. One that is there is left as it is."""
    if name is None:
        names = await find_streams(context, subject)
        if len(names) > 1:
            raise NoMatchingStreamError(subject, names)
        name = names[0] if names else _stream_name(subject)
    try:
        stream = await manager.stream(name)
    except StreamNotFoundError:
        # A destination takes no "*". All that the stream holds fits ">".
        source = ">" if "*" in subject.split(".") else subject
        made = {
            "allow_direct": True,
            "republish": {"src": source, "dest": f"{_PUSHES}.{source}"},
            **fields,
        }
        try:
            stream = await manager.create_stream(name, subjects=[subject], **made)
        except StreamExistsError:
            stream = await manager.stream(name)  # somebody else made it meanwhile
    config = stream.config
    if not any(subject_matches(held, subject) for held in config.subjects or ()):
        raise ConfigError(f"stream {name!r} does not hold {subject!r}")
    check_retention(config)
    return stream


def check_retention(config: StreamConfig) -> None:
    """Raise `ConfigError` if the stream keeps messages only until its consumers have acked them."""
    if config.retention not in (None, RetentionPolicy.LIMITS):
        raise ConfigError(
            f"stream {config.name!r} keeps messages for consumers only (retention {config.retention}): here records "
            "must stay when they were read, so it must be 'limits'"
        )


def _stream_name(subject: str) -> str:
    """The name of the stream that is made for a subject: the same in every process, and another one for any other."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", subject)[:_READABLE]
    return f"KIT_{readable}_{hashlib.sha256(subject.encode()).hexdigest()[:12]}"


async def _producer(
    context: Context, stream: Stream, subject: str, codec: Codec, timeout: float
) -> LogProducer:
    log = StreamLog(context, stream, subject)
    return LogProducer(log, await log.last(), codec, timeout=timeout)


async def _beginning(context: Context, stream: Stream, subject: str) -> Position:
    """Before the first value, though it may have been removed: then who reads from there is told so."""
    end = (await StreamLog(context, stream, subject).extent()).end
    try:
        first = await stream.get_next_message(subject)
    except MessageNotFoundError:
        return end
    return end.at(0 if stored_record(first, linked=True).previous else first.seq - 1)


def _rights(context: Context, stream: Stream, subject: str, *, history: bool) -> dict[str, Any]:
    return {
        "api_prefix": context.api.prefix,
        "stream": stream.name,
        "subject": subject,
        "republished": republished_subject(stream.config.republish, subject) or "",
        "direct": bool(stream.config.allow_direct),
        "history": history,
        "alone": stream.config.subjects == [subject],
    }

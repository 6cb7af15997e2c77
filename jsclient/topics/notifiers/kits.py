"""Kits whose iteration is stored on a server, and the sources that their descriptors refer to."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ..._runtime.context import Context
from ...errors import MessageNotFoundError
from ...protocol.topics.position import Position
from ...protocol.topics.record import Kind
from ...protocol.topics.record_codec import stored_record
from ...protocol.topics.value_codec import Codec, JsonCodec, codec_for, codec_name
from ...protocol.wire.names import check_publish_subject
from ...streams.api import StreamManager
from ..log import Log, Push
from ..stream_log import StreamLog, find_stream, stream_for
from .descriptors import (
    NotifierDescriptor,
    Role,
    SubscriptionDescriptor,
    account_rights_for,
    notifier_descriptor,
    permissions_for,
    read_descriptor,
)
from .iteration import (
    NO_STATE,
    IterationSubscription,
    Notifier,
    NotifierKit,
    NotifierSource,
    Producer,
    SubscriptionKit,
    SubscriptionSource,
)
from .log_iteration import LogSubscription, newest_own
from .log_producer import LogProducer
from .newest import newest_log
from .stream_notifier import StreamNotifier

__all__ = [
    "StreamNotifierKit",
    "StreamSubscriptionKit",
    "notifier_source",
    "open_notifier_kit",
    "open_subscription_kit",
    "subscription_source",
]


class _WithRights:
    """Base class of kits on a server that provides the methods for the permissions of their users."""

    _rights: partial[dict[str, Any]]
    _account_rights: partial[dict[str, Any]]

    def _set_rights(self, at: NotifierDescriptor, *, history: bool, alone: bool) -> None:
        self._rights = partial(permissions_for, at=at, history=history, alone=alone)
        self._account_rights = partial(account_rights_for, at=at, history=history, alone=alone)

    def permissions(self, role: Role, *, inbox_prefix: str = "_INBOX") -> dict[str, Any]:
        """Return the permissions that a NATS user needs for a role, in the format of the server's configuration.

        With any of these roles, a user can have the answers to its requests stored in streams of the account, because
        NATS doesn't check reply subjects. If you don't trust the users, use `account_rights` instead.

        Args:
            role: ``"writer"`` may produce. ``"reader"`` may consume, and may create consumers. ``"untrusted reader"``
                may consume without creating consumers.
            inbox_prefix: The inbox prefix of the user's connection. If each user has its own prefix, users can't read
                the answers to each other's requests.

        Raises:
            ConfigError: The role is unknown, or an untrusted reader would need consumers, or could read other subjects
                of the stream.
        """
        return self._rights(role, inbox_prefix=inbox_prefix)

    def account_rights(self, owner: str, guests: str) -> dict[str, Any]:
        """Return ``accounts`` for the server's configuration that let users of a different account consume.

        Answers to the users' requests stay in the users' account. The users reach the API under the prefix
        ``JS.<owner>.API``, so set ``api_prefix`` in the descriptor to this value. They can read only what this kit
        stores, and need no further permissions.

        Args:
            owner: The account of the stream, to which ``exports`` are added.
            guests: The account of the users, to which ``imports`` are added.

        Raises:
            ConfigError: The users would need consumers, or could read other subjects of the stream.
            InvalidNameError: The name of an account isn't a valid token.
        """
        return self._account_rights(owner, guests)


class StreamNotifierKit(_WithRights, NotifierKit):
    """A `NotifierKit` whose states are stored on a NATS server. Returned by `JetStream.notifier_kit`.

    A consumer that connects to the server could also publish to the kit's subject. To have the server forbid that, add
    the result of `permissions` or `account_rights` to its configuration.
    """


class StreamSubscriptionKit(_WithRights, SubscriptionKit):
    """A `SubscriptionKit` whose values are stored on a NATS server. Returned by `JetStream.subscription_kit`.

    A consumer that connects to the server could also publish to the kit's subject. To have the server forbid that, add
    the result of `permissions` or `account_rights` to its configuration.
    """


async def open_notifier_kit(
    manager: StreamManager,
    subject: str,
    *,
    initial: Any,
    stream: str | None,
    codec: Codec | None,
    quiet: float,
    timeout: float,
    fields: dict[str, Any],
) -> StreamNotifierKit:
    """Open a lossy kit. See `JetStream.notifier_kit`."""
    context = manager._context  # noqa: SLF001  shared by all handles of a connection
    codec = JsonCodec() if codec is None else codec
    check_publish_subject(subject)
    if initial is not NO_STATE:
        codec.encode(initial)  # raises an error before a stream is created
    handle = await stream_for(manager, subject, stream, {"max_msgs_per_subject": 1, **fields})
    at = notifier_descriptor(context, handle, subject, codec_name(codec))
    notifier = Notifier(StreamNotifier(newest_log(context, at, quiet=quiet), codec, quiet=quiet))
    log = StreamLog(context, handle, subject)
    producer = LogProducer(log, await newest_own(log), codec, timeout=timeout)
    if initial is not NO_STATE:
        await producer.publish(Kind.VALUE, initial)
    kit = StreamNotifierKit(Producer(producer.publish), notifier)
    alone = handle.config.subjects == [subject]
    kit._set_rights(at, history=False, alone=alone)  # noqa: SLF001  same module
    return kit


async def open_subscription_kit(
    manager: StreamManager,
    subject: str,
    *,
    stream: str | None,
    codec: Codec | None,
    push: Push,
    quiet: float,
    timeout: float,
    fields: dict[str, Any],
) -> StreamSubscriptionKit:
    """Open a lossless kit. See `JetStream.subscription_kit`."""
    context = manager._context  # noqa: SLF001  shared by all handles of a connection
    codec = JsonCodec() if codec is None else codec
    check_publish_subject(subject)
    handle = await stream_for(manager, subject, stream, fields)
    log = StreamLog(context, handle, subject)
    start = await _beginning(log)
    at = SubscriptionDescriptor(
        stream=handle.name,
        subject=subject,
        start=start.to_json(),
        codec=codec_name(codec),
        api_prefix=context.api.prefix,
    )
    source = _subscription_source(context, at, codec, push=push, quiet=quiet)
    producer = LogProducer(log, await newest_own(log), codec, timeout=timeout)
    kit = StreamSubscriptionKit(Producer(producer.publish), IterationSubscription(source))
    newest = notifier_descriptor(context, handle, subject, codec_name(codec))
    alone = handle.config.subjects == [subject]
    kit._set_rights(newest, history=True, alone=alone)  # noqa: SLF001  same module
    return kit


def notifier_source(context: Context, value: object, codec: Codec | None, *, quiet: float) -> NotifierSource:
    """Return the source that the descriptor of a notifier refers to.

    Raises `ConfigError` if the descriptor is not valid.
    """
    at = read_descriptor(value, NotifierDescriptor)
    context = context.reaching(at.api_prefix)
    return StreamNotifier(newest_log(context, at, quiet=quiet), codec_for(at.codec, codec), quiet=quiet)


def subscription_source(
    context: Context, value: object, codec: Codec | None, *, push: Push, quiet: float
) -> SubscriptionSource:
    """Return the source that the descriptor of a subscription refers to.

    Raises `ConfigError` or `PositionInvalidError` if the descriptor is not valid.
    """
    at = read_descriptor(value, SubscriptionDescriptor)
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


async def _beginning(log: StreamLog) -> Position:
    """Return the position before the first value.

    If the first value was removed, readers raise `HistoryTruncatedError`.
    """
    end = (await log.extent()).end
    try:
        first = await log.handle.get_next_message(log.subject)
    except MessageNotFoundError:
        return end
    return end.at(0 if stored_record(first, linked=True).previous else first.seq - 1)

"""Descriptors and permissions, with which another process reads an iteration from its stream.

A *reader* may create consumers. It must be trusted, because a consumer can deliver to any subject of the account. An
*untrusted reader* may not create consumers. It reads the republished subject, and requests stored values. In the
account of the stream, it can still have the answers to its requests stored under any subject. `account_rights_for`
gives it a separate account.

Source: nats-server server/jetstream_api.go and decision D36.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from ..._runtime.context import Context
from ...errors import ConfigError
from ...protocol.topics.position import Position
from ...protocol.topics.record_codec import republished_subject
from ...protocol.wire.accounts import account_rights
from ...protocol.wire.api import Api
from ...protocol.wire.names import check_publish_subject, check_stream_name
from ...streams.stream import Stream

__all__ = [
    "NotifierDescriptor",
    "Role",
    "SubscriptionDescriptor",
    "account_rights_for",
    "notifier_descriptor",
    "permissions_for",
    "read_descriptor",
]


class _Descriptor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    v: Literal[1] = 1
    stream: str
    subject: str
    codec: str
    api_prefix: str

    def to_dict(self) -> dict[str, Any]:
        """Return the descriptor as a dict of JSON values."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


class NotifierDescriptor(_Descriptor, frozen=True, kw_only=True, tag="notifier"):
    """The descriptor of a notifier.

    Attributes:
        stream, subject: The stream and subject of its values.
        republished: The subject to which the stream republishes them with their payloads, or "" if it does not.
        direct: Whether the stream allows direct gets, from any replica.
        codec: The codec's name.
        api_prefix: The API prefix of the stream.
    """

    republished: str = ""
    direct: bool = False


def notifier_descriptor(context: Context, stream: Stream, subject: str, codec: str) -> NotifierDescriptor:
    """Return the descriptor for a notifier that reads this subject of the stream."""
    return NotifierDescriptor(
        stream=stream.name,
        subject=subject,
        republished=republished_subject(stream.config.republish, subject) or "",
        direct=bool(stream.config.allow_direct),
        codec=codec,
        api_prefix=context.api.prefix,
    )


class SubscriptionDescriptor(_Descriptor, frozen=True, kw_only=True, tag="subscription"):
    """The descriptor of a subscription.

    Attributes:
        start: The token of the position after which it starts.
        stream, subject, codec, api_prefix: See `NotifierDescriptor`.
    """

    start: str

    @property
    def position(self) -> Position:
        """The position after which the subscription starts."""
        return Position.from_json(self.start)


DescriptorT = TypeVar("DescriptorT", bound=_Descriptor)


def read_descriptor(value: object, kind: type[DescriptorT]) -> DescriptorT:
    """Decode a shared descriptor and check it.

    Raises:
        ConfigError: ``value`` is not a descriptor of this kind.
        InvalidNameError: A name in the descriptor is invalid.
        PositionInvalidError: The start in the descriptor is not the token of a position.
    """
    try:
        read = msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        kind_name = "notifier" if kind is NotifierDescriptor else "subscription"
        raise ConfigError(f"{value!r:.100} is not the descriptor of a {kind_name}: {error}") from None
    # The descriptor comes from another process and may be forged, so check every name before it becomes a subject.
    check_stream_name(read.stream)
    check_publish_subject(read.subject)
    Api(read.api_prefix)
    if isinstance(read, NotifierDescriptor) and read.republished:
        check_publish_subject(read.republished)
    if isinstance(read, SubscriptionDescriptor) and read.position.stream != read.stream:
        raise ConfigError(
            f"the start of the descriptor is in stream {read.position.stream!r}, not in {read.stream!r}"
        )
    return read


Role: TypeAlias = Literal["writer", "reader", "untrusted reader"]


def permissions_for(
    role: Role, *, at: NotifierDescriptor, history: bool, alone: bool, inbox_prefix: str = "_INBOX"
) -> dict[str, Any]:
    """Return the permissions of a user. See `StreamNotifierKit.permissions`.

    If ``history`` is true, the user may read all values. If it is false, the user may only read the newest value.
    ``alone`` is true if the stream has no other subject.
    """
    api, stream, subject, republished = Api(at.api_prefix), at.stream, at.subject, at.republished
    inbox = f"{check_publish_subject(inbox_prefix)}.>"
    info, get = api.stream_info(stream), api.stream_msg_get(stream)
    newest, batch = api.direct_get_last(stream, subject), api.direct_get(stream)
    listens = [inbox, republished] if republished else [inbox]
    match role:
        case "writer":
            return _permissions([subject, api.stream_names(), info, get], [inbox])
        case "reader":
            consumers = [
                f"{api.prefix}.CONSUMER.CREATE.{stream}.*.{subject}",
                f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.*",
                f"{api.prefix}.CONSUMER.DELETE.{stream}.*",
            ]
            return _permissions([info, get, batch if history else newest, *consumers], listens)
        case "untrusted reader":
            if not republished or not at.direct:
                raise ConfigError(
                    f"stream {stream!r} does not republish {subject!r}, or does not allow direct gets: its readers "
                    "need consumers, so use the role 'reader'"
                )
            if not history:
                return _permissions([newest], listens)
            if not alone:
                raise ConfigError(
                    f"stream {stream!r} holds more than {subject!r}, and an untrusted reader could read all of it: use "
                    "a separate stream"
                )
            return _permissions([batch, info, get], listens)
    raise ConfigError(f"role is {role!r:.40}: 'writer', 'reader' or 'untrusted reader' is needed")


def account_rights_for(
    owner: str, guests: str, *, at: NotifierDescriptor, history: bool, alone: bool
) -> dict[str, Any]:
    """Return the rights of a separate account. See `StreamNotifierKit.account_rights`."""
    rights = permissions_for("untrusted reader", at=at, history=history, alone=alone)
    return account_rights(
        rights["publish"]["allow"],
        [at.republished],
        owner=owner,
        guests=guests,
        api_prefix=at.api_prefix,
        many=[Api(at.api_prefix).direct_get(at.stream)],
    )


def _permissions(publish: list[str], subscribe: list[str]) -> dict[str, Any]:
    return {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}

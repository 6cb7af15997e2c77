"""Descriptors of iterations on a server, as JSON values.

A process with a descriptor, and the permissions, reads from the stream itself.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from ...errors import ConfigError
from ...protocol.topics.position import Position
from ...protocol.wire.names import check_publish_subject, check_stream_name
from ...protocol.wire.subjects import Api

__all__ = ["NotifierDescriptor", "SubscriptionDescriptor", "read_descriptor"]


class _Descriptor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    v: Literal[1] = 1
    stream: str
    subject: str
    codec: str
    api_prefix: str

    def to_dict(self) -> dict[str, Any]:
        """The descriptor as a dict of JSON values."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


class NotifierDescriptor(_Descriptor, frozen=True, kw_only=True, tag="notifier"):
    """The descriptor of a notifier.

    Attributes:
        stream, subject: The stream and subject of its values.
        republished: The subject to which the stream republishes them with their payloads; "" if it does not.
        direct: Whether the stream allows direct gets, from any replica.
        codec: The codec's name.
        api_prefix: The API prefix of the stream.
    """

    republished: str = ""
    direct: bool = False


class SubscriptionDescriptor(_Descriptor, frozen=True, kw_only=True, tag="subscription"):
    """The descriptor of a subscription.

    Attributes:
        start: The token of the position after which it starts.
        stream, subject, codec, api_prefix: As in `NotifierDescriptor`.
    """

    start: str

    @property
    def position(self) -> Position:
        """The position after which it starts."""
        return Position.from_json(self.start)


DescriptorT = TypeVar("DescriptorT", bound=_Descriptor)


def read_descriptor(given: object, kind: type[DescriptorT]) -> DescriptorT:
    """Read a shared descriptor.

    Raises:
        ConfigError: It is not a descriptor of this kind. InvalidNameError: A name in it is invalid.
        PositionInvalidError: Its start is not a position token.
    """
    try:
        read = msgspec.convert(given, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        wanted = "notifier" if kind is NotifierDescriptor else "subscription"
        raise ConfigError(f"{given!r:.100} is not the descriptor of a {wanted}: {error}") from None
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

"""What is shared of an iteration on a server: where it is, as values that pass as JSON.

Who has a descriptor, and the rights, reads from the stream itself, in another process or on another machine.
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
        """The descriptor as a dictionary that `json.dumps` takes."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made


class NotifierDescriptor(_Descriptor, frozen=True, kw_only=True, tag="notifier"):
    """Where a notifier's values are.

    Attributes:
        stream, subject: Where they are stored, the newest last.
        republished: The subject to which the stream republishes them with their payloads, "" if it does not.
        direct: Whether any replica of the stream may be asked.
        codec: The codec's name.
        api_prefix: The API prefix under which the stream is reached.
    """

    republished: str = ""
    direct: bool = False


class SubscriptionDescriptor(_Descriptor, frozen=True, kw_only=True, tag="subscription"):
    """Where a subscription's values are.

    Attributes:
        start: The token of the position after which it starts.
        stream, subject, codec, api_prefix: As of `NotifierDescriptor`.
    """

    start: str

    @property
    def position(self) -> Position:
        """The position after which it starts."""
        return Position.from_json(self.start)


DescriptorT = TypeVar("DescriptorT", bound=_Descriptor)


def read_descriptor(given: object, kind: type[DescriptorT]) -> DescriptorT:
    """The descriptor in what somebody shared.

    Raises:
        ConfigError: It is none of this kind, or holds what is no legal name. PositionInvalidError: Its start is none.
    """
    try:
        read = msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        wanted = "notifier" if kind is NotifierDescriptor else "subscription"
        raise ConfigError(f"this is no descriptor of a {wanted}: {error}") from None
    check_stream_name(read.stream)
    check_publish_subject(read.subject)
    Api(read.api_prefix)
    if isinstance(read, NotifierDescriptor) and read.republished:
        check_publish_subject(read.republished)
    if isinstance(read, SubscriptionDescriptor) and read.position.stream != read.stream:
        raise ConfigError(
            f"the start of a descriptor is of stream {read.position.stream!r}, not {read.stream!r}"
        )
    return read

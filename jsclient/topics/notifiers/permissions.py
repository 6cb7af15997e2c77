"""The minimal permissions to produce or to consume an iteration.

A *reader* may create consumers. It must be trusted, because a consumer can deliver to any subject of the account. An
*untrusted reader* may not: it reads the republished subject, and requests stored values.

Source: nats-server server/jetstream_api.go; decision D36.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from ...errors import ConfigError
from ...protocol.wire.names import check_publish_subject
from ...protocol.wire.subjects import Api

__all__ = ["Role", "permissions_for"]

Role: TypeAlias = Literal["writer", "reader", "untrusted reader"]


def permissions_for(
    role: Role,
    *,
    api_prefix: str,
    stream: str,
    subject: str,
    republished: str,
    direct: bool,
    history: bool,
    alone: bool,
    inbox_prefix: str = "_INBOX",
) -> dict[str, Any]:
    """The permissions of a user, in the form of the server's configuration.

    Args:
        role: The role of the user.
        api_prefix, stream, subject, republished, direct: See `NotifierDescriptor`.
        history: Whether the user reads all values, or only the newest.
        alone: Whether the stream holds no other subject.
        inbox_prefix: The inbox prefix of the user's connection. With a prefix of its own, no other user can read the
            answers to its requests.

    Raises:
        ConfigError: The role is unknown, or an untrusted reader would need consumers, or could read other subjects of
            the stream.
    """
    api = Api(api_prefix)
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
            if not republished or not direct:
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


def _permissions(publish: list[str], subscribe: list[str]) -> dict[str, Any]:
    return {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}

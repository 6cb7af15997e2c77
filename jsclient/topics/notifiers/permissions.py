"""What a user of the server must be allowed, to produce or to consume an iteration, and nothing else.

A *reader* may make consumers of its own. That is for users who are trusted: a consumer can be told to deliver to any
subject of the account. An *untrusted reader* may not: it reads the republished subject, and asks for stored values.

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
    """The permissions of a user, as they stand in a server's configuration.

    Args:
        role: What the user does.
        api_prefix, stream, subject, republished, direct: See `NotifierDescriptor`.
        history: Whether it reads all values, or the newest only.
        alone: Whether the stream holds nothing else.
        inbox_prefix: That of the user's connection. With one of its own, no other user can read what it is answered.

    Raises:
        ConfigError: There is no such role; or an untrusted reader would have to make consumers, or could read what else
            is in the stream.
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
                    f"stream {stream!r} does not republish {subject!r}, or allows no direct gets: whoever reads it "
                    "needs a consumer"
                )
            if not history:
                return _permissions([newest], listens)
            if not alone:
                raise ConfigError(
                    f"who reads the history of {subject!r} can read all of stream {stream!r}: give it a stream of its "
                    "own"
                )
            return _permissions([batch, info, get], listens)
    raise ConfigError(f"{role!r:.40} is no role: 'writer', 'reader' or 'untrusted reader' is needed")


def _permissions(publish: list[str], subscribe: list[str]) -> dict[str, Any]:
    return {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}

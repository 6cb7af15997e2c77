"""The permissions of a server's user that reads from a consumer, or publishes to some subjects.

Source: nats-server, ``permissions`` of a user; ADR-15 §JSAck for the subjects of acks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError
from ..models.consumer import AckPolicy, ConsumerConfig
from ..wire.api import Api
from ..wire.names import check_filter_subject, check_publish_subject

__all__ = [
    "ack_right",
    "ordered_pull_rights",
    "ordered_rights",
    "publisher_rights",
    "pull_rights",
    "push_rights",
]


def publisher_rights(subjects: Sequence[str], *, inbox_prefix: str) -> dict[str, Any]:
    """Return the permissions to publish to these subjects, and to receive the acks of the stream."""
    if not subjects:
        raise ConfigError("no subject is given: a publisher needs the subjects that it publishes to")
    return _rights([check_filter_subject(subject) for subject in subjects], [_inbox(inbox_prefix)])


def pull_rights(
    api: Api,
    stream: str,
    consumer: str,
    config: ConsumerConfig | None,
    *,
    dead_letter: str | None,
    inbox_prefix: str,
) -> dict[str, Any]:
    """Return the permissions to bind to this pull consumer, pull from it, and ack."""
    allowed = [*_questions(api, stream, consumer), api.consumer_next(stream, consumer)]
    publish, subscribe = _for_worker(api, stream, consumer, config, dead_letter)
    return _rights([*allowed, *publish], [_inbox(inbox_prefix), *subscribe])


def push_rights(
    api: Api,
    stream: str,
    consumer: str,
    config: ConsumerConfig | None,
    deliver_subject: str,
    *,
    dead_letter: str | None,
    inbox_prefix: str,
) -> dict[str, Any]:
    """Return the permissions to bind to this push consumer, subscribe to its deliver subject, and ack."""
    allowed = _questions(api, stream, consumer)
    if config is not None and config.flow_control:
        allowed.append(f"$JS.FC.{stream}.{consumer}.>")
    publish, subscribe = _for_worker(api, stream, consumer, config, dead_letter)
    return _rights([*allowed, *publish], [_inbox(inbox_prefix), deliver_subject, *subscribe])


def ordered_rights(api: Api, stream: str, *, inbox_prefix: str) -> dict[str, Any]:
    """Return the permissions to read in order: to create and delete ephemeral consumers, and answer flow control.

    The server names these consumers, so their filter is not part of the subject, and cannot be enforced.
    """
    allowed = [
        api.consumer_create(stream),
        f"{api.prefix}.CONSUMER.DELETE.{stream}.*",
        f"{api.prefix}.CONSUMER.INFO.{stream}.*",
        api.stream_info(stream),
        api.stream_msg_get(stream),
        f"$JS.FC.{stream}.>",
    ]
    return _rights(allowed, [_inbox(inbox_prefix)])


def ordered_pull_rights(api: Api, stream: str, *, inbox_prefix: str) -> dict[str, Any]:
    """Return the permissions to read in order by pulling.

    The user may create, read and delete consumers of any name, with any filter.
    """
    allowed = [
        f"{api.prefix}.CONSUMER.CREATE.{stream}.>",
        f"{api.prefix}.CONSUMER.DELETE.{stream}.*",
        f"{api.prefix}.CONSUMER.INFO.{stream}.*",
        f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.*",
        api.stream_info(stream),
        api.stream_msg_get(stream),
    ]
    return _rights(allowed, [_inbox(inbox_prefix)])


def _questions(api: Api, stream: str, consumer: str) -> list[str]:
    """Return the subjects of the requests that are needed to bind, and to find out why a consumer does not deliver."""
    return [api.consumer_info(stream, consumer), api.stream_info(stream)]


def _for_worker(
    api: Api, stream: str, consumer: str, config: ConsumerConfig | None, dead_letter: str | None
) -> tuple[list[str], list[str]]:
    """Return the subjects to publish to and to subscribe to for acks and dead letters."""
    publish: list[str] = []
    if config is None or config.ack_policy is not AckPolicy.NONE:
        publish += [f"$JS.ACK.{stream}.{consumer}.>", f"$JS.ACK.*.*.{stream}.{consumer}.>"]
    if dead_letter is None:
        return publish, []
    # A worker requests the names when it starts. It requests a message when the last delivery failed in another worker.
    publish += [check_filter_subject(dead_letter), api.stream_names(), api.stream_msg_get(stream)]
    return publish, [f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"]


def ack_right(subject: str) -> str:
    """Return the subject that allows all acks of the consumer whose ack has ``subject``, or "" if it isn't an ack."""
    tokens = subject.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) < 9:
        return ""
    if len(tokens) == 9:
        return ".".join([*tokens[:4], ">"])
    return ".".join(["$JS.ACK.*.*", *tokens[4:6], ">"])  # for any domain and account


def _inbox(prefix: str) -> str:
    return f"{check_publish_subject(prefix)}.>"


def _rights(publish: list[str], subscribe: list[str]) -> dict[str, Any]:
    return {"publish": {"allow": publish}, "subscribe": {"allow": subscribe}}

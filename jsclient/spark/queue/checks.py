"""Checks that a stream and a consumer are suitable for queue mode. No I/O."""

from __future__ import annotations

from ...errors import ConfigError, PermissionDeniedError
from ...protocol.models.consumer import AckPolicy, ConsumerInfo
from ...protocol.models.stream import RetentionPolicy, StreamConfig

__all__ = ["check_queue", "effective_ack_wait", "not_permitted"]

_ACK_WAIT = 30.0  # seconds: the server's default


def check_queue(stream: StreamConfig, consumer: ConsumerInfo, ack_on: str) -> None:
    """Check that queue mode can read this stream with this consumer.

    Raises:
        ConfigError: An option does not fit; the message has the value found and what to do.
    """
    config, name = consumer.config, consumer.name
    where = f"option 'consumer': {name!r} of stream {stream.name!r}"
    if consumer.is_push:
        raise ConfigError(f"{where} is a push consumer: queue mode needs one without deliver_subject")
    if config.ack_policy not in (None, AckPolicy.EXPLICIT):
        raise ConfigError(
            f"{where} has the ack policy {str(config.ack_policy)!r}: queue mode acks each message, "
            "it needs ack_policy='explicit'"
        )
    if not consumer.is_durable:
        raise ConfigError(
            f"{where} is not durable, so it would be gone while the query is stopped: "
            "create it with durable_name"
        )
    if config.priority_groups:
        raise ConfigError(
            f"{where} has priority groups, which queue mode does not ask for: use another consumer"
        )
    if not stream.allow_direct:
        raise ConfigError(
            f"option 'stream': {stream.name!r} does not allow direct gets, by which executors read what was claimed: "
            "update it with allow_direct=True"
        )
    if ack_on == "purge":
        if stream.retention != RetentionPolicy.WORKQUEUE:
            raise ConfigError(
                f"option 'ackOn' is 'purge', but stream {stream.name!r} is no work queue, so that others may still "
                "want what is purged: use 'batch'"
            )
        if config.filters:
            raise ConfigError(
                f"option 'ackOn' is 'purge', but {where.partition(': ')[2]} has a filter, so that the stream is not "
                "its own: use 'batch'"
            )


def effective_ack_wait(consumer: ConsumerInfo) -> float:
    """The shortest time in seconds after which the server redelivers an unacked message."""
    config = consumer.config
    return min([*(wait for wait in config.backoff or () if wait), config.ack_wait or _ACK_WAIT])


def not_permitted(option: str, error: PermissionDeniedError, why: str) -> ConfigError:
    """The `ConfigError` for a missing permission."""
    verb = "publish to" if error.operation == "publish" else "subscribe to"
    return ConfigError(
        f"option {option!r}: {why}, but the server does not let this user {verb} {error.subject!r}: allow it"
    )

"""Checks of a consumer's configuration before it is sent, for every call that creates or updates a consumer.

Source: nats-server server/consumer.go (checkConsumerCfg), server/sublist.go (isValidSubject).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from ...errors import ConfigError
from ..wire.names import check_filter_subject, check_queue, subjects_overlap
from ..wire.units import parse_time
from .consumer import ConsumerConfig, ConsumerInfo
from .stream_config import StreamConfig

__all__ = [
    "check_consumer",
    "check_filters",
    "impossible_filters",
    "like_milliseconds",
    "queue_advice",
    "stores_other_subjects",
]

_CLOCKS_DIFFER: Final = timedelta(minutes=5)


def check_filters(config: ConsumerConfig) -> None:
    """Check the filters of a consumer.

    Raises:
        ConfigError: ``filter_subject`` and ``filter_subjects`` are both set.
        InvalidNameError: A filter is not a valid subject.
    """
    if config.filter_subject and config.filter_subjects:
        raise ConfigError("filter_subject and filter_subjects are both given: give one of them")
    if isinstance(config.filter_subjects, str):
        raise ConfigError(f"filter_subjects is the str {config.filter_subjects!r}: give a list of subjects")
    for subject in config.filters:
        check_filter_subject(subject)


def like_milliseconds(config: ConsumerConfig) -> list[str]:
    """Return a warning for each duration that was probably meant as milliseconds.

    30,000 s are 8 h 20 min, and few programs wait so long for a redelivery. Whole hours are accepted.
    """
    durations = [("ack_wait", config.ack_wait), *(("backoff", pause) for pause in config.backoff or ())]
    return [
        f"{name} is {seconds:g} s (h:mm:ss {timedelta(seconds=seconds)}): durations are in seconds, and this looks "
        f"like milliseconds; give {seconds / 1000:g} for {seconds / 1000:g} s"
        for name, seconds in durations
        if seconds is not None and seconds >= 5000 and not seconds % 1000 and seconds % 3600
    ]


def stores_other_subjects(stream: StreamConfig) -> bool:
    """Return whether the stream may store other subjects, because it has a mirror, sources or a subject transform."""
    return bool(stream.mirror or stream.sources or stream.subject_transform)


def impossible_filters(filters: Iterable[str], stream: StreamConfig) -> list[str]:
    """Return the filters that match no subject of the stream.

    The list is empty if the stream may store other subjects than its own. The stream may also contain messages whose
    subjects it had earlier.
    """
    if stores_other_subjects(stream):
        return []
    subjects = stream.subjects or [stream.name]
    return [name for name in filters if not any(subjects_overlap(name, subject) for subject in subjects)]


def queue_advice(requested: ConsumerConfig, consumers: Iterable[ConsumerInfo]) -> str:
    """Return advice for a consumer that a work queue refuses, or "" if no other consumer receives its messages."""
    for other in consumers:
        if other.name in {requested.name, requested.durable_name}:
            continue
        filters = other.config.filters
        if any(subjects_overlap(a, b) for a in filters or [">"] for b in requested.filters or [">"]):
            takes = ", ".join(map(repr, filters)) if filters else "all messages"
            return (
                f"consumer {other.name!r} takes {takes}, and a work queue gives each message to one consumer: share "
                "that consumer, or give both filter subjects that do not overlap"
            )
    return ""


def check_consumer(config: ConsumerConfig, now: datetime) -> None:
    """Check a configuration before it is sent.

    Args:
        config: The configuration of a consumer that is created or updated.
        now: The time of this machine. The server's clock may differ by minutes.

    Raises:
        ConfigError: The filters are refused (see `check_filters`), or the start time is in the future.
        InvalidNameError: A filter or the deliver group is not valid.
    """
    check_filters(config)
    if config.deliver_group:
        check_queue(config.deliver_group)
    start = config.opt_start_time
    if start is None:
        return
    moment = parse_time(start) if isinstance(start, str) else start
    if moment > now + _CLOCKS_DIFFER:
        raise ConfigError(
            f"opt_start_time is {moment.isoformat()}, in the future: a consumer starts at a message that is stored "
            'already, and the server would start at the next one; use deliver_policy="new", or pause_until to wait '
            "until then"
        )

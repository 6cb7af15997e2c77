"""Finds out why a consumer delivers no messages, from the server's infos and the state of this client.

The readers, which check the consumer when no message arrives (`stall`), and ``jsclient doctor`` use the same rules.
If there is no message to deliver, no rule reports a cause.

Source: ADR-13, ADR-42; nats-server server/consumer.go (ConsumerInfo).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from ...errors import (
    ApiError,
    ConsumerNotFoundError,
    JetStreamError,
    PermissionDeniedError,
    StreamNotFoundError,
    counted,
)
from ..models.cluster import ClusterInfo
from ..models.consumer import ConsumerInfo, DeliverPolicy, PriorityPolicy, ReplayPolicy
from ..models.stream import StreamInfo
from ..models.stream_config import DiscardPolicy
from ..wire.names import subjects_overlap
from .finding import Finding

__all__ = [
    "SILENT_MIRROR",
    "Finding",
    "Local",
    "cannot_look",
    "cannot_replace",
    "copies",
    "diagnose",
    "handler_due",
    "is_cause",
    "no_leader",
]

# If a mirror or source is silent for this many seconds, it is reported. The server itself checks them every 10 s.
SILENT_MIRROR = 15.0
_CONSUMER_LIMIT = 10026
_SLOW = 2.0  # a handler hangs only if it runs for more than this many intervals of ack_wait
_OLD = (DeliverPolicy.ALL, DeliverPolicy.LAST, DeliverPolicy.LAST_PER_SUBJECT)
_NEAR = 0.9  # above this share of a limit, a stream may refuse the next message
# After the pause of a consumer has ended, the server may need up to this many seconds, until its next heartbeat, to
# serve a waiting request.
_BETWEEN_CHECKS = 10.0
_EXCEEDS = 2.0  # a handler hangs only if it also runs this many times as long as the longest earlier run


class Local(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a client that reads from the consumer.

    Attributes:
        after: If nothing is delivered for this many seconds, the client checks the consumer.
        asks: Whether the application is waiting for a message.
        received: Number of messages that this client received.
        held: Number of messages that its worker has not settled, or None without a worker.
        running: How long its longest handler has been running, in seconds.
        message: The message of this handler, "" if unknown.
        longest: How long the longest earlier handler ran, in seconds.
        waiting: Number of messages that wait in this client for a handler.
        subject: The subject to which a push subscription has subscribed.
        pins: The ids under which it is pinned.
        before: The info at its last check, if no message was delivered since.
    """

    after: float
    asks: bool = True
    received: int = 0
    held: int | None = None
    running: float = 0.0
    message: str = ""
    longest: float = 0.0
    waiting: int = 0
    subject: str = ""
    pins: frozenset[str] = frozenset()
    before: ConsumerInfo | None = None


def is_cause(finding: Finding) -> bool:
    """Return whether the finding explains why no messages are delivered."""
    return finding.level in ("warning", "error")


def diagnose(
    info: ConsumerInfo, stream: StreamInfo | None = None, local: Local | None = None
) -> list[Finding]:
    """Return the reasons why a consumer does not deliver, the likeliest cause first.

    Args:
        info: The consumer's state.
        stream: The state of its stream, which shows filters that match no message, and mirrors that lag.
        local: The state of the client that reads, or None if the caller does not read from the consumer.
    """
    hanging = _hanging(info, local)
    if local is not None and not local.asks:
        return hanging  # the application is busy and doesn't wait for a message, so only its handlers matter
    if info.paused:
        return [_paused(info, local)]
    if info.num_pending == 0:
        return [
            *hanging,
            *_nothing_matches(info, stream),
            *copies(stream, SILENT_MIRROR if local is None else local.after),
        ] or no_leader("consumer", info.cluster)
    if _delivers(info, local):
        return []
    rules: tuple[Callable[[ConsumerInfo, Local | None], Iterable[Finding]], ...] = (
        _no_interest, _pinned, _max_ack_pending, _nobody_pulls, _unexplained,
    )  # fmt: skip
    return [
        *hanging,
        *no_leader("consumer", info.cluster),
        *(finding for rule in rules for finding in rule(info, local)),
    ]


def cannot_look(error: JetStreamError, stream: str, consumer: str) -> Finding:
    """Return the finding for an error of a request for the consumer's info."""
    if isinstance(error, ConsumerNotFoundError):
        return Finding(
            code="deleted",
            level="error",
            what="the consumer does not exist",
            evidence=f"the server knows no consumer {consumer!r} of stream {stream!r}: it was deleted, or removed "
            "after its inactive_threshold without a reader",
            fix="correct its name, or create it again; a durable consumer with inactive_threshold unset stays",
        )
    if isinstance(error, StreamNotFoundError):
        return Finding(
            code="stream_deleted",
            level="error",
            what="the stream does not exist",
            evidence=f"the server knows no stream {stream!r}",
            fix="create the stream, or correct its name or the JetStream domain",
        )
    if isinstance(error, PermissionDeniedError):
        return Finding(
            code="could_not_look",
            level="unknown",
            what="why nothing comes could not be looked up",
            evidence=str(error),
            fix=f"let this user publish to {error.subject!r}, or connect with stall_after=None to look no more",
        )
    return Finding(
        code="no_answer",
        level="error",
        what="the server does not say how the consumer is",
        evidence=f"{type(error).__name__}: {error}",
        fix="look at the servers of the cluster: a consumer without a leader neither answers nor delivers",
    )


def cannot_replace(error: JetStreamError, stream: str) -> Finding:
    """Return the finding for a reader that failed to replace its consumer. ``error`` belongs to its last attempt."""
    if isinstance(error, ApiError) and error.err_code == _CONSUMER_LIMIT:
        return Finding(
            code="consumer_limit",
            level="error",
            what="the server refuses another consumer",
            evidence=str(error),
            fix=f"delete consumers of stream {stream!r} that nobody uses, or raise max_consumers",
        )
    return Finding(
        code="no_consumer",
        level="error",
        what="the reader has lost its consumer and gets no other one",
        evidence=f"{type(error).__name__}: {error}",
        fix=f"look at the servers of stream {stream!r}; the reader tries again by itself",
    )


def _hanging(info: ConsumerInfo, local: Local | None) -> list[Finding]:
    """Report a handler of this client that has run too long while messages wait."""
    wait = _ack_wait(info)
    if local is None or not wait or not (local.waiting or info.num_pending):
        return []
    # A handler that always takes long isn't stuck, so compare this call with the longest earlier call as well.
    if local.running <= _SLOW * wait or local.running <= _EXCEEDS * local.longest:
        return []
    return [
        Finding(
            code="handler",
            level="warning",
            what=f"the handler of {local.message or 'a message'} has run longer than twice the ack_wait",
            evidence=f"it has run for {local.running:.0f} s, ack_wait is {wait:g} s; "
            f"{_wait(local.waiting)} for a handler here, {info.num_pending:,} at the server",
            fix="look at what the handler waits for; handler_timeout= ends one that hangs, concurrency= lets others "
            "run, and a larger ack_wait says that it takes this long",
        )
    ]


def handler_due(info: ConsumerInfo, local: Local) -> float | None:
    """Return the seconds until the running handler counts as hanging. None if no handler runs, or it already hangs."""
    wait = _ack_wait(info)
    if not local.running or not wait:
        return None
    remaining = max(_SLOW * wait, _EXCEEDS * local.longest) - local.running
    return remaining if remaining > 0 else None


def _ack_wait(info: ConsumerInfo) -> float:
    config = info.config
    return config.backoff[0] if config.backoff else config.ack_wait or 0.0


def _paused(info: ConsumerInfo, local: Local | None) -> Finding:
    remaining = info.pause_remaining or 0.0
    until = info.config.pause_until
    moment = f"until {until}" if until else f"for another {remaining:.0f} s"
    return Finding(
        code="paused",
        level="warning" if info.num_pending or local is None else "note",
        what=f"the consumer is paused {moment}",
        evidence=f"{remaining:.0f} s of the pause are left; {_wait(info.num_pending)}",
        fix="call resume() of the consumer (or wait for the end of the pause)",
    )


def _nothing_matches(info: ConsumerInfo, stream: StreamInfo | None) -> list[Finding]:
    if stream is None:
        return []
    config, filters = stream.config, info.config.filters
    subjects = config.subjects or []
    # Copied or transformed messages have other subjects than those in the configuration, so a filter may still match.
    if not filters or not subjects or config.mirror or config.sources or config.subject_transform:
        return []
    if any(subjects_overlap(name, subject) for name in filters for subject in subjects):
        return _nothing_stored_matches(info, stream)
    return [
        Finding(
            code="filter",
            level="error",
            what="the filter of the consumer matches nothing that the stream stores",
            evidence=f"it filters {_list(filters)}; stream {stream.name!r} stores {_list(subjects)}",
            fix="correct filter_subject of the consumer, or add the subject to the stream",
        )
    ]


def _nothing_stored_matches(info: ConsumerInfo, stream: StreamInfo) -> list[Finding]:
    """Report a filter that could match, but matches no stored message. It may be misspelt."""
    begins_with_old = info.config.deliver_policy in _OLD
    if (
        not begins_with_old
        or info.delivered.consumer_seq
        or info.num_ack_pending
        or not stream.state.messages
    ):
        return []
    stored = counted(stream.state.messages, "message")
    return [
        Finding(
            code="filter",
            level="warning",
            what="the filter of the consumer matches no message that is stored, and it has never delivered one",
            evidence=f"it filters {_list(info.config.filters)}; stream {stream.name!r} has {stored} on "
            f"{counted(stream.state.num_subjects, 'other subject')}",
            fix="compare the filter with the subjects of the messages, or wait for the first one",
        )
    ]


def copies(stream: StreamInfo | None, after: float) -> list[Finding]:
    """Report mirrors and sources that are silent, have failed, or lag and stored nothing for ``after`` seconds."""
    if stream is None:
        return []
    after = min(SILENT_MIRROR, after)
    findings = []
    for kind, copy in [("mirror", stream.mirror), *[("source", source) for source in stream.sources or ()]]:
        if copy is None:
            continue
        silent = copy.active is None or copy.active < 0 or copy.active > SILENT_MIRROR
        # A lag alone is normal. Report it only if the copy has also stopped storing messages.
        stands = copy.lag > 0 and not _recent(stream.state.last_ts, stream.ts, after)
        if not (silent or stands or copy.error):
            continue
        last_active = (
            "it was never heard of"
            if copy.active is None or copy.active < 0
            else f"it was last heard of {copy.active:.0f} s ago"
        )
        error = f"; the server says {copy.error.get('description', copy.error)!r}" if copy.error else ""
        limit, full = _stream_full(stream)
        findings.append(
            Finding(
                code="mirror",
                level="warning",
                what=f"stream {stream.name!r} does not follow its {kind} {copy.name!r}",
                evidence=f"{counted(copy.lag, 'message')} not copied yet; {last_active}{error}{full}",
                fix=f"raise {limit} of stream {stream.name!r}, and create it again if its server does not go on"
                if limit
                else f"look whether stream {copy.name!r} exists and can be reached from the server of {stream.name!r}, "
                "and whether start and filter are right",
            )
        )
    return findings


def _stream_full(stream: StreamInfo) -> tuple[str, str]:
    """Return the name and the values of the limit that makes a stream refuse messages, or two empty strings."""
    config, state = stream.config, stream.state
    if config.discard == DiscardPolicy.NEW:
        for name, limit, has in (
            ("max_msgs", config.max_msgs or 0, state.messages),
            ("max_bytes", config.max_bytes or 0, state.bytes),
        ):
            if 0 < _NEAR * limit <= has:
                return name, f"; its {name} is {limit:,}, it has {has:,}, and discard='new' refuses more"
    return "", ""


def no_leader(kind: Literal["consumer", "stream"], cluster: ClusterInfo | None) -> list[Finding]:
    """Report a replicated consumer or stream without a leader."""
    if cluster is None or not cluster.replicas or cluster.leader:
        return []
    away = [peer.name for peer in cluster.replicas if peer.offline]
    return [
        Finding(
            code="no_leader",
            level="error",
            what=f"the {kind} has no leader",
            evidence=f"servers that are offline: {', '.join(away) or 'none'}",
            fix="start the servers that are away: most of its replicas must be up",
        )
    ]


def _delivers(info: ConsumerInfo, local: Local | None) -> bool:
    """Return whether the consumer works.

    It may deliver to other clients, slowly, or only under a condition of the request.
    """
    config = info.config
    if local is None:
        return False
    if config.replay_policy == ReplayPolicy.ORIGINAL or config.rate_limit_bps:
        return True
    if config.priority_policy in (PriorityPolicy.OVERFLOW, PriorityPolicy.PRIORITIZED):
        return not _full(info)
    return _recent(info.delivered.last_active, info.ts, local.after)


def _recent(moment: datetime | None, now: datetime | None, within: float) -> bool:
    """Return whether ``moment`` was less than ``within`` seconds ago, minus a tenth for messages in flight."""
    return moment is not None and now is not None and now - moment < timedelta(seconds=0.9 * within)


def _no_interest(info: ConsumerInfo, local: Local | None) -> Iterable[Finding]:
    target = info.config.deliver_subject
    if not target:
        return
    # The consumer may have been recreated with a different deliver subject, while this client kept its subscription.
    elsewhere = local is not None and bool(local.subject) and local.subject != target
    if info.push_bound and not elsewhere:
        return
    listens = f"; this subscription listens on {local.subject!r}" if local is not None and elsewhere else ""
    somebody = (
        "another client listens there" if info.push_bound else "the server knows nobody who listens there"
    )
    yield Finding(
        code="no_interest",
        level="warning",
        what="the consumer delivers to a subject where this client does not listen"
        if elsewhere
        else "nobody listens where the consumer delivers",
        evidence=f"it delivers to {target!r}, and {somebody}{listens}; {_wait(info.num_pending)}",
        fix="subscribe again, which uses the subject of the consumer"
        if elsewhere
        else "subscribe to the consumer with JetStream.subscribe, or look whether the subscriber has the right to "
        "listen on this subject",
    )


def _pinned(info: ConsumerInfo, local: Local | None) -> Iterable[Finding]:
    if info.config.priority_policy != PriorityPolicy.PINNED_CLIENT:
        return
    for group in info.priority_groups or ():
        pin = group.pinned_client_id
        # This client gets messages if it is the pinned client itself, or if no client is pinned.
        if not pin or (local is not None and pin in local.pins):
            continue
        since = f", since {group.pinned_ts:%Y-%m-%d %H:%M:%S} UTC" if group.pinned_ts else ""
        yield Finding(
            code="pinned",
            level="warning",
            what=f"another client is pinned for group {group.group!r} and takes nothing"
            if local is not None
            else f"a client is pinned for group {group.group!r} and takes nothing",
            evidence=f"the pin is {pin!r}{since}; {_wait(info.num_pending)} for that client",
            fix=f"stop that client, or call unpin({group.group!r}) of the consumer; a shorter priority_timeout lets "
            "the server do it",
        )


def _full(info: ConsumerInfo) -> bool:
    limit = info.config.max_ack_pending or 0
    return 0 < limit <= info.num_ack_pending


def _max_ack_pending(info: ConsumerInfo, local: Local | None) -> Iterable[Finding]:
    if not _full(info):
        return
    unacked = info.num_ack_pending
    if local is not None and local.held is not None and local.held >= unacked:
        return  # the handlers of this client work on all these messages
    yield Finding(
        code="max_ack_pending",
        level="warning",
        what="max_ack_pending is reached: as many messages are delivered and not acked as the consumer allows",
        evidence=f"{unacked} of {info.config.max_ack_pending} are not acked, {info.num_redelivered} of them delivered "
        f"more than once; {_holders(unacked, local)}; {_wait(info.num_pending)}",
        fix="ack (or nak) every message that is delivered; look at clients that read and do not ack; or raise "
        "max_ack_pending. The server delivers them again after ack_wait",
    )


def _holders(unacked: int, local: Local | None) -> str:
    if local is None:
        return "the clients that received them hold them"
    mine = local.received if local.held is None else local.held
    if not mine:
        return "other clients hold them all"
    if mine < unacked:
        return f"this client holds {mine} at most, other clients hold the rest"
    return "this client received as many" if local.held is None else "this client holds them"


def _nobody_pulls(info: ConsumerInfo, local: Local | None) -> Iterable[Finding]:
    if local is not None or info.is_push or info.num_waiting or _full(info):
        return
    waits = f"no pull request waits at the server; {_wait(info.num_pending)}"
    # If messages are unacked, don't show the time of the last delivery. It is unreliable, because progress reports
    # count as deliveries.
    if unacked := info.num_ack_pending:
        yield Finding(
            code="no_request",
            level="warning",
            what="no client asks for more messages than it has",
            evidence=f"{waits}; {counted(unacked, 'is', 'are')} delivered and not acked",
            fix="look at the program that reads it: its handlers work on these messages, or hang",
        )
        return
    yield Finding(
        code="no_request",
        level="warning",
        what="no client asks for messages now",
        evidence=f"{waits}; the last delivery was {_ago(info.delivered.last_active, info.ts)}",
        fix="start the program that reads it, or look at it: it does something else",
    )


def _unexplained(info: ConsumerInfo, local: Local | None) -> Iterable[Finding]:
    """Report that no message was delivered between two checks although no other rule applies."""
    if local is None or local.before is None:
        return
    before = local.before
    # Compare only states of one consumer. A recreated consumer starts again at 0, and could seem to have stopped.
    stands = (
        before.name == info.name
        and before.num_pending
        and before.delivered.consumer_seq == info.delivered.consumer_seq
    )
    if stands and not _full(info) and not _recent(before.ts, info.ts, _BETWEEN_CHECKS):
        yield Finding(
            code="unexplained",
            level="warning",
            what="the server has messages for this client and delivers none",
            evidence=f"{_wait(info.num_pending)}, {counted(info.num_waiting, 'request waits', 'requests wait')}, the "
            f"last delivery was {_ago(info.delivered.last_active, info.ts)}",
            fix="run 'jsclient doctor' for this consumer, and look at the log of the server",
        )


def _wait(number: int) -> str:
    return counted(number, "message waits", "messages wait")


def _ago(moment: datetime | None, now: datetime | None) -> str:
    if moment is None:
        return "never"
    return f"{(now - moment).total_seconds():.0f} s ago" if now is not None else f"at {moment}"


def _list(subjects: list[str]) -> str:
    shown = ", ".join(repr(subject) for subject in subjects[:5])
    return f"{shown} and {len(subjects) - 5} more" if len(subjects) > 5 else shown

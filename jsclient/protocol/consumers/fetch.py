"""Pull requests, with their options and endings.

`PullRequest` is one ``CONSUMER.MSG.NEXT`` request from sending to end.

Source: ADR-13, ADR-37 §Pull, ADR-15 §Pull Mode Statuses.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from ...errors import ConfigError, DisconnectedError, HeartbeatError, JetStreamError, RequestTimeoutError
from ..models.consumer import ConsumerConfig
from ..wire.checks import check_count, check_seconds
from ..wire.units import seconds_to_ns
from .monitors import HeartbeatMonitor
from .priority import GroupRequest
from .status import Ending, classify

__all__ = [
    "Pull",
    "PullRequest",
    "check_pull",
    "default_expires",
    "default_heartbeat",
    "encode_pull",
    "not_answered",
    "whole_pull",
]

HEARTBEATS_ALLOWED = 2.0  # ADR-37: a request is lost after two intervals without a heartbeat
ANSWERED = 5.0  # how long the answer to a request with no_wait may take, in seconds
MARGIN = 0.5  # how long the client waits beyond ``expires`` for the server's status, in seconds


def default_heartbeat(expires: float) -> float | None:
    """Return the default idle heartbeat of a request of this length in seconds, or None for a short request.

    The server accepts at most half of ``expires``. A consumer whose leader dies loses its requests without a status.
    With a heartbeat of 2 s the requests are sent again after 4 s.
    """
    return None if expires < 2.0 else min(2.0, expires / 4)


def default_expires(pinning: ConsumerConfig | None = None) -> float:
    """Return the time in seconds after which the server ends a request of a continuous reader.

    ``pinning`` is the configuration of a consumer that pins clients. A waiting client must send a request again
    before its pin expires.
    """
    timeout = None if pinning is None else pinning.priority_timeout
    return 30.0 if not timeout else min(30.0, timeout / 2)


def not_answered(seconds: float) -> RequestTimeoutError:
    """Return the error for a request with no_wait that was not answered.

    It is unknown whether messages are available.
    """
    return RequestTimeoutError("no answer to a pull that does not wait", seconds)


def check_pull(
    batch: int, expires: float | None, max_bytes: int | None, idle_heartbeat: float | None
) -> None:
    """Raise an error for a request that the server would refuse.

    Raises:
        ConfigError: ``batch`` or ``max_bytes`` is less than 1, ``expires`` is not over 0, or the heartbeat is over half
            of ``expires``.
    """
    check_count("batch", batch)
    if max_bytes is not None:
        check_count("max_bytes", max_bytes)
    if expires is not None:
        check_seconds("expires", expires)
    if idle_heartbeat is not None:
        check_seconds("idle_heartbeat", idle_heartbeat)
        if expires is None or idle_heartbeat > expires / 2:
            raise ConfigError(
                f"idle_heartbeat is {idle_heartbeat} s: the server accepts at most half of expires ({expires} s)"
            )


class Pull(msgspec.Struct, frozen=True):
    """A request for messages. The fields have the names of the wire, but durations are in seconds.

    With ``no_wait``, ``expires`` is None, because the server answers at once. ``pin`` is the id of a pinned client.
    """

    batch: int
    expires: float | None = None
    max_bytes: int | None = None
    no_wait: bool = False
    idle_heartbeat: float | None = None
    group: GroupRequest | None = None
    pin: str | None = None


@lru_cache(maxsize=256)
def encode_pull(pull: Pull) -> bytes:
    """Return the body of the request. The result is cached, because a loop of fetches repeats the same request."""
    body: dict[str, int | bool | str | None] = {
        "batch": pull.batch,
        "expires": None if pull.expires is None else seconds_to_ns(pull.expires),
        "max_bytes": pull.max_bytes,
        "no_wait": pull.no_wait or None,
        "idle_heartbeat": None if pull.idle_heartbeat is None else seconds_to_ns(pull.idle_heartbeat),
        **({} if pull.group is None else msgspec.structs.asdict(pull.group)),
        "id": pull.pin,
    }
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


@lru_cache(maxsize=256, typed=True)
def _whole(  # noqa: PLR0917  all arguments are part of the cache key
    batch: int,
    expires: float,
    max_bytes: int | None,
    no_wait: bool,  # noqa: FBT001
    idle_heartbeat: float | None,
    group: GroupRequest | None,
) -> Pull:
    check_pull(batch, expires, max_bytes, None if no_wait else idle_heartbeat)
    if no_wait:
        return Pull(batch, None, max_bytes, no_wait=True, group=group)
    if idle_heartbeat is None:
        idle_heartbeat = default_heartbeat(expires)
    return Pull(batch, expires, max_bytes, idle_heartbeat=idle_heartbeat, group=group)


def whole_pull(
    batch: int,
    *,
    expires: float,
    max_bytes: int | None = None,
    no_wait: bool = False,
    idle_heartbeat: float | None = None,
    group: GroupRequest | None = None,
) -> Pull:
    """Return the request of a fetch. May raise any error of `check_pull`. Equal arguments return the same object."""
    try:
        return _whole(batch, expires, max_bytes, no_wait, idle_heartbeat, group)
    except TypeError:  # an unhashable value, such as a list: without the cache, the error names it
        return _whole.__wrapped__(batch, expires, max_bytes, no_wait, idle_heartbeat, group)


class PullRequest:
    """A request in flight. The server owes it messages until it ends.

    Attributes:
        owed: Number of messages that the server may still send.
        owed_bytes: Number of bytes that the server may still send, or None if there is no limit in bytes.
        pin: The pin that the request showed, or received while it waited.
        settled: Whether the server sends no more messages for the request. Otherwise its inbox must not be reused.
        answered: How long an answer to a request with no_wait may take, in seconds.
        over_at: The time at which the server should have reported the end, in monotonic seconds.
    """

    __slots__ = (
        "_heard_at",
        "_monitor",
        "answered",
        "ending",
        "error",
        "over_at",
        "owed",
        "owed_bytes",
        "pin",
        "pull",
        "sent_at",
        "settled",
    )

    def __init__(self, pull: Pull, sent_at: float, answered: float = ANSWERED) -> None:
        """Start to track a request. ``sent_at`` is in monotonic seconds."""
        self.pull: Pull = pull
        self.sent_at: float = sent_at
        self.answered: float = answered
        self.owed: int = pull.batch
        self.owed_bytes: int | None = pull.max_bytes
        self.pin: str | None = pull.pin
        self.ending: Ending | None = None
        self.error: JetStreamError | None = None
        self.settled: bool = False
        self.over_at: float = sent_at + (answered if pull.expires is None else pull.expires + MARGIN)
        self._heard_at = sent_at
        self._monitor: HeartbeatMonitor | None = None  # created when the server may be silent

    @property
    def ended(self) -> bool:
        """Whether the request has ended."""
        return self.ending is not None

    @property
    def is_unpinned(self) -> bool:
        """Whether the request was refused because of its pin. The same request without a pin may be served."""
        return self.ending is Ending.UNPINNED and self.pin is not None

    @property
    def deadline(self) -> float | None:
        """The time to call `check_deadline`, in monotonic seconds, or None."""
        if self.ending is not None:
            return None
        interval = self.pull.idle_heartbeat
        if interval is None:
            return self.over_at
        silent_at = self._heard_at + interval * HEARTBEATS_ALLOWED
        return min(self.over_at, silent_at if self._monitor is None else self._monitor.deadline)

    def data(self, now: float, size: int = 0, count: int = 1) -> None:
        """Count ``count`` messages that arrived, ``size`` bytes in total. The size is needed if bytes are limited."""
        self.owed -= count
        if self.owed_bytes is not None:
            self.owed_bytes -= size
        if self.pull.expires is None:
            self.over_at = now + self.answered
        self._heard_at, self._monitor = now, None
        if self.owed <= 0:
            self.settled = True
            if self.ending is None:
                self.ending = Ending.FULL
        elif self.owed_bytes is not None and self.owed_bytes <= 0:
            self.settled = True
            # If the bytes are used up exactly, the server sends no status, so end the request here.
            self.end_request(Ending.MAX_BYTES)

    def status(self, code: int, description: str, now: float) -> None:
        """Process a status that arrived on the inbox of this request."""
        self._heard_at, self._monitor = now, None
        verdict = classify(code, description)
        if verdict.ending is not None:
            error = None if verdict.error is None else verdict.error(code, description, verdict.retryable)
            ending = verdict.ending
            if ending is Ending.EXPIRED and self.pull.expires is None:
                # Server 2.10 sends this status for a request with no_wait if the stream had some of the requested
                # messages, but not all.
                ending = Ending.NO_MESSAGES
            self.settled = True
            self.end_request(ending, error)

    def check_deadline(self, now: float) -> None:
        """End the request if its deadline was reached, because the server is silent or its final status was lost."""
        if self.ending is not None:
            return
        interval = self.pull.idle_heartbeat
        if interval is not None and self._monitor is None:
            self._monitor = HeartbeatMonitor(interval, HEARTBEATS_ALLOWED, last_activity=self._heard_at)
        if self._monitor is not None and (silent := self._monitor.check_silence(now)) is not None:
            self.end_request(Ending.SILENT, HeartbeatError(silent))
            return
        if now < self.over_at:
            return
        if self.pull.expires is not None:
            self.end_request(Ending.EXPIRED)
        else:
            self.end_request(Ending.SILENT, not_answered(self.answered))

    def connection_lost(self) -> None:
        """End the request because the connection was lost."""
        self.end_request(
            Ending.DISCONNECTED, DisconnectedError("the connection was lost while a pull was in flight")
        )

    def end_request(self, ending: Ending, error: JetStreamError | None = None) -> None:
        """End the request. Only the first ending counts."""
        if self.ending is None:
            self.ending, self.error = ending, error

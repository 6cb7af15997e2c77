"""Pulling: what one request asks for, how it ends, and how a continuous reader keeps its buffer filled.

`PullRequest` is one ``CONSUMER.MSG.NEXT`` request and the life of it; `PullBuffer` is the accounting of a continuous
reader: it never holds more than it may, and asks again when it falls to its threshold.
Source: ADR-13, ADR-37 §Pull, ADR-15 §Pull Mode Statuses.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ...errors import (
    ConfigError,
    DisconnectedError,
    HeartbeatError,
    JetStreamError,
    RequestTimeoutError,
)
from ..models.consumer import ConsumerConfig
from ..wire import headers as names
from ..wire.headers import Headers
from ..wire.units import seconds_to_ns
from .heartbeat import HeartbeatMonitor
from .priority import GroupRequest
from .status import Ending, Meaning, classify

__all__ = [
    "Pull",
    "PullBuffer",
    "PullRequest",
    "check_pull",
    "default_expires",
    "default_heartbeat",
    "encode_pull",
    "not_answered",
]

HEARTBEATS_ALLOWED = 2.0  # ADR-37: two silent intervals are an alarm
ANSWERED = 5.0  # seconds in which a request with no_wait is answered
MARGIN = 0.5  # seconds the client waits beyond ``expires`` for the server's own word


def default_heartbeat(expires: float) -> float | None:
    """The idle heartbeat that goes with a request of this length, seconds; None for short ones.

    The server takes at most half of ``expires``.
    """
    return None if expires < 2.0 else min(5.0, expires / 4)


def default_expires(pinning: ConsumerConfig | None = None) -> float:
    """How long the server holds the requests of a continuous reader, seconds.

    ``pinning`` is the consumer where it pins clients: one that waits must ask anew before its pin runs out.
    """
    timeout = None if pinning is None else pinning.priority_timeout
    return 30.0 if not timeout else min(30.0, timeout / 2)


def not_answered(seconds: float) -> RequestTimeoutError:
    """The error of a request with no_wait about which the server said nothing: whether anything is there is unknown."""
    return RequestTimeoutError("no answer to a pull that does not wait", seconds)


def check_pull(
    batch: int, expires: float | None, max_bytes: int | None, idle_heartbeat: float | None
) -> None:
    """Refuse a request that the server would.

    Raises:
        ConfigError: ``batch`` or ``max_bytes`` under 1, ``expires`` not over 0, a heartbeat over half of it.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ConfigError(f"batch is {batch!r}: it must be a whole number of 1 or more")
    if max_bytes is not None and (
        isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1
    ):
        raise ConfigError(f"max_bytes is {max_bytes!r}: it must be a whole number of 1 or more")
    if expires is not None and not _is_time(expires):
        raise ConfigError(f"expires is {expires!r} s: it must be over 0")
    if idle_heartbeat is not None:
        if not _is_time(idle_heartbeat):
            raise ConfigError(f"idle_heartbeat is {idle_heartbeat!r} s: it must be over 0")
        if expires is None or idle_heartbeat > expires / 2:
            raise ConfigError(
                f"idle_heartbeat is {idle_heartbeat} s: the server takes at most half of expires ({expires} s)"
            )


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < float("inf")


class Pull(msgspec.Struct, frozen=True):
    """One request for messages, in the words of the wire but with seconds.

    ``expires`` None with ``no_wait``: the server answers at once with what it has. ``pin``: the id of a pinned client.
    """

    batch: int
    expires: float | None = None
    max_bytes: int | None = None
    no_wait: bool = False
    idle_heartbeat: float | None = None
    group: GroupRequest | None = None
    pin: str | None = None


def encode_pull(pull: Pull) -> bytes:
    """The body of the request."""
    body: dict[str, int | bool | str] = {"batch": pull.batch}
    if pull.expires is not None:
        body["expires"] = seconds_to_ns(pull.expires)
    if pull.max_bytes is not None:
        body["max_bytes"] = pull.max_bytes
    if pull.no_wait:
        body["no_wait"] = True
    if pull.idle_heartbeat is not None:
        body["idle_heartbeat"] = seconds_to_ns(pull.idle_heartbeat)
    if pull.group is not None:
        said = msgspec.structs.asdict(pull.group)
        body |= {name: value for name, value in said.items() if value is not None}
    if pull.pin is not None:
        body["id"] = pull.pin
    return msgspec.json.encode(body)


@dataclass(slots=True)
class PullRequest:
    """The life of one request: so many messages are owed until it ends."""

    pull: Pull
    sent_at: float  # monotonic seconds
    owed: int = 0
    owed_bytes: int | None = None  # None: not bounded
    ending: Ending | None = None
    error: JetStreamError | None = None
    pin: str | None = None  # that it showed, or was given by the server while it waited
    settled: bool = False  # the server sends nothing more for it; else its inbox fits no other request
    _monitor: HeartbeatMonitor | None = None

    def __post_init__(self) -> None:
        self.owed, self.owed_bytes, self.pin = self.pull.batch, self.pull.max_bytes, self.pull.pin
        if self.pull.idle_heartbeat is not None:
            self._monitor = HeartbeatMonitor(
                self.pull.idle_heartbeat, HEARTBEATS_ALLOWED, last_heard=self.sent_at
            )

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.ending is not None

    @property
    def is_unpinned(self) -> bool:
        """Whether it was refused for its pin, and not as such: the same without one may be served."""
        return self.ending is Ending.UNPINNED and self.pin is not None

    @property
    def deadline(self) -> float | None:
        """When to call `tick`, monotonic seconds."""
        if self.ended:
            return None
        over = self._over_at
        return over if self._monitor is None else min(over, self._monitor.deadline)

    @property
    def _over_at(self) -> float:
        """When the server should have ended it by its word."""
        return self.sent_at + (ANSWERED if self.pull.expires is None else self.pull.expires + MARGIN)

    def data(self, now: float, size: int = 0, count: int = 1) -> None:
        """Messages of ``size`` bytes together arrived."""
        self.owed -= count
        if self.owed_bytes is not None:
            self.owed_bytes -= size
        if self._monitor is not None:
            self._monitor.heard(now)
        if self.owed <= 0:
            self.settled = True
            self._end(Ending.FULL)
        elif self.owed_bytes is not None and self.owed_bytes <= 0:
            self.settled = True
            self._end(Ending.MAX_BYTES)  # filled to the byte: the server says nothing more

    def status(self, code: int, description: str, now: float) -> None:
        """A status arrived on the inbox of this request."""
        if self._monitor is not None:
            self._monitor.heard(now)
        verdict = classify(code, description)
        if verdict.ending is not None:
            error = None if verdict.error is None else verdict.error(code, description, verdict.retryable)
            ending = verdict.ending
            if ending is Ending.EXPIRED and self.pull.expires is None:
                ending = Ending.NO_MESSAGES  # so a server of 2.10 ends no_wait where it had some, but not all
            self.settled = True
            self._end(ending, error)

    def tick(self, now: float) -> None:
        """The deadline was reached: the server fell silent, or its word that the time is over was lost."""
        if self.ended:
            return
        if self._monitor is not None and (silent := self._monitor.tick(now)) is not None:
            self._end(Ending.SILENT, HeartbeatError(silent))
            return
        if now < self._over_at:
            return
        if self.pull.expires is not None:
            self._end(Ending.EXPIRED)
        else:
            self._end(Ending.SILENT, not_answered(ANSWERED))

    def disconnected(self) -> None:
        """The connection that carried it is gone, and the request with it."""
        self._end(
            Ending.DISCONNECTED, DisconnectedError("the connection was lost while a pull was under way")
        )

    def denied(self, error: JetStreamError) -> None:
        """This user may not ask for messages, or may not be sent them."""
        self._end(Ending.REFUSED, error)

    def closed(self) -> None:
        """Nobody reads any more."""
        self._end(Ending.CLOSED)

    def _end(self, ending: Ending, error: JetStreamError | None = None) -> None:
        if self.ending is None:
            self.ending, self.error = ending, error


@dataclass(slots=True)
class PullBuffer:
    """Keeps a continuous reader supplied: ``owed + buffered`` never passes the limits.

    Asked for but not delivered (*owed*) and delivered but not taken (*buffered*) are counted apart: a new connection
    knows nothing of what is owed, but what is buffered is still to be read.
    """

    max_messages: int
    threshold: int  # ask again when this many, or fewer, are owed or buffered
    max_bytes: int | None = None  # the bound in bytes; then requests carry max_bytes
    owed: int = 0
    buffered: int = 0
    buffered_bytes: int = 0
    owed_bytes: int = 0
    online: bool = False
    paused_until: float | None = None  # monotonic seconds: the server refused, ask again then
    refusals: int = 0  # in a row
    _asked_bytes: int = 0  # by the last request, in a reader bounded in bytes
    _came: bool = False  # a message came since

    def ask(self) -> tuple[int, int | None] | None:
        """How many messages, and bytes, to ask for now; None: not now."""
        if not self.online or self.paused_until is not None:
            return None
        if self.max_bytes is None:
            missing = self.max_messages - self.owed - self.buffered
            if missing <= 0 or self.owed + self.buffered > self.threshold:
                return None
            self.owed += missing
            return missing, None
        room = self.max_bytes - self.owed_bytes - self.buffered_bytes
        missing = self.max_messages - self.owed - self.buffered
        if self.owed > 0 or missing <= 0 or room < max(1, self.max_bytes // 2):
            return None
        self.owed, self.owed_bytes = missing, room
        self._asked_bytes, self._came = room, False
        return missing, room

    def connected(self) -> None:
        """A connection is there. It knows no request of ours."""
        self.online, self.owed, self.owed_bytes = True, 0, 0
        self.paused_until, self.refusals = None, 0

    def disconnected(self) -> None:
        """The connection is gone, and with it what was owed."""
        self.online, self.owed, self.owed_bytes = False, 0, 0

    def delivered(self, size: int, count: int = 1) -> None:
        """Messages of ``size`` bytes together arrived."""
        self.owed = max(0, self.owed - count)
        self.owed_bytes = max(0, self.owed_bytes - size) if self.owed else 0
        if self.max_bytes is not None and not self.owed_bytes:
            self.owed = 0  # filled to the byte: the server ends the request without a word
        self.buffered += count
        self.buffered_bytes += size
        self.refusals, self._came = 0, True

    def taken(self, size: int, count: int = 1) -> None:
        """The user took messages of ``size`` bytes together."""
        self.buffered -= count
        self.buffered_bytes -= size

    def ended(self, meaning: Meaning, ending: Ending, fields: Headers, now: float) -> bool:
        """A request ended unfilled. The server says how much of it; where it does not, count from nothing.

        An answer that refuses comes at once: asking again at once would spin, so the pause doubles up to 5 s.

        Returns: whether the next message is larger than all that may be asked for, so that none will come.
        """
        unserved = _whole(fields.get(names.PENDING_MESSAGES))
        unserved_bytes = _whole(fields.get(names.PENDING_BYTES))
        self.owed = 0 if unserved is None else max(0, self.owed - unserved)
        self.owed_bytes = (
            0 if unserved_bytes is None or not self.owed else max(0, self.owed_bytes - unserved_bytes)
        )
        too_large = ending is Ending.MAX_BYTES and not self._came
        if meaning is not Meaning.ENDED or too_large:
            self.refusals += 1
            self.paused_until = now + min(5.0, 0.05 * 2 ** min(self.refusals - 1, 10))
        return too_large and self._asked_bytes == self.max_bytes

    def silent(self) -> None:
        """The heartbeats stopped: what is owed is given up, and asked for again."""
        self.owed = self.owed_bytes = 0

    def tick(self, now: float) -> None:
        """The pause may be over."""
        if self.paused_until is not None and now >= self.paused_until:
            self.paused_until = None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) <= 20 else None

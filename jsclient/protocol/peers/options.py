"""The options of an engine and its peers, and rules that approve requests automatically."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict
from urllib.parse import urlsplit

from ...errors import ConfigError
from ..wire.checks import check_count
from ..wire.names import check_publish_subject, check_stream_name
from .channel import PREFIX
from .relationship import Attrs

__all__ = ["EngineFields", "EngineOptions", "accept_roles"]

_DAY: Final = 86_400.0


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineOptions:
    """The options of an `Engine`. Pass them as keyword arguments to `Engine`.

    Attributes:
        host: The URL, including the protocol, at which other NATS systems reach the peers of this engine. By default,
            only peers on the same system can reach them.
        allowed_hosts: The URLs of other NATS systems to which the engine may connect, exactly as peers write them in
            ``Tx_host``. By default, no host is allowed, because strangers choose ``Tx_host``. Pass a mapping to give
            arguments of `jsclient.connect` for each URL, such as credentials.
        requests: If true, anyone can make a peer send a request for a relationship, by sending the event
            ``wrangler:subscription`` to the well-known channel of the peer. Pico Labs' picos allow this. Defaults to
            False.
        max_inbound: Maximum number of undecided requests of each peer. Further requests wait in the stream, except
            those that `Peer.auto_accept` approves. Defaults to 1,000.
        remember: How long a relationship is remembered after its end, in seconds. Must be greater than ``max_age``.
            Defaults to 7 days.
        retry_delay: How long until the first redelivery of a message that a peer can't handle yet, in seconds. The
            delay doubles each time, up to 60 seconds. Defaults to 5 seconds.
        max_deliver: Maximum number of attempts to handle an event whose handlers raise exceptions. Defaults to 10.
        handler_delay: How long to wait after the handlers of an event have failed for the first time, in seconds. The
            delay doubles with each further attempt, up to 60 seconds. Defaults to 0.5 seconds.
        concurrency: Number of channels of a peer whose events are handled concurrently. Events on the same channel are
            handled in order, except for redelivered events. Defaults to 4.
        prefix: The prefix of the subjects of events, queries and state. Two engines with the same prefix on the same
            NATS account act as one engine. Defaults to ``pico``.
        events_stream: Name of the stream that stores events. A missing stream is created, and an existing one is never
            changed. Defaults to the prefix in upper case followed by ``_EVENTS``, for example ``PICO_EVENTS``.
        state_stream: Name of the stream that stores the channels and relationships of peers. Defaults to the prefix in
            upper case followed by ``_STATE``, for example ``PICO_STATE``.
        max_age: How long an event waits for a peer that isn't running, in seconds. Applies when the engine creates the
            stream of events. An existing stream keeps its own ``max_age``, which must be less than ``remember`` too.
            Defaults to 3 days.
        max_waiting: Maximum number of waiting events of one type on one channel. The stream refuses further events, and
            the sender tries again later. Defaults to 10,000.
        max_event_size: Maximum size of an event in bytes. Defaults to 128 KiB.
        replicas: Number of replicas of new streams. Defaults to 1.
        storage: Type of storage of new streams, "file" (the default) or "memory".
        reply_prefix: The prefix that the reply subject of a query must have. Queries with other reply subjects aren't
            answered, because strangers choose the reply subject. Defaults to ``_INBOX``.

    Raises:
        ConfigError: An option is out of range, or a URL is malformed or contains a password.
        InvalidNameError: A prefix or the name of a stream is invalid.
    """

    host: str | None = None
    allowed_hosts: Collection[str] | Mapping[str, Mapping[str, Any]] = ()
    requests: bool = False
    max_inbound: int = 1000
    remember: float = 7 * _DAY
    retry_delay: float = 5.0
    max_deliver: int = 10
    handler_delay: float = 0.5
    concurrency: int = 4
    prefix: str = PREFIX
    events_stream: str = ""
    state_stream: str = ""
    max_age: float = 3 * _DAY
    max_waiting: int = 10_000
    max_event_size: int = 128 * 1024
    replicas: int = 1
    storage: Literal["file", "memory"] = "file"
    reply_prefix: str = "_INBOX"

    def __post_init__(self) -> None:
        check_publish_subject(self.prefix)
        check_publish_subject(self.reply_prefix)
        for field, kind in (("events_stream", "EVENTS"), ("state_stream", "STATE")):
            name = getattr(self, field) or f"{self.prefix.upper().replace('.', '_')}_{kind}"
            object.__setattr__(self, field, check_stream_name(name))
        for field in ("max_inbound", "max_deliver", "concurrency", "max_waiting", "max_event_size"):
            check_count(field, getattr(self, field))
        if self.handler_delay < 0 or not 0 < self.max_age < self.remember:
            raise ConfigError("max_age must be above 0 and below remember, and handler_delay 0 or more")
        if self.retry_delay <= 0:
            raise ConfigError(f"retry_delay is {self.retry_delay!r:.60}, needs seconds above 0")
        if isinstance(self.allowed_hosts, str):
            raise ConfigError("allowed_hosts is a str, needs a list of URLs")
        for url in (*self.allowed_hosts, *(() if self.host is None else (self.host,))):
            _check_host(url)


class EngineFields(TypedDict, total=False):
    """A ``TypedDict`` of the keyword arguments of `Engine`, for annotations. ``EngineOptions`` describes them."""

    host: str | None
    allowed_hosts: Collection[str] | Mapping[str, Mapping[str, Any]]
    requests: bool
    max_inbound: int
    remember: float
    retry_delay: float
    max_deliver: int
    handler_delay: float
    concurrency: int
    prefix: str
    events_stream: str
    state_stream: str
    max_age: float
    max_waiting: int
    max_event_size: int
    replicas: int
    storage: Literal["file", "memory"]
    reply_prefix: str


def _check_host(url: object) -> None:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or not parts.scheme or not parts.hostname:
        # Don't show what precedes an "@", because it may contain a password.
        seen = f"...@{url.rpartition('@')[2]}" if isinstance(url, str) and "@" in url else url
        raise ConfigError(
            f"the host {seen!r:.100} is not a URL with its protocol, such as 'tls://b.example:4222'"
        )
    if parts.password is not None:
        raise ConfigError(
            f"the URL of host {parts.hostname!r} has a password, and URLs are sent to peers: "
            "give allowed_hosts as a mapping from URLs to what connect() takes"
        )


def accept_roles(**attributes: str | Collection[str] | None) -> Callable[[Attrs], bool]:
    """Create a rule that approves requests whose attributes have the given values. Pass it to `Peer.auto_accept`.

    For example, ``accept_roles(Rx_role="door", Tx_role={"owner", "guest"})`` approves requests of owners and guests.
    All given attributes must match. Their names are from the point of view of the accepting peer, so ``Rx_role`` is the
    role of the accepting peer.

    Args:
        attributes: Each value is a string, a collection of acceptable strings, or None if the attribute must be
            missing.

    Raises:
        ConfigError: No attributes were given. Such a rule would approve every request.
    """
    if not attributes:
        raise ConfigError("name an attribute, for example Rx_role='thing': without one all would be approved")

    def accepts(attrs: Attrs) -> bool:
        return all(_fits(value, attrs.get(name)) for name, value in attributes.items())

    return accepts


def _fits(required: str | Collection[str] | None, value: object) -> bool:
    if required is None or isinstance(required, str):
        return value == required
    return isinstance(value, str) and value in required

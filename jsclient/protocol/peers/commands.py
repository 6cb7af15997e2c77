"""The events and commands of `PeerTracker`.

Time is seconds since 1970, UTC, because it is stored.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import msgspec

from .channel import Policy, StoredChannel
from .relationship import Attrs, Fresh, Raise, Relationship, Send

__all__ = [
    "Answer",
    "Ask",
    "CloseChannel",
    "Command",
    "Done",
    "Install",
    "OpenChannel",
    "PeerEvent",
    "Queried",
    "Raised",
    "Received",
    "Refusal",
    "Refuse",
    "RemovePeer",
    "Retry",
    "Store",
    "Stored",
    "Tick",
]


# --- events ----------------------------------------------------------------------------------------------


class Install(msgspec.Struct, frozen=True):
    """The peer gets the capability to have relationships; repeated at each start."""

    fresh: Fresh


class Raised(msgspec.Struct, frozen=True):
    """The peer raised an event in itself. ``policy`` is for the channel that the event makes or approves."""

    domain: str
    type: str
    attrs: Attrs
    fresh: Fresh
    policy: Policy | None = None


class Received(msgspec.Struct, frozen=True):
    """An event on a channel, with a JSON object."""

    eci: str
    domain: str
    type: str
    attrs: Attrs
    fresh: Fresh


class Queried(msgspec.Struct, frozen=True):
    """A query on a channel."""

    eci: str
    rid: str
    name: str
    args: Attrs


class OpenChannel(msgspec.Struct, frozen=True):
    """Make a channel for a use of one's own."""

    tags: tuple[str, ...]
    policy: Policy
    fresh: Fresh


class CloseChannel(msgspec.Struct, frozen=True):
    """Remove a channel that was made so; the well-known one and those of relationships stay."""

    eci: str


class Stored(msgspec.Struct, frozen=True):
    """The store holds this under ``key``: a `Store` was done, or it was read, at the start or after a conflict.

    ``value`` is None if it holds nothing; the next `Store` has to name ``revision``.
    """

    key: str
    value: Relationship | StoredChannel | None
    revision: int


class Done(msgspec.Struct, frozen=True):
    """A `Send` or `Raise` with this ``key`` and ``id`` was carried out or abandoned."""

    key: str
    id: str


class RemovePeer(msgspec.Struct, frozen=True):
    """The peer is to be removed: all its relationships end, pending or established."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


PeerEvent: TypeAlias = (
    Install | Raised | Received | Queried | OpenChannel | CloseChannel | Stored | Done | RemovePeer | Tick
)


# --- commands -------------------------------------------------------------------------------------------


class Store(msgspec.Struct, frozen=True):
    """Write ``value`` under ``key`` if the last revision of the key is ``revision``, 0 for none; None deletes it.

    `Stored` has to follow, after a conflict with the stored value; the event that led here is
    to be handled again.
    """

    key: str
    value: Relationship | StoredChannel | None
    revision: int


class Retry(msgspec.Struct, frozen=True):
    """Redeliver the message after ``delay`` seconds, because of ``reason``."""

    delay: float
    reason: str


class Refusal(Enum):
    """The reason of a refusal."""

    NO_CHANNEL = "no such channel"
    CHANNEL_GONE = "the channel was deleted"
    POLICY = "the channel's policy"
    NOT_INSTALLED = "this peer cannot have relationships"
    MALFORMED = "it is malformed"
    HOST = "the host is not allowed"
    FOREIGN = "it does not belong to the channel it came on"


class Refuse(msgspec.Struct, frozen=True):
    """The message is never to be handled: end it and count it. A query is answered so."""

    refusal: Refusal
    detail: str = ""


class Answer(msgspec.Struct, frozen=True):
    """The answer to a query."""

    value: Any


class Ask(msgspec.Struct, frozen=True):
    """The query may pass: let the peer's own function answer it."""

    rid: str
    name: str
    args: Attrs


Command: TypeAlias = Store | Send | Raise | Retry | Refuse | Answer | Ask

"""What a peer is told, and what it says is to be done: the vocabulary of `PeerTracker`.

Time is seconds since 1970, UTC, because it is stored.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import msgspec

from .channel import Policy, StoredChannel
from .outbox import Attrs, Fresh, Raise, Send
from .relationship import Relationship

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


# --- what happens ----------------------------------------------------------------------------------------


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
    """An event came on a channel; what is no JSON object does not get here."""

    eci: str
    domain: str
    type: str
    attrs: Attrs
    fresh: Fresh


class Queried(msgspec.Struct, frozen=True):
    """A query came on a channel."""

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

    ``value`` is None where it holds nothing, ``revision`` what the next `Store` has to name.
    """

    key: str
    value: Relationship | StoredChannel | None
    revision: int


class Done(msgspec.Struct, frozen=True):
    """A `Send` or `Raise` with this ``key`` and ``id`` was carried out, or given up for good."""

    key: str
    id: str


class RemovePeer(msgspec.Struct, frozen=True):
    """The peer is to be removed: all its relationships end, pending or established."""


class Tick(msgspec.Struct, frozen=True):
    """Nothing but time passed."""


PeerEvent: TypeAlias = (
    Install | Raised | Received | Queried | OpenChannel | CloseChannel | Stored | Done | RemovePeer | Tick
)


# --- what is to be done ----------------------------------------------------------------------------------


class Store(msgspec.Struct, frozen=True):
    """Write ``value`` under ``key`` if the last revision of the key is ``revision``, 0 for none; None deletes it.

    `Stored` is to follow, also where somebody else was faster: then with what is there, and the event that led here is
    to be handled again.
    """

    key: str
    value: Relationship | StoredChannel | None
    revision: int


class Retry(msgspec.Struct, frozen=True):
    """Not now: let the message be delivered again after ``delay`` seconds, and tell why."""

    delay: float
    reason: str


class Refusal(Enum):
    """Why a message is refused."""

    NO_CHANNEL = "no such channel"
    CHANNEL_GONE = "the channel was deleted"
    POLICY = "the channel's policy"
    NOT_INSTALLED = "this peer cannot have relationships"
    MALFORMED = "it makes no sense"
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

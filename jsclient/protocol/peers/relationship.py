"""A relationship between two peers, as one of them keeps it: its record, and how it is found.

::

    requester   (nothing) ── request ──► OUTBOUND ── approved ──► ESTABLISHED ── either ends it ──► REMOVED
                                            └── revoked, rejected ─────────────────────────────────► REMOVED
    accepter    (nothing) ── requested ─► INBOUND ── approves ──► ESTABLISHED ── either ends it ──► REMOVED
                                            └── rejects, revoked ──────────────────────────────────► REMOVED

There is one record per Id and peer. A removal wins over all else. A removed record remains for a while: it knows the
channels of requests that are over, so that one that is delivered again, or late, does not come to life.

Source: the picos' subscriptions (io.picolabs.subscription): its events, attributes and lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from ...errors import ProtocolError
from .channel import Policy, StoredChannel
from .outbox import Attrs, OutboxItem

__all__ = [
    "CHANNEL_KEY",
    "MAX_DEAD",
    "RELATIONSHIP_KEY",
    "Dead",
    "Relationship",
    "State",
    "filtered",
    "read_value",
    "selected",
    "targets",
    "write_value",
]

CHANNEL_KEY: Final = "channel."
RELATIONSHIP_KEY: Final = "relationship."
MAX_DEAD: Final = 64
"""How many channels of requests that are over a record knows."""


class State(Enum):
    """Where a relationship stands, from one side."""

    OUTBOUND = "outbound"  # requested here
    INBOUND = "inbound"  # requested by the other side
    ESTABLISHED = "established"
    REMOVED = "removed"


class Dead(msgspec.Struct, frozen=True):
    """A request that is over: the channel it named, and until when that is remembered."""

    tx: str
    until: float


_NAMES = {
    "id": "Id",
    **{name: name.capitalize() for name in ("tx", "rx", "tx_role", "rx_role", "tx_host")},
    **{
        name: name.capitalize()
        for name in ("tx_verify_key", "tx_public_key", "rx_verify_key", "rx_public_key")
    },
    "well_known_tx": "wellKnown_Tx",
}


class Relationship(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_NAMES):
    """A relationship, from one side.

    Attributes:
        id: The same on both sides.
        state: Where it stands.
        nonce: A part of the ids of its messages: an Id may be used again.
        requester: Whether this side asked for it.
        rx: The own channel, on which the other side sends.
        tx: The other side's channel, None until it is known.
        rx_role: The role of this side.
        tx_role: The role of the other side.
        tx_host: The NATS system of the other side, None for this one.
        well_known_tx: The channel on which the request was sent.
        tx_verify_key: The other side's key, as `Fresh` has it; ``tx_public_key`` too.
        rx_verify_key: The own key, which is told to the other side; ``rx_public_key`` too.
        name: What the requester called it.
        channel_type: What the requester called its kind.
        policy: That of the own channel.
        attrs: The attributes of the request, until it is decided.
        until: When a removed record may be forgotten.
        dead: Requests with this Id that are over.
        outbox: What is still to be told, in order.
    """

    id: str
    state: State
    nonce: str = ""
    requester: bool = False
    rx: str | None = None
    tx: str | None = None
    rx_role: str | None = None
    tx_role: str | None = None
    tx_host: str | None = None
    well_known_tx: str | None = None
    tx_verify_key: str | None = None
    tx_public_key: str | None = None
    rx_verify_key: str | None = None
    rx_public_key: str | None = None
    name: str | None = None
    channel_type: str | None = None
    policy: Policy = Policy()
    attrs: Attrs = {}
    until: float = 0.0
    dead: tuple[Dead, ...] = ()
    outbox: tuple[OutboxItem, ...] = ()

    @property
    def live(self) -> bool:
        """Whether it is pending or established."""
        return self.state is not State.REMOVED

    @property
    def key(self) -> str:
        """Under which it is stored."""
        return RELATIONSHIP_KEY + self.id

    def to_attrs(self) -> Attrs:
        """All that a user needs to know of it, in the words of the picos; unknown is None."""
        known: Attrs = {
            "Id": self.id,
            "Tx": self.tx,
            "Rx": self.rx,
            "Tx_role": self.tx_role,
            "Rx_role": self.rx_role,
            "Tx_host": self.tx_host,
            "Tx_verify_key": self.tx_verify_key,
            "Tx_public_key": self.tx_public_key,
            "name": self.name,
            "channel_type": self.channel_type,
        }
        return known if self.well_known_tx is None else known | {"wellKnown_Tx": self.well_known_tx}

    def knows_dead(self, tx: str, now: float) -> bool:
        """Whether a request that named this channel is over."""
        return any(one.tx == tx and now < one.until for one in self.dead)

    def with_dead(self, tx: str, until: float, now: float) -> tuple[Dead, ...]:
        """Its dead requests with one more, without those that may be forgotten."""
        kept = tuple(one for one in self.dead if now < one.until and one.tx != tx)
        return (*kept, Dead(tx, until))


def write_value(value: Relationship | StoredChannel) -> bytes:
    """What is stored, as JSON."""
    return msgspec.json.encode(value)


def read_value(key: str, data: bytes) -> Relationship | StoredChannel:
    """What is stored under ``key``.

    Raises:
        ProtocolError: It is no channel and no relationship, or that of another key.
    """
    kind: type[Relationship | StoredChannel] = StoredChannel if key.startswith(CHANNEL_KEY) else Relationship
    try:
        value: Relationship | StoredChannel = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"what is stored under {key!r:.80} is no {kind.__name__.lower()}: {error}"
        ) from None
    if isinstance(value, Relationship) and value.key != key:
        raise ProtocolError(f"under {key!r:.80} is stored the relationship {value.id!r:.80}")
    return value


def selected(
    records: Iterable[Relationship], attrs: Mapping[str, Any], eci: str | None
) -> Relationship | None:
    """The relationship that ``attrs`` name: by ``Id``, else ``Rx``, else ``Tx``, else the channel the event came on.

    The first of them that is given decides: a wrong Id does not fall back on a channel. One that is over is found by
    its Id or Rx, where no other has them, so that what is asked for again is known as done.
    """
    known = list(records)
    if attrs.get("Id") is not None:
        return next((one for one in known if one.id == attrs["Id"]), None)
    if attrs.get("Rx") is not None:
        found = [one for one in known if one.rx == attrs["Rx"]]
        return next((one for one in found if one.live), found[0] if found else None)
    if attrs.get("Tx") is not None:
        return next((one for one in known if one.live and one.tx == attrs["Tx"]), None)
    return next((one for one in known if eci is not None and one.live and one.rx == eci), None)


def targets(
    records: Iterable[Relationship],
    *,
    id: str | None = None,
    tx_role: str | None = None,
    rx_role: str | None = None,
) -> list[Relationship]:
    """The established relationships with this Id, or this role of the other side, or this role here; each once."""
    return [
        one
        for one in records
        if one.state is State.ESTABLISHED
        and (
            (id is not None and one.id == id)
            or (tx_role is not None and one.tx_role == tx_role)
            or (rx_role is not None and one.rx_role == rx_role)
        )
    ]


def filtered(
    records: Iterable[Relationship], state: State, key: str | None = None, value: object = None
) -> list[Attrs]:
    """The relationships in a state, as `Relationship.to_attrs` has them; with a key those where it has this value."""
    found = [one.to_attrs() for one in records if one.state is state]
    return found if key is None else [one for one in found if key in one and one[key] == value]

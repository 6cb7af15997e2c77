"""A relationship between two peers, as one of them stores it: its record, its transitions, and its lookup.

::

    requester   (nothing) ── request ──► OUTBOUND ── approved ──► ESTABLISHED ── either ends it ──► REMOVED
                                            └── revoked, rejected ─────────────────────────────────► REMOVED
    accepter    (nothing) ── requested ─► INBOUND ── approves ──► ESTABLISHED ── either ends it ──► REMOVED
                                            └── rejects, revoked ──────────────────────────────────► REMOVED

There is one record per Id and peer. A removal takes precedence over all other events. A removed record is kept for a
while, with the channels of its finished requests, so that late or redelivered requests can be ignored.

Transitions are pure functions from a record to the next record. The messages of a transition are stored with the
record in its *outbox*, so none of them is lost in a crash. Message ids are derived from the Id of the relationship, a
nonce and the event. Every attempt to send a message therefore uses the same id, and a repeated message has no effect.

Source: the picos' subscriptions (io.picolabs.subscription): its events, attributes and lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

import msgspec

from ...errors import ProtocolError
from .channel import Policy, StoredChannel

__all__ = [
    "CHANNEL_KEY",
    "MAX_DEAD",
    "RELATIONSHIP_KEY",
    "Attrs",
    "Dead",
    "Fresh",
    "OutboxItem",
    "Raise",
    "Relationship",
    "RelationshipState",
    "Send",
    "approved",
    "ended",
    "established",
    "extras",
    "filtered",
    "inbound",
    "outbound",
    "read_value",
    "refused_twin",
    "selected",
    "targets",
    "tombstone",
    "write_value",
]

Attrs: TypeAlias = dict[str, Any]


class Fresh(msgspec.Struct, frozen=True):
    """Unguessable names for the records that an event creates, and the public keys of their channel.

    The caller provides the randomness. A redelivered message must get the same names again, so derive them from the
    message and a secret.

    Attributes:
        id: The Id of a new relationship, which is also used in message ids.
        channel: The second token of the ECI of a new channel.
        verify_key, public_key: The keys with which others verify signatures of the channel's owner and encrypt data
        for the owner, or None.
    """

    id: str
    channel: str
    verify_key: str | None = None
    public_key: str | None = None


class Send(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="send"):
    """Publish the event ``domain``, ``type`` with its ``attrs`` on another peer's channel ``eci``.

    ``id`` is the message id, which is the same for each attempt. ``host`` is the URL of the other NATS system, or
    None for this system. ``key`` is the key of the relationship whose outbox contains the item. `Done` must be
    reported for such an item. If the caller waits for the event instead, ``key`` is empty.
    """

    eci: str
    domain: str
    type: str
    attrs: Attrs
    id: str
    host: str | None = None
    key: str = ""


class Raise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="raise"):
    """Call the peer's own handlers with the event ``domain``, ``type`` and its ``attrs``.

    ``id`` is the same for each attempt, and empty if the event is never repeated. ``error`` is the reason if the
    event reports a failure, otherwise it is empty. ``eci`` is the channel on which the event arrived, or None if the
    peer raised it. ``key`` is the key of the relationship whose outbox contains the item. `Done` must be reported for
    such an item. If the item is in no outbox, ``key`` is empty.
    """

    domain: str
    type: str
    attrs: Attrs
    id: str = ""
    error: str = ""
    eci: str | None = None
    key: str = ""


OutboxItem: TypeAlias = Send | Raise


CHANNEL_KEY: Final = "channel."
RELATIONSHIP_KEY: Final = "relationship."
MAX_DEAD: Final = 64
"""The maximum number of channels of finished requests that a record remembers."""


class RelationshipState(Enum):
    """The state of a relationship, as seen by one side."""

    OUTBOUND = "outbound"  # requested by this side
    INBOUND = "inbound"  # requested by the other side
    ESTABLISHED = "established"
    REMOVED = "removed"


class Dead(msgspec.Struct, frozen=True):
    """A finished request. ``tx`` is its channel, and ``until`` the time until which the request is remembered."""

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
    """A relationship, as stored by one side. ``rx`` is this side's channel, and ``tx`` the channel of the other side.

    Attributes:
        id: The identifier, which is the same on both sides.
        nonce: Part of the ids of the relationship's messages, which keeps them unique if an Id is used again.
        requester: Whether this side requested it.
        tx_host: The NATS system of the other side, or None for this system.
        well_known_tx: The channel on which the request was sent.
        name, channel_type: The name and kind of the relationship, chosen by the requester.
        policy: The policy of this side's channel.
        attrs: The attributes of the request, which are kept until the request is decided.
        until: Time after which a removed record may be forgotten.
        dead: Finished requests with this Id.
        outbox: Messages still to be sent, in order.
    """

    id: str
    state: RelationshipState
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
        """Whether the relationship is pending or established."""
        return self.state is not RelationshipState.REMOVED

    @property
    def key(self) -> str:
        """The key under which the relationship is stored."""
        return RELATIONSHIP_KEY + self.id

    def to_attrs(self) -> Attrs:
        """Return the attributes of the relationship for users, with the names that picos use.

        Unknown values are None.
        """
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
        """Return whether a request from this channel is known to be finished."""
        return any(dead.tx == tx and now < dead.until for dead in self.dead)

    def with_dead(self, tx: str, until: float, now: float) -> tuple[Dead, ...]:
        """Return the remembered requests with a finished request added, and without the expired ones."""
        remembered = tuple(dead for dead in self.dead if now < dead.until and dead.tx != tx)
        return (*remembered, Dead(tx, until))


def write_value(value: Relationship | StoredChannel) -> bytes:
    """Encode a value as JSON."""
    return msgspec.json.encode(value)


def read_value(key: str, data: bytes) -> Relationship | StoredChannel:
    """Decode the value of ``key``. Raises `ProtocolError` if it is invalid, or belongs to another key."""
    kind: type[Relationship | StoredChannel] = StoredChannel if key.startswith(CHANNEL_KEY) else Relationship
    try:
        value: Relationship | StoredChannel = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the value of {key!r:.80} is not a {kind.__name__.lower()}: {error}") from None
    if isinstance(value, Relationship) and value.key != key:
        raise ProtocolError(f"the value of {key!r:.80} is the relationship {value.id!r:.80}")
    return value


def selected(
    records: Iterable[Relationship], attrs: Mapping[str, Any], eci: str | None
) -> Relationship | None:
    """Return the relationship that ``attrs`` or the channel of the event identify, or None.

    The first of ``Id``, ``Rx`` and ``Tx`` that is present decides. The channel counts only if all three are missing,
    so a wrong Id never falls back on a channel. A relationship that has ended can still be selected by its Id or Rx
    if no other relationship has them, so that a repeated request is recognized.
    """
    known = list(records)
    if attrs.get("Id") is not None:
        return next((record for record in known if record.id == attrs["Id"]), None)
    if attrs.get("Rx") is not None:
        matching = [record for record in known if record.rx == attrs["Rx"]]
        return next((record for record in matching if record.live), matching[0] if matching else None)
    if attrs.get("Tx") is not None:
        return next((record for record in known if record.live and record.tx == attrs["Tx"]), None)
    return next((record for record in known if eci is not None and record.live and record.rx == eci), None)


def targets(
    records: Iterable[Relationship],
    *,
    id: str | None = None,
    tx_role: str | None = None,
    rx_role: str | None = None,
) -> list[Relationship]:
    """Return every established relationship that has this ``id``, ``tx_role`` or ``rx_role``."""
    return [
        record
        for record in records
        if record.state is RelationshipState.ESTABLISHED
        and (
            (id is not None and record.id == id)
            or (tx_role is not None and record.tx_role == tx_role)
            or (rx_role is not None and record.rx_role == rx_role)
        )
    ]


def filtered(
    records: Iterable[Relationship], state: RelationshipState, key: str | None = None, value: object = None
) -> list[Attrs]:
    """Return the attributes of the relationships in a state, optionally only those whose ``key`` has this ``value``."""
    matching = [one.to_attrs() for one in records if one.state is state]
    return matching if key is None else [one for one in matching if key in one and one[key] == value]


_DOMAIN: Final = "wrangler"

_OWN: Final = {*_NAMES.values(), "subID", "Rx_host", "wellKnown_Rx", "name", "channel_type"}

# Maps each state in which a relationship can end to three events. The first is sent to the other side. The second and
# third are raised on this side, as an internal and a public event.
_ENDS: Final = {
    RelationshipState.OUTBOUND: ("inbound_removal", "outbound_removal", "outbound_subscription_cancelled"),
    RelationshipState.INBOUND: ("outbound_removal", "inbound_removal", "inbound_subscription_cancelled"),
    RelationshipState.ESTABLISHED: ("established_removal", "established_removal", "subscription_removed"),
}


def extras(attrs: Mapping[str, Any]) -> Attrs:
    """Return the user's attributes, which are passed on unchanged."""
    return {name: value for name, value in attrs.items() if name not in _OWN}


def outbound(
    before: Relationship | None, fields: Relationship, attrs: Attrs, own_host: str | None
) -> Relationship:
    """Create the record of a request that this side sends.

    ``fields`` is the incomplete record, and ``attrs`` are the attributes of the request. The other side receives all
    of these attributes. Those of the relationship are sent from the other side's point of view, with the roles
    swapped, and with this side's channel, host and keys as ``Tx``.
    """
    known = attrs | fields.to_attrs()
    request = known | {
        "Tx": fields.rx,
        "Tx_role": fields.rx_role,
        "Rx_role": fields.tx_role,
        "Tx_host": None if fields.tx_host is None else own_host,
        "Tx_verify_key": fields.rx_verify_key,
        "Tx_public_key": fields.rx_public_key,
    }
    request.pop("Rx")
    assert fields.well_known_tx is not None
    return msgspec.structs.replace(
        fields,
        state=RelationshipState.OUTBOUND,
        requester=True,
        attrs=extras(attrs),
        dead=() if before is None else before.dead,
        outbox=(
            *(() if before is None else before.outbox),
            _raise(fields, "subscription_request_needed", known),
            _send(fields, "new_subscription_request", request, fields.well_known_tx, fields.tx_host),
            _raise(fields, "outbound_pending_subscription_added", known),
        ),
    )


def inbound(before: Relationship | None, fields: Relationship, attrs: Attrs) -> Relationship:
    """Create the record of a received request. ``fields`` is the incomplete record, ``attrs`` are its attributes."""
    return msgspec.structs.replace(
        fields,
        state=RelationshipState.INBOUND,
        attrs=extras(attrs),
        dead=() if before is None else before.dead,
        outbox=(
            *(() if before is None else before.outbox),
            _raise(fields, "inbound_pending_subscription_added", attrs | fields.to_attrs()),
        ),
    )


def established(record: Relationship, attrs: Mapping[str, Any], policy: Policy | None = None) -> Relationship:
    """Approve a request on this side. The user's attributes in ``attrs`` are sent to the other side as well."""
    passed = record.attrs | extras(attrs)
    after = msgspec.structs.replace(
        record,
        state=RelationshipState.ESTABLISHED,
        attrs={},
        policy=record.policy if policy is None else policy,
    )
    sent_attrs = passed | {
        "Id": record.id,
        "Tx": record.rx,
        "Tx_verify_key": record.rx_verify_key,
        "Tx_public_key": record.rx_public_key,
    }
    assert record.tx is not None
    return _with(
        after,
        _send(after, "outbound_pending_subscription_approved", sent_attrs, record.tx, record.tx_host),
        _raise(after, "subscription_added", passed | after.to_attrs()),
    )


def approved(record: Relationship, tx: str, attrs: Mapping[str, Any]) -> Relationship:
    """Establish a relationship that the other side has approved, with its channel ``tx``."""
    passed = record.attrs | extras(attrs)
    after = msgspec.structs.replace(
        record,
        state=RelationshipState.ESTABLISHED,
        tx=tx,
        tx_verify_key=_text(attrs.get("Tx_verify_key")),
        tx_public_key=_text(attrs.get("Tx_public_key")),
        attrs={},
    )
    return _with(after, _raise(after, "subscription_added", passed | after.to_attrs()))


def ended(
    record: Relationship, attrs: Mapping[str, Any], until: float, now: float, *, notify: bool
) -> Relationship:
    """End the relationship, whatever its state. If ``notify`` is True, inform the other side."""
    passed = extras(attrs)
    sent_attrs = {"Id": record.id, **passed}
    eci = record.tx
    # The other side's own channel is still unknown, so send the event to its public channel. There, the attribute Tx
    # proves that the sender is the side that requested the relationship.
    if record.state is RelationshipState.OUTBOUND:
        sent_attrs, eci = sent_attrs | {"Tx": record.rx}, record.well_known_tx
    assert eci is not None
    sent, inner, outer = _ENDS[record.state]
    shown = passed | record.to_attrs()
    after = Relationship(
        id=record.id,
        state=RelationshipState.REMOVED,
        nonce=record.nonce,
        rx=record.rx,
        until=until,
        dead=record.dead
        if record.requester or record.tx is None
        else record.with_dead(record.tx, until, now),
        outbox=record.outbox,
    )
    sends = (_send(record, sent, sent_attrs, eci, record.tx_host),) if notify else ()
    return _with(after, *sends, _raise(record, inner, shown), _raise(record, outer, shown))


def tombstone(id: str, tx: str, until: float) -> Relationship:
    """Return the record of a request that was revoked before it arrived."""
    return Relationship(id=id, state=RelationshipState.REMOVED, until=until, dead=(Dead(tx, until),))


def refused_twin(
    record: Relationship, request: Attrs, tx_host: str | None, fresh: Fresh, *, until: float, now: float
) -> Relationship:
    """Refuse a request whose Id belongs to another relationship, and inform the requester."""
    tx = request["Tx"]
    sent_attrs = {"Id": record.id, "failed_request": "duplicate_id_failure"}
    after = msgspec.structs.replace(record, dead=record.with_dead(tx, until, now))
    shown = extras(request) | {"Id": record.id, "Tx": tx, "Tx_host": tx_host}
    refusal = msgspec.structs.replace(record, nonce=fresh.id)
    return _with(
        after,
        _send(refusal, "outbound_removal", sent_attrs, tx, tx_host),
        _raise(
            refusal, "duplicate_id_failure", shown, error=f"there is a relationship {record.id!r} already"
        ),
    )


def _send(record: Relationship, type: str, attrs: Attrs, eci: str, host: str | None) -> Send:
    return Send(
        eci=eci,
        domain=_DOMAIN,
        type=type,
        attrs=attrs,
        id=f"{record.id}.{record.nonce}.{type}",
        host=host,
        key=record.key,
    )


def _raise(record: Relationship, type: str, attrs: Attrs, error: str = "") -> Raise:
    return Raise(
        domain=_DOMAIN,
        type=type,
        attrs=attrs,
        id=f"{record.id}.{record.nonce}.raise.{type}",
        error=error,
        key=record.key,
    )


def _with(record: Relationship, *items: OutboxItem) -> Relationship:
    return msgspec.structs.replace(record, outbox=(*record.outbox, *items))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

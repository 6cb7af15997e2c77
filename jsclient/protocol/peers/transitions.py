"""The transitions of a relationship: pure functions from a record to the next one.

What a transition has to tell, the other peer and the own handlers, is stored with it in its *outbox*: a crash in
between loses nothing, and what was told twice changes nothing. The ids of what is told are made of the relationship
(its Id), a nonce and the event, so that each try has the same one.

Source: the picos' subscriptions (io.picolabs.subscription).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .channel import Policy
from .outbox import Attrs, Fresh, OutboxItem, Raise, Send
from .relationship import Dead, Relationship, State

__all__ = ["approved", "ended", "established", "extras", "inbound", "outbound", "refused_twin", "tombstone"]

_DOMAIN: Final = "wrangler"
_OWN: Final = frozenset(
    {
        *(
            "Id",
            "subID",
            "Tx",
            "Rx",
            "Tx_role",
            "Rx_role",
            "Tx_host",
            "Rx_host",
            "wellKnown_Tx",
            "wellKnown_Rx",
        ),
        *("Tx_verify_key", "Tx_public_key", "Rx_verify_key", "Rx_public_key", "name", "channel_type"),
    }
)
# What is sent to the other side, what is raised here, and what users listen to.
_ENDS: Final = {
    State.OUTBOUND: ("inbound_removal", "outbound_removal", "outbound_subscription_cancelled"),
    State.INBOUND: ("outbound_removal", "inbound_removal", "inbound_subscription_cancelled"),
    State.ESTABLISHED: ("established_removal", "established_removal", "subscription_removed"),
}


def extras(attrs: Mapping[str, Any]) -> Attrs:
    """The attributes that are the users' own and pass through."""
    return {name: value for name, value in attrs.items() if name not in _OWN}


def outbound(
    before: Relationship | None, fields: Relationship, attrs: Attrs, own_host: str | None
) -> Relationship:
    """A request is made. ``fields`` is its record so far, ``attrs`` what was raised.

    All that was raised goes with it, and is seen by the other side; what belongs to the relationship is as that side
    has to see it: roles swapped, channel, host and keys those of this side.
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
        state=State.OUTBOUND,
        requester=True,
        attrs=extras(attrs),
        dead=() if before is None else before.dead,
        outbox=(
            *(() if before is None else before.outbox),
            _tell(fields, "subscription_request_needed", known),
            _send(fields, "new_subscription_request", request, fields.well_known_tx, fields.tx_host),
            _tell(fields, "outbound_pending_subscription_added", known),
        ),
    )


def inbound(before: Relationship | None, fields: Relationship, attrs: Attrs) -> Relationship:
    """A request came. ``fields`` is its record so far, ``attrs`` what came with it."""
    return msgspec.structs.replace(
        fields,
        state=State.INBOUND,
        attrs=extras(attrs),
        dead=() if before is None else before.dead,
        outbox=(
            *(() if before is None else before.outbox),
            _tell(fields, "inbound_pending_subscription_added", attrs | fields.to_attrs()),
        ),
    )


def established(record: Relationship, attrs: Mapping[str, Any], policy: Policy | None = None) -> Relationship:
    """This side approves the request. What is in ``attrs`` beyond the relationship's own goes to the other side too."""
    passed = record.attrs | extras(attrs)
    after = msgspec.structs.replace(
        record, state=State.ESTABLISHED, attrs={}, policy=record.policy if policy is None else policy
    )
    told = passed | {
        "Id": record.id,
        "Tx": record.rx,
        "Tx_verify_key": record.rx_verify_key,
        "Tx_public_key": record.rx_public_key,
    }
    assert record.tx is not None
    return _with(
        after,
        _send(after, "outbound_pending_subscription_approved", told, record.tx, record.tx_host),
        _tell(after, "subscription_added", passed | after.to_attrs()),
    )


def approved(record: Relationship, tx: str, attrs: Mapping[str, Any]) -> Relationship:
    """The other side has approved the request, and its channel is ``tx``."""
    passed = record.attrs | extras(attrs)
    after = msgspec.structs.replace(
        record,
        state=State.ESTABLISHED,
        tx=tx,
        tx_verify_key=_text(attrs.get("Tx_verify_key")),
        tx_public_key=_text(attrs.get("Tx_public_key")),
        attrs={},
    )
    return _with(after, _tell(after, "subscription_added", passed | after.to_attrs()))


def ended(
    record: Relationship, attrs: Mapping[str, Any], until: float, now: float, *, tell: bool
) -> Relationship:
    """The relationship ends, in whatever state it is. ``tell``: the other side does not know yet."""
    passed = extras(attrs)
    told = {"Id": record.id, **passed}
    eci = record.tx
    if record.state is State.OUTBOUND:  # on a public channel: proof of being the requester
        told, eci = told | {"Tx": record.rx}, record.well_known_tx
    assert eci is not None
    sent, inner, outer = _ENDS[record.state]
    shown = passed | record.to_attrs()
    after = Relationship(
        id=record.id,
        state=State.REMOVED,
        nonce=record.nonce,
        rx=record.rx,
        until=until,
        dead=record.dead
        if record.requester or record.tx is None
        else record.with_dead(record.tx, until, now),
        outbox=record.outbox,
    )
    sends = (_send(record, sent, told, eci, record.tx_host),) if tell else ()
    return _with(after, *sends, _tell(record, inner, shown), _tell(record, outer, shown))


def tombstone(id: str, tx: str, until: float) -> Relationship:
    """A request was taken back before it came."""
    return Relationship(id=id, state=State.REMOVED, until=until, dead=(Dead(tx, until),))


def refused_twin(
    record: Relationship, request: Attrs, tx_host: str | None, fresh: Fresh, *, until: float, now: float
) -> Relationship:
    """A request came with the Id of another relationship: the requester is told, and the request is over."""
    tx = request["Tx"]
    told = {"Id": record.id, "failed_request": "duplicate_id_failure"}
    after = msgspec.structs.replace(record, dead=record.with_dead(tx, until, now))
    shown = extras(request) | {"Id": record.id, "Tx": tx, "Tx_host": tx_host}
    refusal = msgspec.structs.replace(record, nonce=fresh.id)
    return _with(
        after,
        _send(refusal, "outbound_removal", told, tx, tx_host),
        _tell(refusal, "duplicate_id_failure", shown, error=f"there is a relationship {record.id!r} already"),
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


def _tell(record: Relationship, type: str, attrs: Attrs, error: str = "") -> Raise:
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

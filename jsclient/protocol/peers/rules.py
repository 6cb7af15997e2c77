"""The rules by which a peer decides about an event.

`RequestRules` decides requests of the peer itself, and `MessageRules` decides messages of other peers. Both return
records to store and commands, and change no state. A message of another peer is matched by its channel, never by the
Id alone, since a sender on one relationship's channel must not reach another. A message on a public channel has to name
Id and the requester's channel (D25).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn, TypeAlias, TypeGuard

import msgspec

from ...errors import InvalidNameError
from ..wire.names import check_token
from .channel import PROTOCOL_EVENTS, Policy, StoredChannel, channel_eci, check_eci, relationship_policy
from .options import EngineOptions
from .relationship import (
    MAX_DEAD,
    Attrs,
    Fresh,
    Raise,
    Relationship,
    RelationshipState,
    Send,
    approved,
    ended,
    established,
    inbound,
    outbound,
    refused_twin,
    selected,
    targets,
    tombstone,
)

__all__ = [
    "FLOW_EVENTS",
    "STARTS",
    "Answer",
    "Ask",
    "CloseChannel",
    "Command",
    "Decided",
    "Done",
    "Install",
    "MessageRules",
    "OpenChannel",
    "PeerEvent",
    "Queried",
    "Raised",
    "Received",
    "Redeliver",
    "Refusal",
    "Refuse",
    "RemovePeer",
    "RequestRules",
    "StoreValue",
    "Stored",
    "Tick",
]


class Install(msgspec.Struct, frozen=True):
    """Give the peer the capability to have relationships. The event is repeated at each start."""

    fresh: Fresh


class Raised(msgspec.Struct, frozen=True):
    """An event that the peer raised in itself. ``policy`` is for the channel that the event creates or approves."""

    domain: str
    type: str
    attrs: Attrs
    fresh: Fresh
    policy: Policy | None = None


class Received(msgspec.Struct, frozen=True):
    """An event that arrived on a channel. ``attrs`` is its JSON object."""

    eci: str
    domain: str
    type: str
    attrs: Attrs
    fresh: Fresh


class Queried(msgspec.Struct, frozen=True):
    """A query that arrived on a channel."""

    eci: str
    rid: str
    name: str
    args: Attrs


class OpenChannel(msgspec.Struct, frozen=True):
    """Create a channel for the application."""

    tags: tuple[str, ...]
    policy: Policy
    fresh: Fresh


class CloseChannel(msgspec.Struct, frozen=True):
    """Remove a channel that `OpenChannel` created. Other channels cannot be removed."""

    eci: str


class Stored(msgspec.Struct, frozen=True):
    """Reports the stored value of ``key``, or None. The next `StoreValue` of the key must expect ``revision``."""

    key: str
    value: Relationship | StoredChannel | None
    revision: int


class Done(msgspec.Struct, frozen=True):
    """A `Send` or `Raise` with this ``key`` and ``id`` was carried out or abandoned."""

    key: str
    id: str


class RemovePeer(msgspec.Struct, frozen=True):
    """Remove the peer. All its relationships end, pending or established."""


class Tick(msgspec.Struct, frozen=True):
    """Reports that time has passed."""


PeerEvent: TypeAlias = (
    Install | Raised | Received | Queried | OpenChannel | CloseChannel | Stored | Done | RemovePeer | Tick
)


class StoreValue(msgspec.Struct, frozen=True):
    """Write ``value`` under ``key``, or delete the key if it is None.

    ``revision`` is the key's expected revision, or 0. The runtime must then report `Stored`, as for each key at the
    start. After a conflict, `Stored` contains the value that is in the store, and the event must be handled again.
    """

    key: str
    value: Relationship | StoredChannel | None
    revision: int


class Redeliver(msgspec.Struct, frozen=True):
    """Redeliver the message after ``delay`` seconds, because of ``reason``."""

    delay: float
    reason: str


class Refusal(Enum):
    """Why a peer refused an event or a query.

    ``NO_CHANNEL``: There is no such channel. ``CHANNEL_GONE``: The channel's relationship has ended. ``POLICY``: The
    channel's policy doesn't accept the message. ``NOT_INSTALLED``: The peer was opened with ``capability=False``.
    ``MALFORMED``: The message is invalid. ``HOST``: The sender's NATS system isn't among the ``allowed_hosts``.
    ``FOREIGN``: The message concerns a relationship to which the channel doesn't belong.
    """

    NO_CHANNEL = "no such channel"
    CHANNEL_GONE = "the channel was deleted"
    POLICY = "the channel's policy"
    NOT_INSTALLED = "this peer cannot have relationships"
    MALFORMED = "it is malformed"
    HOST = "the host is not allowed"
    FOREIGN = "it does not belong to the channel it came on"


class Refuse(msgspec.Struct, frozen=True):
    """End the message without handling it, and count it. A refused query is answered with the refusal."""

    refusal: Refusal
    detail: str = ""


class Answer(msgspec.Struct, frozen=True):
    """Answer the query with this value."""

    value: Any


class Ask(msgspec.Struct, frozen=True):
    """Let the peer's function answer the query, which the policy allows."""

    rid: str
    name: str
    args: Attrs


Command: TypeAlias = StoreValue | Send | Raise | Redeliver | Refuse | Answer | Ask


Decided = list[Relationship | Command]

FLOW_EVENTS: Final = frozenset(
    {*PROTOCOL_EVENTS, "wrangler:new_subscription_request", "wrangler:inbound_removal"}
)
"""Events by which peers start and end relationships. `MessageRules` decides them."""

STARTS: Final = frozenset({"wrangler:subscription", "wrangler:new_subscription_request"})
"""Events that create the channel of a relationship. Their `Fresh` contains its keys, if keys are available."""

_ID = re.compile(r"[A-Za-z0-9_=-]{1,100}")


class _FailureError(Exception):
    """Raised when a request fails, with the type of the event that reports it, and the reason."""

    def __init__(self, type: str, reason: str) -> None:
        super().__init__(type, reason)
        self.type = type
        self.reason = reason


@dataclass(slots=True)
class RequestRules:
    """Decides requests of the peer itself. ``eci`` is the channel if another peer made the request, or None."""

    peer: str
    options: EngineOptions
    records: Collection[Relationship]
    eci: str | None

    def decide(self, event: Raised, now: float) -> Decided:
        """Decide about an event of `jsclient.protocol.peers.channel.API_EVENTS`."""
        try:
            match event.type:
                case "subscription":
                    return self._request(event)
                case "pending_subscription_approval":
                    return self._approve(event)
                case "send_event_on_subs":
                    return self._send_event(event)
                case _:
                    return self._end_relationship(event, now)
        except _FailureError as failure:
            why = f"wrangler:{event.type}: {failure.reason}"
            return [Raise(domain="wrangler", type=failure.type, attrs=event.attrs, error=why, eci=self.eci)]

    def _request(self, event: Raised) -> Decided:
        attrs, fresh = event.attrs, event.fresh
        try:
            well_known = check_eci(attrs.get("wellKnown_Tx"))
        except InvalidNameError as error:
            _fail("wellKnown_Tx_format_failure", str(error))
        own_id = fresh.id if attrs.get("Id") is None else attrs["Id"]
        if not _is_id(own_id):
            _fail(
                "Id_format_failure",
                f"Id {own_id!r:.60} is not of up to 100 letters, digits and '_', '-', '='",
            )
        rx = channel_eci(self.peer, fresh.channel)
        before = selected(self.records, {"Id": own_id}, None)
        # The channel's name is derived from the event. If a record has this channel, the event was handled before.
        if before is not None and before.rx == rx:
            return []
        if before is not None and (before.live or any(isinstance(item, Send) for item in before.outbox)):
            what = "it exists" if before.live else "the end of the former one is still being sent"
            _fail("duplicate_id_failure", f"Id {own_id!r}: {what}")
        fields = Relationship(
            id=own_id,
            state=RelationshipState.OUTBOUND,
            nonce=fresh.id,
            rx=rx,
            rx_role=_role(attrs, "Rx_role"),
            tx_role=_role(attrs, "Tx_role"),
            tx_host=self._host(attrs.get("Tx_host")),
            well_known_tx=well_known,
            rx_verify_key=fresh.verify_key,
            rx_public_key=fresh.public_key,
            name=_text(attrs.get("name")) or own_id,
            channel_type=_text(attrs.get("channel_type")) or "subscription",
            policy=relationship_policy(event.policy),
        )
        return [outbound(before, fields, attrs, self.options.host)]

    def _host(self, host: object) -> str | None:
        """Return the host of the other peer, or None for this host."""
        if host is None or host == self.options.host:
            return None
        if not isinstance(host, str) or host not in self.options.allowed_hosts:
            _fail("Tx_host_failure", f"{host!r:.100} is not one of the allowed hosts")
        if self.options.host is None:
            _fail("Tx_host_failure", "this peer has no host of its own by which the other one could answer")
        return host

    def _approve(self, event: Raised) -> Decided:
        record = self._selected(event.attrs)
        if record.state is RelationshipState.OUTBOUND:
            _fail("no_such_subscription_failure", "it was requested here: the other side has to approve it")
        if record.state is not RelationshipState.INBOUND:
            return []
        policy = None if event.policy is None else relationship_policy(event.policy)
        return [established(record, event.attrs, policy)]

    def _end_relationship(self, event: Raised, now: float) -> Decided:
        record = self._selected(event.attrs)
        if not record.live:
            return []
        if event.type == "inbound_rejection" and record.requester:
            _fail("no_such_subscription_failure", "it was requested here: it can be cancelled, not rejected")
        if event.type == "outbound_cancellation" and not record.requester:
            _fail("no_such_subscription_failure", "it was requested by the other side: it can be rejected")
        return [ended(record, event.attrs, now + self.options.remember, now, notify=True)]

    def _selected(self, attrs: Attrs) -> Relationship:
        record = selected(self.records, attrs, self.eci)
        if record is None:
            named = {name: attrs[name] for name in ("Id", "Rx", "Tx") if attrs.get(name) is not None}
            what = f"with {named}"[:250] if named else "named: give its Id, or Rx or Tx"
            _fail("no_such_subscription_failure", f"no relationship {what}")
        return record

    def _send_event(self, event: Raised) -> Decided:
        attrs, failure = event.attrs, "failed_to_send_event_to_sub"
        payload = attrs.get("attrs")
        names = {}
        for word in ("domain", "type"):
            if attrs.get(word) is None:
                _fail(failure, f"no {word}")
            try:
                names[word] = check_token(attrs[word], word)
            except InvalidNameError as error:
                _fail(failure, str(error))
        if payload is not None and not isinstance(payload, dict):
            _fail(failure, "its attrs are not an object")
        matching = targets(
            self.records,
            id=attrs.get("Id") if attrs.get("subID") is None else attrs["subID"],
            tx_role=_role(attrs, "Tx_role"),
            rx_role=_role(attrs, "Rx_role"),
        )
        if not matching:
            named = {n: attrs[n] for n in ("Id", "subID", "Tx_role", "Rx_role") if attrs.get(n) is not None}
            which = f"is established with {named}" if named else "is named: give Id, Tx_role or Rx_role"
            _fail(failure, f"no relationship {which}"[:300])
        # Use a different id for each relationship. With a common id, later events would count as duplicates.
        message = event.fresh.id
        return [
            Send(eci=one.tx or "", **names, attrs=payload or {}, id=f"{message}.{one.id}", host=one.tx_host)
            for one in matching
        ]


@dataclass(slots=True)
class MessageRules:
    """Decides messages of other peers. ``record`` in its methods is the relationship of their channel."""

    peer: str
    options: EngineOptions
    by_id: Callable[[str], Relationship | None]
    waiting: int  # number of requests that wait for a decision
    accepts: Callable[[Attrs], bool] | None

    def decide(self, event: Received, record: Relationship | None, now: float) -> Decided:
        """Decide about an event of `FLOW_EVENTS` that the channel's policy accepted."""
        if event.type == "new_subscription_request":
            return self._requested(event, now)
        if event.type == "inbound_removal":
            return self._taken_back(event, now)
        if record is None:
            return [Refuse(Refusal.FOREIGN, f"{event.type} on a channel of no relationship")]
        if event.attrs.get("Id", record.id) != record.id:
            return [Refuse(Refusal.FOREIGN, f"{event.type} for another relationship")]
        if event.type == "outbound_pending_subscription_approved":
            return self._approved(event, record)
        if event.type == "outbound_removal" and record.state is not RelationshipState.OUTBOUND:
            return [Refuse(Refusal.FOREIGN, "a rejection of a relationship that is not pending here")]
        return [ended(record, event.attrs, self._until(now), now, notify=False)]

    def _until(self, now: float) -> float:
        return now + self.options.remember

    def _retry(self, reason: str) -> Decided:
        return [Redeliver(self.options.retry_delay, reason)]

    def _approved(self, event: Received, record: Relationship) -> Decided:
        tx = event.attrs.get("Tx")
        if not _is_eci(tx):
            return [Refuse(Refusal.MALFORMED, "an approval without the channel of the other side")]
        if record.state is RelationshipState.OUTBOUND:
            return [approved(record, tx, event.attrs)]
        return [] if record.tx == tx else [Refuse(Refusal.FOREIGN, "a second approval, with another channel")]

    def _requested(self, event: Received, now: float) -> Decided:
        attrs, fresh = event.attrs, event.fresh
        which, tx, host = attrs.get("Id"), attrs.get("Tx"), attrs.get("Tx_host")
        if tx is None:
            error = "a request without Tx, the channel of the requester"
            return [Raise(domain="wrangler", type="no_Tx_failure", attrs=attrs, error=error, eci=event.eci)]
        roles = (attrs.get("Rx_role"), attrs.get("Tx_role"))
        if (
            not _is_id(which)
            or not _is_eci(tx)
            or not all(role is None or isinstance(role, str) for role in roles)
        ):
            return [Refuse(Refusal.MALFORMED, "the Id, Tx or a role of a request")]
        host = None if host == self.options.host else host
        if host is not None and (not isinstance(host, str) or host not in self.options.allowed_hosts):
            return [Refuse(Refusal.HOST, f"{host!r:.100}")]
        before = self.by_id(which)
        if before is not None and (before.knows_dead(tx, now) or _is_same(before, tx)):
            return []  # the request was received before
        if before is not None and before.live:
            if len(before.dead) >= MAX_DEAD:
                return self._retry("too many requests with the Id of one relationship")
            return [refused_twin(before, attrs, host, fresh, until=self._until(now), now=now)]
        if before is not None and any(isinstance(item, Send) for item in before.outbox):
            return self._retry("the end of the former relationship with this Id is still being sent")
        fields = Relationship(
            id=which,
            state=RelationshipState.INBOUND,
            nonce=fresh.id,
            rx=channel_eci(self.peer, fresh.channel),
            tx=tx,
            rx_role=roles[0],
            tx_role=roles[1],
            tx_host=host,
            tx_verify_key=_text(attrs.get("Tx_verify_key")),
            tx_public_key=_text(attrs.get("Tx_public_key")),
            rx_verify_key=fresh.verify_key,
            rx_public_key=fresh.public_key,
            name=_text(attrs.get("name")) or which,
            channel_type=_text(attrs.get("channel_type")),
            policy=relationship_policy(),
        )
        after = inbound(before, fields, attrs)
        if self.accepts is not None and self.accepts(attrs | fields.to_attrs()):
            return [established(after, {})]
        if self.waiting >= self.options.max_inbound:
            return self._retry("too many requests wait to be decided")
        return [after]

    def _taken_back(self, event: Received, now: float) -> Decided:
        """Handle a revocation. It names the Id and the requester's channel, since it arrives on a public channel."""
        which, tx = event.attrs.get("Id"), event.attrs.get("Tx")
        if not _is_id(which) or not _is_eci(tx):
            return [
                Refuse(
                    Refusal.MALFORMED, "a revocation has to name the Id, and the requester's channel as Tx"
                )
            ]
        record = self.by_id(which)
        if record is None:  # the revocation arrived before the request
            if self.waiting >= self.options.max_inbound:
                return self._retry("too many requests wait to be decided")
            return [tombstone(which, tx, self._until(now))]
        if record.knows_dead(tx, now):
            return []
        if _is_same(record, tx):
            return [ended(record, event.attrs, self._until(now), now, notify=False)]
        if len(record.dead) >= MAX_DEAD:
            return self._retry("too many revocations with the Id of one relationship")
        return [msgspec.structs.replace(record, dead=record.with_dead(tx, self._until(now), now))]


def _is_same(record: Relationship, tx: str) -> bool:
    """Return whether another peer has requested this relationship with the channel ``tx``."""
    return record.live and not record.requester and record.tx == tx


def _is_id(id: object) -> TypeGuard[str]:
    return isinstance(id, str) and _ID.fullmatch(id) is not None


def _is_eci(eci: object) -> TypeGuard[str]:
    try:
        check_eci(eci)
    except InvalidNameError:
        return False
    return True


def _role(attrs: Attrs, which: str) -> str | None:
    role = attrs.get(which)
    if role is not None and not isinstance(role, str):
        _fail("role_format_failure", f"{which} is {role!r:.60}, needs a str")
    return role


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _fail(type: str, reason: str) -> NoReturn:
    raise _FailureError(type, reason)

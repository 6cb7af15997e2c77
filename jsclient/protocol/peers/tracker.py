"""The state of a peer: its channels and relationships, the events on them, and the resulting commands.

`PeerTracker.handle` takes an event and the time and returns commands, which the runtime carries out in order:

- A `StoreValue` is a compare-and-set. Only `Stored` changes the tracker's state, so the state equals the store even
  after a crash. After a conflict, the runtime reads the key, reports its value with `Stored`, and passes the event
  again.
- `Stored` returns the items of the outbox in order, for each relationship one `Send` and one `Raise` at a time. The
  last `Done` returns the `StoreValue` that empties the outbox. A new tracker continues from the `Stored` events of the
  store.
- A message is acked once its commands have been carried out. A command whose ``key`` is empty is in no outbox. If it
  fails, it is repeated when the message is redelivered.

Source: the picos' subscriptions and engine, and decisions D25 to D30.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ...errors import ConfigError
from ..wire.names import check_token
from .channel import (
    API_EVENTS,
    RID,
    WELL_KNOWN,
    Policy,
    StoredChannel,
    channel_eci,
    check_eci,
    well_known_policy,
)
from .options import EngineOptions
from .relationship import (
    CHANNEL_KEY,
    RELATIONSHIP_KEY,
    Attrs,
    Raise,
    Relationship,
    RelationshipState,
    Send,
    ended,
    filtered,
)
from .rules import (
    FLOW_EVENTS,
    Answer,
    Ask,
    CloseChannel,
    Command,
    Done,
    Install,
    MessageRules,
    OpenChannel,
    PeerEvent,
    Queried,
    Raised,
    Received,
    Refusal,
    Refuse,
    RemovePeer,
    RequestRules,
    Stored,
    StoreValue,
    Tick,
)

__all__ = ["PeerTracker", "event_on"]

_WELL_KNOWN_KEY: Final = CHANNEL_KEY + WELL_KNOWN


def event_on(relationship: Mapping[str, object], domain: str, type: str, attrs: Attrs, id: str) -> Send:
    """Return an event for the other side of a relationship, whose attributes are given as users see them.

    Raises `ConfigError` if the relationship has no Tx, or domain or type is not a token.
    """
    host = relationship.get("Tx_host")
    return Send(
        eci=check_eci(relationship.get("Tx")),
        domain=check_token(domain, "domain"),
        type=check_token(type, "type"),
        attrs=attrs,
        id=id,
        host=host if isinstance(host, str) else None,
    )


@dataclass(slots=True)
class PeerTracker:
    """The state of a peer, which lives in one process at a time.

    ``accepts`` is called for each request, with its attributes as the handlers see them, and returns whether to
    approve it at once. Other requests wait for a decision.
    """

    name: str
    options: EngineOptions = field(default_factory=EngineOptions)
    accepts: Callable[[Attrs], bool] | None = None
    _channels: dict[str, tuple[StoredChannel, int]] = field(default_factory=dict)
    _records: dict[str, tuple[Relationship, int]] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)  # keys of channels and relationships, by ECI
    # IDs of outbox items that are being carried out. The keys are those of `_records`.
    _started: dict[str, set[str]] = field(default_factory=dict)
    # IDs of items that have been carried out but are still in the stored outbox. The keys are those of `_records`.
    _done: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_token(self.name, "peer")

    @property
    def installed(self) -> bool:
        """Whether the peer can have relationships."""
        return _WELL_KNOWN_KEY in self._channels

    @property
    def well_known_rx(self) -> str | None:
        """The public ECI, or None if the peer cannot have relationships."""
        held = self._channels.get(_WELL_KNOWN_KEY)
        return None if held is None else held[0].eci

    @property
    def relationships(self) -> list[Relationship]:
        """All records, including removed relationships."""
        return [record for record, _ in self._records.values()]

    def established(self, key: str) -> Attrs | None:
        """Return the established relationship with this Id or this side's channel, as users see it, or None."""
        held = self._records.get(self._keys.get(key, RELATIONSHIP_KEY + key))
        return (
            held[0].to_attrs()
            if held is not None and held[0].state is RelationshipState.ESTABLISHED
            else None
        )

    @property
    def own_channels(self) -> list[StoredChannel]:
        """The channels that belong to no relationship."""
        return [channel for channel, _ in self._channels.values()]

    @property
    def channels(self) -> list[tuple[str, Policy]]:
        """The ECI and policy of each open channel."""
        own = [(channel.eci, channel.policy) for channel in self.own_channels]
        return own + [(one.rx, one.policy) for one in self.relationships if one.live and one.rx is not None]

    @property
    def deadline(self) -> float | None:
        """The time when a `Tick` is due, or None."""
        return min((_forget_at(record) for record in self.relationships if _is_over(record)), default=None)

    def lists(self, state: RelationshipState, key: str | None = None, value: object = None) -> list[Attrs]:
        """Return the relationships in a state. With ``key``, only those where this attribute has ``value``."""
        return filtered(self.relationships, state, key, value)

    def handle(self, event: PeerEvent, now: float) -> list[Command]:
        """Handle an event. Return the commands to carry out.

        Raises `ConfigError` if a channel doesn't exist, or if a policy denies an event that a relationship needs.
        """
        match event:
            case Stored():
                return self._stored(event)
            case Done():
                return self._finished(event)
            case Received():
                return self._received(event, now)
            case Raised():
                return self._raised(event, now, None)
            case Queried():
                return [self._queried(event)]
            case Install():
                return self._install(event)
            case OpenChannel():
                eci = channel_eci(self.name, event.fresh.channel)
                channel = StoredChannel(eci=eci, tags=tuple(event.tags), policy=event.policy)
                return [StoreValue(CHANNEL_KEY + event.fresh.channel, channel, 0)]
            case CloseChannel():
                return [self._close(event)]
            case RemovePeer():
                until = now + self.options.remember
                ends = [ended(one, {}, until, now, notify=True) for one in self.relationships if one.live]
                return [self._store(one) for one in ends]
            case Tick():
                expired = [one for one in self.relationships if _is_over(one) and _forget_at(one) <= now]
                return [StoreValue(one.key, None, self._records[one.key][1]) for one in expired]

    # --- stored state ------------------------------------------------------------------------------------

    def _install(self, event: Install) -> list[Command]:
        policy = well_known_policy(requests=self.options.requests)
        held = self._channels.get(_WELL_KNOWN_KEY)
        if held is None:
            eci = channel_eci(self.name, event.fresh.channel)
            return [
                StoreValue(
                    _WELL_KNOWN_KEY, StoredChannel(eci=eci, tags=(WELL_KNOWN, "Tx_Rx"), policy=policy), 0
                )
            ]
        channel, revision = held
        if channel.policy == policy:
            return []
        return [StoreValue(_WELL_KNOWN_KEY, msgspec.structs.replace(channel, policy=policy), revision)]

    def _close(self, event: CloseChannel) -> StoreValue:
        key = self._keys.get(event.eci, "")
        if key == _WELL_KNOWN_KEY or key not in self._channels:
            raise ConfigError(
                f"{event.eci!r:.80} is not a channel of `new_channel`, only those can be removed"
            )
        return StoreValue(key, None, self._channels[key][1])

    def _store(self, record: Relationship) -> StoreValue:
        """Return the command that stores ``record``, without the items of its outbox that were carried out."""
        done = self._done.get(record.key, set())
        if done:
            remaining = tuple(item for item in record.outbox if item.id not in done)
            record = msgspec.structs.replace(record, outbox=remaining)
        held = self._records.get(record.key)
        return StoreValue(record.key, record, 0 if held is None else held[1])

    def _stored(self, event: Stored) -> list[Command]:
        key, value = event.key, event.value
        self._forget_key(key)
        if isinstance(value, StoredChannel):
            self._channels[key] = value, event.revision
            self._keys[value.eci] = key
        elif isinstance(value, Relationship):
            self._records[key] = value, event.revision
            if value.rx is not None:
                self._keys[value.rx] = key
            self._keep_marks(value)
            return self._next(value)
        return []

    def _forget_key(self, key: str) -> None:
        before: Relationship | StoredChannel | None = None
        if key in self._channels:
            before = self._channels.pop(key)[0]
        elif key in self._records:
            before = self._records.pop(key)[0]
        eci = before.eci if isinstance(before, StoredChannel) else before.rx if before is not None else None
        if eci is not None and self._keys.get(eci) == key:
            del self._keys[eci]

    def _keep_marks(self, record: Relationship) -> None:
        """Forget the marks of items that are no longer in the outbox."""
        ids = {item.id for item in record.outbox}
        for marks in (self._started, self._done):
            if remaining := marks.pop(record.key, set()) & ids:
                marks[record.key] = remaining

    def _next(self, record: Relationship) -> list[Command]:
        """Return the next items of the outbox, or the command that empties it when all items are done.

        The next items are the first `Send` and the first `Raise` that are not done, unless they are being carried
        out.
        """
        if not record.outbox:
            return []
        done = self._done.get(record.key, set())
        remaining = [item for item in record.outbox if item.id not in done]
        if not remaining:
            return [self._store(record)]
        started = self._started.setdefault(record.key, set())
        heads = [next((item for item in remaining if isinstance(item, kind)), None) for kind in (Send, Raise)]
        due = [item for item in heads if item is not None and item.id not in started]
        started.update(item.id for item in due)
        return list(due)

    def _finished(self, event: Done) -> list[Command]:
        started = self._started.get(event.key, set())
        if event.id not in started:
            return []
        started.remove(event.id)
        self._done.setdefault(event.key, set()).add(event.id)
        return self._next(self._records[event.key][0])

    # --- incoming messages -------------------------------------------------------------------------------

    def _policy(self, eci: str) -> Policy | Refuse:
        """Return the policy of a channel, or the refusal of a message on it."""
        key = self._keys.get(eci)
        if key is None:
            return Refuse(Refusal.NO_CHANNEL, eci)
        if key in self._channels:
            return self._channels[key][0].policy
        record = self._records[key][0]
        return record.policy if record.live else Refuse(Refusal.CHANNEL_GONE, eci)

    def _received(self, event: Received, now: float) -> list[Command]:
        policy = self._policy(event.eci)
        if isinstance(policy, Refuse):
            return [policy]
        name = f"{event.domain}:{event.type}"
        # Check the policy before anything else. Some events are requests to the peer itself, for example to create a
        # relationship. They are accepted only on a channel whose policy allows them.
        if not policy.allows_event(event.domain, event.type):
            return [Refuse(Refusal.POLICY, name)]
        if name in FLOW_EVENTS:
            if not self.installed:
                return [Refuse(Refusal.NOT_INSTALLED, name)]
            held = self._records.get(self._keys[event.eci])
            rules = MessageRules(self.name, self.options, self._by_id, self._inbound_count(), self.accepts)
            return self._commands(rules.decide(event, None if held is None else held[0], now))
        if name in API_EVENTS:
            return self._raised(Raised(event.domain, event.type, event.attrs, event.fresh), now, event.eci)
        return [Raise(domain=event.domain, type=event.type, attrs=event.attrs, eci=event.eci)]

    def _raised(self, event: Raised, now: float, eci: str | None) -> list[Command]:
        name = f"{event.domain}:{event.type}"
        check_token(event.domain, "domain")
        check_token(event.type, "type")
        if name not in API_EVENTS:
            return [Raise(domain=event.domain, type=event.type, attrs=event.attrs)]
        if not self.installed:
            if eci is not None:
                return [Refuse(Refusal.NOT_INSTALLED, name)]
            raise ConfigError(f"{name}: {self.name!r} has not the capability to have relationships")
        rules = RequestRules(self.name, self.options, self.relationships, eci)
        return self._commands(rules.decide(event, now))

    def _commands(self, decided: list[Relationship | Command]) -> list[Command]:
        return [self._store(item) if isinstance(item, Relationship) else item for item in decided]

    def _by_id(self, id: str) -> Relationship | None:
        held = self._records.get(RELATIONSHIP_KEY + id)
        return None if held is None else held[0]

    def _inbound_count(self) -> int:
        """Return the number of records that exist only because of other peers."""
        return sum(
            record.state is RelationshipState.INBOUND or record.rx is None for record in self.relationships
        )

    def _queried(self, event: Queried) -> Answer | Ask | Refuse:
        policy = self._policy(event.eci)
        if isinstance(policy, Refuse):
            return policy
        if not policy.allows_query(event.rid, event.name):
            return Refuse(Refusal.POLICY, f"{event.rid}:{event.name}")
        # Only queries about relationships are answered here. All others are for the application.
        if event.rid != RID:
            return Ask(event.rid, event.name, event.args)
        if not self.installed:
            return Refuse(Refusal.NOT_INSTALLED, event.name)
        if event.name == WELL_KNOWN:
            return Answer(self.well_known_rx)
        if event.name in ("established", "inbound", "outbound"):
            key, value = event.args.get("key"), event.args.get("value")
            return Answer(
                self.lists(RelationshipState(event.name), key if isinstance(key, str) else None, value)
            )
        return Refuse(Refusal.MALFORMED, f"unknown query {event.name!r:.60}")


def _is_over(record: Relationship) -> bool:
    return not record.live and not record.outbox


def _forget_at(record: Relationship) -> float:
    return max([record.until, *(dead.until for dead in record.dead)])

"""Channels of peers: the addresses of events and queries, and the policies that accept them.

A channel of a peer has an ECI, tags and a policy. The ECI has the form ``<peer>.<random>``, and only a sender that
knows it can send to the channel. Messages are sent to these subjects::

    <prefix>.ev.<peer>.<random>.<domain>.<type>     an event, stored until the peer has handled it
    <prefix>.q.<peer>.<random>.<rid>.<name>         a query, which is a request with an answer

The receiving peer enforces the policy for every sender. If a NATS user has the permissions of
`Channel.nats_permissions`, the server enforces the policy too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from ...errors import ConfigError, InvalidNameError
from ..wire.accounts import account_rights
from ..wire.names import check_filter_subject, check_publish_subject, check_token

__all__ = [
    "API_EVENTS",
    "PREFIX",
    "PROTOCOL_EVENTS",
    "RID",
    "WELL_KNOWN",
    "Address",
    "Channel",
    "Permissions",
    "Policy",
    "StoredChannel",
    "channel_eci",
    "check_eci",
    "event_subject",
    "inbox_subject",
    "open_policy",
    "queries_subject",
    "query_subject",
    "read_subject",
    "relationship_policy",
    "well_known_policy",
]

PREFIX: Final = "pico"
RID: Final = "subscription"
"""The rid of queries about relationships: ``wellKnown_Rx``, ``established``, ``inbound``, ``outbound``."""

WELL_KNOWN: Final = "wellKnown_Rx"

PROTOCOL_EVENTS: Final = (
    "wrangler:outbound_pending_subscription_approved",
    "wrangler:outbound_removal",
    "wrangler:established_removal",
)
"""The events that the other side sends on the channel of a relationship."""

API_EVENTS: Final = (
    "wrangler:subscription",
    "wrangler:pending_subscription_approval",
    "wrangler:inbound_rejection",
    "wrangler:outbound_cancellation",
    "wrangler:subscription_cancellation",
    "wrangler:send_event_on_subs",
)
"""Events by which a peer makes a request to itself. A channel that accepts such an event grants senders that power."""

_EVENT: Final = "ev"
_QUERY: Final = "q"


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The events and queries that a channel accepts: the ones that are allowed and not denied.

    An empty policy accepts nothing. For example, this policy accepts all events of a door except one::

        Policy(events=["door:*"], deny_events=["door:unlock"])

    Attributes:
        events: Allowed events, as ``domain:type`` patterns. ``*`` stands for any domain or any type.
        queries: Allowed queries, as ``rid:name`` patterns. ``*`` stands for any rid or any name.
        deny_events: Events that are refused even if ``events`` allows them.
        deny_queries: Queries that are refused even if ``queries`` allows them.

    Raises:
        ConfigError: A pattern is malformed.
        InvalidNameError: Part of a pattern isn't a valid token.
    """

    events: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    deny_events: tuple[str, ...] = ()
    deny_queries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            patterns = getattr(self, field)
            if isinstance(patterns, str) or not all(isinstance(pattern, str) for pattern in patterns):
                raise ConfigError(f"{field} is {patterns!r:.60}, needs a list of str such as 'door:*'")
            msgspec.structs.force_setattr(self, field, tuple(patterns))
            for pattern in patterns:
                _check_pattern(field, pattern)

    def allows_event(self, domain: str, type: str) -> bool:
        """Return whether the policy accepts the event ``domain:type``."""
        return _any(self.events, domain, type) and not _any(self.deny_events, domain, type)

    def allows_query(self, rid: str, name: str) -> bool:
        """Return whether the policy accepts the query ``rid:name``."""
        return _any(self.queries, rid, name) and not _any(self.deny_queries, rid, name)


def open_policy() -> Policy:
    """Return a policy that accepts everything. Use it only for a channel whose ECI you don't share."""
    return Policy(events=("*:*",), queries=("*:*",))


def well_known_policy(*, requests: bool = False) -> Policy:
    """Return the policy of the well-known channel, on which other peers request relationships and withdraw requests.

    Args:
        requests: If true, also accept the event ``wrangler:subscription``, as Pico Labs' picos do. Strangers can then
            make this peer send requests to other peers. Defaults to False.
    """
    events = ("wrangler:new_subscription_request", "wrangler:inbound_removal")
    return Policy(
        events=(*events, "wrangler:subscription") if requests else events,
        queries=(f"{RID}:{WELL_KNOWN}",),
    )


def relationship_policy(policy: Policy | None = None) -> Policy:
    """Return the policy of a relationship's channel, which is ``policy`` and the events that a relationship needs.

    If ``policy`` is None, everything is accepted except the events by which a peer makes a request to itself.

    Raises:
        ConfigError: ``policy`` denies an event that a relationship needs.
    """
    if policy is None:
        return Policy(events=("*:*",), queries=("*:*",), deny_events=API_EVENTS)
    missing = []
    for event in PROTOCOL_EVENTS:
        domain, _, name = event.partition(":")
        if _any(policy.deny_events, domain, name):
            raise ConfigError(f"the policy denies {event}, which a relationship needs")
        if not policy.allows_event(domain, name):
            missing.append(event)
    return msgspec.structs.replace(policy, events=(*policy.events, *missing)) if missing else policy


class StoredChannel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A channel that belongs to no relationship: the well-known channel, or a channel of the application."""

    eci: str
    tags: tuple[str, ...] = ()
    policy: Policy = Policy()


class Address(NamedTuple):
    """The parts of a subject: whether it is a query, the channel, the domain (or rid), and the type (or name)."""

    query: bool
    eci: str
    domain: str
    name: str


def channel_eci(peer: str, random: str) -> str:
    """Return the ECI of a channel. Raises `InvalidNameError` if a part is not a token."""
    return f"{check_token(peer, 'peer')}.{check_token(random, 'channel')}"


def check_eci(eci: object) -> str:
    """Return ``eci`` if it has the form ``<peer>.<token>``. Raises `InvalidNameError`."""
    parts = eci.split(".") if isinstance(eci, str) else []
    if len(parts) != 2:
        raise InvalidNameError("ECI", eci, "an ECI has the form <peer>.<token>")
    return channel_eci(*parts)


def event_subject(eci: str, domain: str, type: str, prefix: str = PREFIX) -> str:
    """Return the subject of an event. Raises `InvalidNameError` if domain or type is not a token."""
    return _subject(prefix, _EVENT, eci, check_token(domain, "domain"), check_token(type, "type"))


def query_subject(eci: str, rid: str, name: str, prefix: str = PREFIX) -> str:
    """Return the subject of a query. Raises `InvalidNameError` if rid or name is not a token."""
    return _subject(prefix, _QUERY, eci, check_token(rid, "rid"), check_token(name, "name"))


def inbox_subject(peer: str, prefix: str = PREFIX) -> str:
    """Return the filter of a peer's consumer, which matches all events on all its channels."""
    return check_filter_subject(f"{prefix}.{_EVENT}.{check_token(peer, 'peer')}.>")


def queries_subject(peer: str, prefix: str = PREFIX) -> str:
    """Return the subject of a peer's subscription, which matches all queries on all its channels."""
    return check_filter_subject(f"{prefix}.{_QUERY}.{check_token(peer, 'peer')}.>")


def read_subject(subject: str, prefix: str = PREFIX) -> Address | None:
    """Parse the subject of an event or a query. Return None for any other subject."""
    start = f"{prefix}."
    tokens = subject[len(start) :].split(".") if subject.startswith(start) else []
    if len(tokens) != 5 or tokens[0] not in (_EVENT, _QUERY) or "" in tokens:
        return None
    return Address(tokens[0] == _QUERY, f"{tokens[1]}.{tokens[2]}", tokens[3], tokens[4])


class Permissions(NamedTuple):
    """What a NATS user may publish and subscribe to. Returned by `Channel.nats_permissions`.

    ``publish`` contains the subjects to which the user may publish, with wildcards. ``deny`` contains the subjects to
    which the user may not publish, even if ``publish`` allows them. ``subscribe`` contains the subjects to which the
    user may subscribe.
    """

    publish: tuple[str, ...]
    deny: tuple[str, ...]
    subscribe: tuple[str, ...]

    def to_config(self) -> dict[str, Any]:
        """Return these permissions as a dict to put under ``permissions`` of a user in the server's configuration.

        The dict has the keys ``publish`` and ``subscribe``. Each value is a dict with a list of subjects under
        ``allow``, ``deny`` or both. In a user JWT, use ``pub`` and ``sub`` instead of ``publish`` and ``subscribe``.
        """
        return {
            "publish": {"allow": list(self.publish), "deny": list(self.deny)} if self.publish else _NOTHING,
            "subscribe": {"allow": list(self.subscribe)} if self.subscribe else _NOTHING,
        }


# An empty list of allowed subjects would allow everything, because the server ignores it. So deny all subjects instead.
_NOTHING: Final = {"deny": [">"]}


@dataclass(frozen=True, slots=True)
class Channel:
    """An address on which a peer receives events and queries. Returned by `Peer.new_channel` and `Peer.channels`.

    Attributes:
        eci: The event channel identifier, which is the address itself. Anyone who knows it can send whatever the policy
            accepts.
        tags: The names that the owner has given the channel.
        policy: The events and queries that the channel accepts.
        prefix: The prefix of the subjects of the channel.
    """

    eci: str
    tags: tuple[str, ...]
    policy: Policy
    prefix: str = PREFIX

    def nats_permissions(self, inbox: str | None = None) -> Permissions:
        """Return the minimal permissions with which a NATS user can send what the policy of this channel accepts.

        The peer enforces its policy for every sender. With these permissions, the server enforces it as well, before it
        stores a message. Use `Permissions.to_config` for the server's configuration.

        Args:
            inbox: The prefix of the user's inboxes, such as ``"_INBOX_guest"``. The user's connection must have the
                same ``inbox_prefix``. By default, the user has no inbox, so it can send events but receives no answers.
        """
        policy = self.policy
        return Permissions(
            self._subjects(_EVENT, policy.events) + self._subjects(_QUERY, policy.queries),
            self._subjects(_EVENT, policy.deny_events) + self._subjects(_QUERY, policy.deny_queries),
            () if inbox is None else (check_filter_subject(f"{inbox}.>"),),
        )

    def account_rights(self, owner: str, guests: str) -> dict[str, Any]:
        """Return the part of the server's configuration that lets users of another account send on this channel.

        Put users that you don't trust in a separate account. NATS doesn't check the reply subject of a request, so a
        user in the peer's own account could have an answer stored under any subject of this account, by naming the
        subject as the reply subject. Users in a separate account receive answers only in their own account. They need
        `nats_permissions` only if the policy denies some events or queries.

        Args:
            owner: Name of the peer's account. The ``exports`` are added to it.
            guests: Name of the users' account. The ``imports`` are added to it.

        Returns:
            The ``accounts`` section of the configuration.

        Raises:
            InvalidNameError: The name of an account isn't a valid token.
        """
        return account_rights(self.nats_permissions().publish, owner=owner, guests=guests)

    def _subjects(self, kind: str, patterns: tuple[str, ...]) -> tuple[str, ...]:
        start = f"{self.prefix}.{kind}.{check_eci(self.eci)}"
        return tuple(f"{start}.{pattern.replace(':', '.')}" for pattern in patterns)


def _subject(prefix: str, kind: str, eci: str, first: str, second: str) -> str:
    return check_publish_subject(f"{prefix}.{kind}.{check_eci(eci)}.{first}.{second}")


def _check_pattern(field: str, pattern: str) -> None:
    parts = pattern.split(":")
    if len(parts) != 2:
        raise ConfigError(f"{field}: {pattern!r:.60} is not of the form 'domain:type', with '*' for any")
    for part in parts:
        if part != "*":
            check_token(part, field)


def _any(patterns: tuple[str, ...], first: str, second: str) -> bool:
    for pattern in patterns:
        pattern_domain, _, pattern_name = pattern.partition(":")
        if pattern_domain in ("*", first) and pattern_name in ("*", second):
            return True
    return False

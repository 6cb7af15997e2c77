"""Messages of a peer to others and events for its own handlers, stored with a relationship until they are done.

Attributes of events are JSON objects. Their words are those of the picos: ``Id``, ``Tx``, ``Rx``, ``Tx_role``,
``Rx_role``, ``Tx_host``, ``wellKnown_Tx``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["Attrs", "Fresh", "OutboxItem", "Raise", "Send"]

Attrs: TypeAlias = dict[str, Any]


class Fresh(msgspec.Struct, frozen=True):
    """Unguessable names for an event, supplied by the caller as the source of randomness.

    A redelivered message needs the same ones: derive them from the message and a secret.

    Attributes:
        id: The Id of a relationship, and a part of message ids.
        channel: The second token of an ECI.
        verify_key: The public key that identifies the channel's owner, None without keys.
        public_key: The public key to encrypt for the owner, None without keys.
    """

    id: str
    channel: str
    verify_key: str | None = None
    public_key: str | None = None


class Send(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="send"):
    """Publish the event ``domain``, ``type`` with its ``attrs`` on another peer's channel ``eci``.

    ``id`` is the message id, the same for each try. ``host`` is the URL of the other NATS system, None for this one.
    ``key`` names the relationship whose outbox it is from: `Done` is to follow. It is empty if the caller waits for it.
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

    ``id`` is the same for each attempt, empty if it is not repeated. ``error`` is the reason of a failure, otherwise
    empty. ``eci`` is the channel that the event came on, None if the peer raised it itself. ``key`` names
    the relationship whose outbox it is from: `Done` is to follow. It is "" for none.
    """

    domain: str
    type: str
    attrs: Attrs
    id: str = ""
    error: str = ""
    eci: str | None = None
    key: str = ""


OutboxItem: TypeAlias = Send | Raise

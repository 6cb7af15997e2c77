"""What a peer sends to others and tells its own handlers; stored with a relationship until it is done.

Attributes of events are JSON objects. Their words are those of the picos: ``Id``, ``Tx``, ``Rx``, ``Tx_role``,
``Rx_role``, ``Tx_host``, ``wellKnown_Tx``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["Attrs", "Fresh", "OutboxItem", "Raise", "Send"]

Attrs: TypeAlias = dict[str, Any]


class Fresh(msgspec.Struct, frozen=True):
    """Chance, passed in: names that nobody can guess, for whatever an event may need.

    A message that is delivered again must come with the same ones: derive them from the message and a secret.

    Attributes:
        id: The Id of a relationship, and a part of message ids.
        channel: The second token of an ECI.
        verify_key: The public key by which the channel's owner can be known, None without keys.
        public_key: The public key with which one writes to the owner, None without keys.
    """

    id: str
    channel: str
    verify_key: str | None = None
    public_key: str | None = None


class Send(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="send"):
    """Publish the event ``domain``, ``type`` with its ``attrs`` on another peer's channel ``eci``.

    ``id`` is the message id, the same for each try. ``host`` is the URL of the other NATS system, None for this one.
    ``key`` names the relationship whose outbox it is from: `Done` is to follow. It is "" where the caller waits for it.
    """

    eci: str
    domain: str
    type: str
    attrs: Attrs
    id: str
    host: str | None = None
    key: str = ""


class Raise(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="raise"):
    """Tell the peer's own handlers of the event ``domain``, ``type`` with its ``attrs``.

    ``id`` is the same for each try, "" for what is not tried again. ``error`` says what could not be done and why, ""
    where all is well. ``eci`` is the channel that the event came on, None if the peer raised it itself. ``key`` names
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

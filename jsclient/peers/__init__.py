"""Peers that send events and queries to each other. A relationship between two peers allows them to do so.

Either peer may request a relationship, and either peer may end it.

Source: the picos' subscriptions (io.picolabs.subscription).
"""

from __future__ import annotations

from .._exports import set_module
from ..protocol.peers.channel import Channel, Permissions, Policy, open_policy, well_known_policy
from ..protocol.peers.options import EngineOptions, accept_roles
from ..protocol.peers.relationship import Attrs
from ..protocol.peers.rules import Refusal
from .engine import Engine
from .errors import (
    EventDelayed,
    EventGivenUp,
    EventRefused,
    HostNotAllowedError,
    PeerError,
    PeerHandlerFailed,
    QueryRefusedError,
)
from .handlers import RaisedEvent
from .keys import ChannelKeys
from .local_backend import LocalHub
from .peer import Peer, Rule

__all__ = [
    "Attrs",
    "Channel",
    "ChannelKeys",
    "Engine",
    "EngineOptions",
    "EventDelayed",
    "EventGivenUp",
    "EventRefused",
    "HostNotAllowedError",
    "LocalHub",
    "Peer",
    "PeerError",
    "PeerHandlerFailed",
    "Permissions",
    "Policy",
    "QueryRefusedError",
    "RaisedEvent",
    "Refusal",
    "Rule",
    "accept_roles",
    "open_policy",
    "well_known_policy",
]

set_module(__name__, [globals()[name] for name in __all__ if name not in {"Attrs", "Rule"}])

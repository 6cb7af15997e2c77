"""The options of a peer, and rules that approve requests automatically."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from ...errors import ConfigError
from .outbox import Attrs

__all__ = ["PeerOptions", "accept_roles"]

_DAY: Final = 86_400.0


@dataclass(slots=True, frozen=True)
class PeerOptions:
    """The options of a peer.

    Attributes:
        host: The URL by which other NATS systems reach this peer, None if they cannot.
        allowed_hosts: The URLs of other NATS systems that may be connected to. A request names one: it comes from a
            stranger.
        requests: Strangers may make the peer send requests, as in the original.
        max_inbound: Undecided requests of this peer; further ones wait in its inbox.
        remember: Seconds that a relationship is remembered after its end. Longer than a message can be in flight: than
            the ``max_age`` of the inbox.
        retry_delay: Seconds after which a message that could not be taken is to be delivered again.
    """

    host: str | None = None
    allowed_hosts: frozenset[str] = frozenset()
    requests: bool = False
    max_inbound: int = 1000
    remember: float = 7 * _DAY
    retry_delay: float = 5.0

    def __post_init__(self) -> None:
        if self.max_inbound < 1 or self.remember <= 0 or self.retry_delay <= 0:
            raise ConfigError("max_inbound, remember and retry_delay must be above 0")


def accept_roles(**wanted: str | Collection[str] | None) -> Callable[[Attrs], bool]:
    """A rule for ``accepts``: approve requests whose attributes have these values.

    A value is a str, or several of which one must match; None: the attribute must be missing. The attributes are
    as the accepting peer sees them: ``Rx_role`` is its own role. All attributes that are named have to fit.

    Raises:
        ConfigError: No attribute is named: that would approve everything.
    """
    if not wanted:
        raise ConfigError("name an attribute, for example Rx_role='thing': without one all would be approved")

    def accepts(attrs: Attrs) -> bool:
        return all(_fits(value, attrs.get(name)) for name, value in wanted.items())

    return accepts


def _fits(wanted: str | Collection[str] | None, value: object) -> bool:
    if wanted is None or isinstance(wanted, str):
        return value == wanted
    return isinstance(value, str) and value in wanted

"""The channels of a peer, as their owner has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError
from ..protocol.peers.channel import PREFIX, Permissions, Policy, permissions
from ..protocol.peers.commands import CloseChannel, OpenChannel
from .core import PeerCore

__all__ = ["Channel", "HasChannels"]


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of a peer. Made by `Peer.new_channel` and `Peer.channels`.

    Attributes:
        eci: Its event channel identifier: who knows it can send to it what the policy lets pass.
        tags: What the owner called it.
        policy: What passes.
        prefix: What subjects start with.
    """

    eci: str
    tags: tuple[str, ...]
    policy: Policy
    prefix: str = PREFIX

    def nats_permissions(self, inbox: str | None = None) -> Permissions:
        """What a NATS user needs, and no more, to send on this channel what its policy lets pass.

        The peer enforces its policy whoever sent; with these the server does so too, before anything is stored.
        `Permissions.to_config` is what a server's configuration has under a user's ``permissions``.

        Args:
            inbox: The prefix of the user's inboxes, such as ``"_INBOX_guest"``, which its connection is to be given as
                ``inbox_prefix`` too. Without it the user can send, and learns no answer.
        """
        return permissions(self.eci, self.policy, prefix=self.prefix, inbox=inbox)


class HasChannels(PeerCore):
    """The part of a peer that has channels."""

    async def wellKnown_Rx(self) -> str:
        """The ECI that everybody may know: on it others ask for relationships.

        Raises `ConfigError` where the peer has not the capability.
        """
        eci = self._tracker.well_known_rx
        if eci is None:
            raise ConfigError(f"the peer {self._tracker.name!r} has not the capability to have relationships")
        return eci

    async def new_channel(self, tags: Sequence[str] = (), policy: Policy | None = None) -> Channel:
        """Make a channel. By default nothing passes. Raises those of any publish."""
        self._check_open()
        if isinstance(tags, str):
            raise ConfigError("tags is a text: give a list")
        fresh = self._machine.fresh()
        await self._machine.do(OpenChannel(tuple(tags), policy or Policy(), fresh))
        return next(one for one in self.channels() if one.eci.endswith(f".{fresh.channel}"))

    async def remove_channel(self, eci: str) -> None:
        """Remove a channel that `new_channel` made. Raises `ConfigError` if it is no such channel."""
        self._check_open()
        await self._machine.do(CloseChannel(eci))

    def channels(self) -> list[Channel]:
        """All channels: the well-known one, those of `new_channel`, and those of relationships."""
        prefix, own = self._backend.options.prefix, self._tracker.own_channels
        tags = {one.eci: one.tags for one in own}
        return [
            Channel(eci, tags.get(eci, ("subscription",)), policy, prefix)
            for eci, policy in self._tracker.channels
        ]

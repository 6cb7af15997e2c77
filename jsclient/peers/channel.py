"""The channels of a peer, as their owner sees them."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.peers.channel import PREFIX, Permissions, Policy, permissions

__all__ = ["Channel"]


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of a peer. Made by `Peer.new_channel` and `Peer.channels`.

    Attributes:
        eci: Its event channel identifier: everyone who knows it can send what the policy accepts.
        tags: The owner's names for it.
        policy: The events and queries that it accepts.
        prefix: The prefix of its subjects.
    """

    eci: str
    tags: tuple[str, ...]
    policy: Policy
    prefix: str = PREFIX

    def nats_permissions(self, inbox: str | None = None) -> Permissions:
        """The minimal permissions of a NATS user that sends on this channel what its policy accepts.

        The peer enforces its policy for every sender; with these the server enforces it too, before anything is stored.
        `Permissions.to_config` is what a server's configuration has under a user's ``permissions``.

        Args:
            inbox: The prefix of the user's inboxes, such as ``"_INBOX_guest"``, which its connection is to be given as
                ``inbox_prefix`` too. Without it the user can send, and learns no answer.
        """
        return permissions(self.eci, self.policy, prefix=self.prefix, inbox=inbox)

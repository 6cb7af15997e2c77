"""The subscription of a reader: one at a time, each with its own id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

__all__ = ["Cancel", "Subscribe", "SubscriptionCommand", "SubscriptionIds"]


class Subscribe(msgspec.Struct, frozen=True):
    """Open a feed with this id, for the records after a sequence."""

    id: str
    since: int


class Cancel(msgspec.Struct, frozen=True):
    """Close the feed with this id. It may fail: records that still arrive under the id are rejected."""

    id: str


SubscriptionCommand: TypeAlias = Subscribe | Cancel


@dataclass(slots=True)
class SubscriptionIds:
    """The ids of subscriptions, one at a time: ``<name>-1``, ``<name>-2`` ….

    Attributes:
        present: The id of the current subscription; None: not subscribed.
        is_confirmed: The current subscription is known to exist.
        count: Subscriptions so far.
    """

    name: str
    present: str | None = None
    is_confirmed: bool = False
    count: int = 0

    def subscribe(self, since: int) -> list[SubscriptionCommand]:
        """Replace the current subscription."""
        commands = self.cancel()
        self.count += 1
        self.present = f"{self.name}-{self.count}"
        return [*commands, Subscribe(self.present, since)]

    def cancel(self) -> list[SubscriptionCommand]:
        commands: list[SubscriptionCommand] = [] if self.present is None else [Cancel(self.present)]
        self.present, self.is_confirmed = None, False
        return commands

"""Under which id a push-pull reader is sent pushes: a new subscription has a new id, and old ids are refused.

Source: P3Sub, "About temporary unavailability of the subscriber".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

__all__ = ["Cancel", "Subscribe", "SubscriptionCommand", "SubscriptionIds"]


class Subscribe(msgspec.Struct, frozen=True):
    """Have pushes sent under this id, from after a sequence on."""

    id: str
    since: int


class Cancel(msgspec.Struct, frozen=True):
    """End the subscription with this id. It need not succeed: what still comes under the id is refused."""

    id: str


SubscriptionCommand: TypeAlias = Subscribe | Cancel


@dataclass(slots=True)
class SubscriptionIds:
    """One subscription at a time, called ``<name>-1``, ``<name>-2`` ….

    Attributes:
        present: The id of the present one; None: there is none.
        is_confirmed: The present one is known to be there.
        count: How many there have been.
    """

    name: str
    present: str | None = None
    is_confirmed: bool = False
    count: int = 0

    def subscribe(self, since: int) -> list[SubscriptionCommand]:
        """Another one in place of the present one."""
        commands = self.cancel()
        self.count += 1
        self.present = f"{self.name}-{self.count}"
        return [*commands, Subscribe(self.present, since)]

    def cancel(self) -> list[SubscriptionCommand]:
        """No more pushes."""
        commands: list[SubscriptionCommand] = [] if self.present is None else [Cancel(self.present)]
        self.present, self.is_confirmed = None, False
        return commands

"""Priority groups: what a pull request says of its group, and the pin of a pinned client.

With the policy ``pinned_client`` the server delivers to one client at a time. It tells that client by a header of each
message, ``Nats-Pin-Id``, and the client shows the id with each request. A request with an id that holds no longer is
refused (423); one without waits until it is its turn. Source: ADR-42; nats-server server/consumer.go
(processNextMsgRequest, nextWaiting).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ...errors import ConfigError, InvalidNameError
from ..events import Event, Pinned, Unpinned
from ..models.consumer import ConsumerConfig, PriorityPolicy
from ..wire.header_names import PIN_ID

__all__ = ["GroupRequest", "Pin", "ShownPins", "check_group_name", "group_request", "pins_clients"]

_NAME = re.compile(r"[A-Za-z0-9_/=-]{1,16}")
_LINE: Final = f"\r\n{PIN_ID}: ".encode()
_ID = re.compile(rb"[\x21-\x7e]{1,128}(?=\r\n)")


class GroupRequest(msgspec.Struct, frozen=True):
    """The part of a pull request that says how it stands among those of others."""

    group: str
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None


def check_group_name(group: str) -> str:
    """Return ``group`` if it may name a priority group.

    Raises:
        InvalidNameError: It may not, or is no string.
    """
    if not isinstance(group, str) or not _NAME.fullmatch(group):
        raise InvalidNameError("group", group, "allowed are 1 to 16 of A-Z a-z 0-9 - _ / =")
    return group


def group_request(
    config: ConsumerConfig | None,
    group: str | None,
    min_pending: int | None = None,
    min_ack_pending: int | None = None,
    priority: int | None = None,
) -> GroupRequest | None:
    """What a request is to say; None: nothing, it is for a consumer without groups.

    Args:
        config: The consumer's, as last seen; None where it is not known, and the server has to judge.

    Raises:
        ConfigError: It does not fit the consumer, or no consumer at all.
    """
    wanted = {"min_pending": min_pending, "min_ack_pending": min_ack_pending, "priority": priority}
    given = [name for name, value in wanted.items() if value is not None]
    groups = None if config is None else config.priority_groups or []
    if group is None:
        if given:
            raise ConfigError(f"{given[0]} is given without a group: say with group= which one asks")
        if groups:
            raise ConfigError(
                f"the consumer has priority groups ({', '.join(groups)}): say with group= which one asks"
            )
        return None
    check_group_name(group)
    for name in given:
        _check_whole(name, wanted[name])
    if groups is not None and group not in groups:
        has = f"the priority groups {', '.join(groups)}" if groups else "no priority groups"
        raise ConfigError(f"group is {group!r}: the consumer has {has}")
    if config is not None:
        for name in given:
            _check_policy(name, config)
    return GroupRequest(group, min_pending, min_ack_pending, priority)


def _check_whole(name: str, value: object) -> None:
    least, most, words = (0, 9, "0 to 9") if name == "priority" else (1, 2**63 - 1, "1 or more")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number, {words}")


def _check_policy(name: str, config: ConsumerConfig) -> None:
    needed = PriorityPolicy.PRIORITIZED if name == "priority" else PriorityPolicy.OVERFLOW
    policy = config.priority_policy
    # A word that only the server knows may be a policy that takes them too.
    if policy != needed and policy in set(PriorityPolicy):
        raise ConfigError(f"{name} goes with the priority policy {needed.value}; the consumer's is {policy}")


def pins_clients(config: ConsumerConfig | None) -> bool:
    """Whether the consumer pins a client; where its configuration is not known, it may."""
    return config is None or config.priority_policy == PriorityPolicy.PINNED_CLIENT


@dataclass(slots=True)
class Pin:
    """What one handle knows of the pin of a group: all its requests show the same id.

    Attributes:
        id: The id of the pin while this client has it, as far as is known.
        seen: How many ids were seen.
    """

    stream: str
    consumer: str
    group: str
    id: str | None = None
    seen: int = 0
    _last: str | None = None
    _given_up: bool = False  # the consumer pins nobody: what its messages carry was put there by a publisher

    def message(self, block: bytes) -> Event | None:
        """The header block of the newest message; what to tell, if anything.

        The server puts its line last, so that one which was stored with the message counts for nothing.
        """
        at = block.rfind(_LINE)
        if at < 0 or self._given_up:
            return None
        found = _ID.match(block, at + len(_LINE))
        if found is None or (pin_id := found[0].decode()) == self.id:
            return None
        self.id = self._last = pin_id
        self.seen += 1
        return Pinned(stream=self.stream, consumer=self.consumer, group=self.group, pin_id=pin_id)

    def refused(self, code: int, shown: str | None) -> Event | None:
        """A request was refused for the pin ``shown``; what to tell, if anything.

        A refusal may be late: one for an id that was given up before changes nothing.
        """
        if code != 423:
            self._given_up = True
        if shown is None or shown != self.id:
            return None
        self.id = None
        return Unpinned(stream=self.stream, consumer=self.consumer, group=self.group, pin_id=shown)

    def given_since(self, seen: int) -> tuple[bool, str | None]:
        """Whether a request that showed no pin, sent when ``seen`` ids had been seen, may have been given one; which.

        The server gives a pin to a request that waits, with a message. Where more than one id was seen since, which
        of them it was is not known (None), and the next request will tell.
        """
        return self.seen > seen, self._last if self.seen == seen + 1 else None


@dataclass(slots=True)
class ShownPins:
    """Which pin each request of a continuous reader showed, by the number of the request.

    Many requests show the same one after the other, so that only the changes are kept, and of those the last.
    """

    pin: Pin
    _changes: deque[tuple[int, str | None, int]] = field(default_factory=lambda: deque(maxlen=16))

    def shows(self, number: int) -> str | None:
        """The pin that the next request is to show; ``number`` is its number, over those before."""
        now = self.pin.id, self.pin.seen
        if not self._changes or self._changes[-1][1:] != now:
            self._changes.append((number, *now))
        return self.pin.id

    def refused(self, code: int, number: int) -> tuple[bool, Event | None]:
        """A request was refused for its pin. Whether it may have had one, shown or given; what to tell, if anything.

        If not, asking again would be refused again.
        """
        for first, shown, seen in reversed(self._changes):
            if number >= first:
                had, pin_id = self.pin.given_since(seen) if shown is None else (True, shown)
                return had, self.pin.refused(code, pin_id) if had else None
        return number > 0, None  # too long ago to be known: what is asked for instead will show

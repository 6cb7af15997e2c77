"""Priority groups: the group options of a pull request, and the pin of a pinned client.

With the policy ``pinned_client`` the server delivers to one client at a time. It informs that client by a header of
each message, ``Nats-Pin-Id``, and the client shows the id with each request. The server refuses a request with an
outdated id (423). A request without an id waits for its turn. Source: ADR-42; nats-server server/consumer.go
(processNextMsgRequest, nextWaiting).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Final, TypedDict

import msgspec

from ...errors import ConfigError, InvalidNameError
from ..events import Event, Pinned, Unpinned
from ..models.consumer import ConsumerConfig, PriorityPolicy
from ..wire.checks import check_count
from ..wire.header_names import PIN_ID

__all__ = [
    "GroupOptions",
    "GroupRequest",
    "Pin",
    "ShownPins",
    "check_group_name",
    "group_request",
    "pins_clients",
]

_NAME = re.compile(r"[A-Za-z0-9_/=-]{1,16}")
_LINE: Final = f"\r\n{PIN_ID}: ".encode()
_ID = re.compile(rb"[\x21-\x7e]{1,128}(?=\r\n)")


class GroupOptions(TypedDict, total=False):
    """Keyword arguments of `PullSubscription.fetch` for consumers with priority groups, for annotating wrappers.

    The arguments select a group, and rank the request among requests from other clients. For example: ``def
    work(**options: Unpack[GroupOptions])``.
    """

    group: str | None
    min_pending: int | None
    min_ack_pending: int | None
    priority: int | None


class GroupRequest(msgspec.Struct, frozen=True):
    """The part of a pull request that ranks it among the requests of other clients."""

    group: str
    min_pending: int | None = None
    min_ack_pending: int | None = None
    priority: int | None = None


def check_group_name(group: str) -> str:
    """Return ``group`` if it is a valid name of a priority group.

    Raises:
        InvalidNameError: The name is not valid, or not a str.
    """
    if not isinstance(group, str) or not _NAME.fullmatch(group):
        raise InvalidNameError("group", group, "allowed are 1 to 16 of A-Z a-z 0-9 - _ / =")
    return group


def group_request(
    config: ConsumerConfig | None,
    group: str | None = None,
    min_pending: int | None = None,
    min_ack_pending: int | None = None,
    priority: int | None = None,
) -> GroupRequest | None:
    """Check the group options of a request. Return None if no option is given and the consumer needs none.

    Args:
        config: The consumer's configuration as last seen. With None, only the server checks the options.

    Raises:
        ConfigError: The options contradict each other or the consumer.
    """
    values = {"min_pending": min_pending, "min_ack_pending": min_ack_pending, "priority": priority}
    options = [name for name, value in values.items() if value is not None]
    groups = None if config is None else config.priority_groups or []
    if group is None:
        if options:
            raise ConfigError(f"{options[0]} is given without a group: give group=")
        if groups:
            raise ConfigError(
                f"the consumer has priority groups ({', '.join(groups)}): give one of them as group="
            )
        return None
    check_group_name(group)
    for name in options:
        check_count(name, values[name], *((0, 9) if name == "priority" else (1, 2**63 - 1)))
    if groups is not None and group not in groups:
        has = f"the priority groups {', '.join(groups)}" if groups else "no priority groups"
        raise ConfigError(f"group is {group!r}: the consumer has {has}")
    if config is not None:  # the policy in the config decides which options the server accepts
        for name in options:
            _check_policy(name, config)
    return GroupRequest(group, min_pending, min_ack_pending, priority)


def _check_policy(name: str, config: ConsumerConfig) -> None:
    needed = PriorityPolicy.PRIORITIZED if name == "priority" else PriorityPolicy.OVERFLOW
    policy = config.priority_policy
    # A newer server may have further policies that accept these options, so don't refuse an unknown policy.
    if policy != needed and policy in set(PriorityPolicy):
        raise ConfigError(f"{name} requires the priority policy {needed.value}; the consumer's is {policy}")


def pins_clients(config: ConsumerConfig | None) -> bool:
    """Return whether the consumer pins a client. True if its configuration is unknown."""
    return config is None or config.priority_policy == PriorityPolicy.PINNED_CLIENT


@dataclass(slots=True)
class Pin:
    """The pin of a group, as known to one handle. All requests of the handle show the same id.

    Attributes:
        id: The id of the pin while this client is pinned, as far as is known.
        seen: The number of ids seen.
    """

    stream: str
    consumer: str
    group: str
    id: str | None = None
    seen: int = 0
    _last: str | None = None
    # True if the consumer pins no client. Pin ids in its messages were set by their publishers, and are ignored.
    _disabled: bool = False

    def message(self, block: bytes) -> Event | None:
        """Read the header block of the newest message. Return the event to emit, if any.

        The server appends its line, so a line that was stored with the message has no effect.
        """
        offset = block.rfind(_LINE)
        if offset < 0 or self._disabled:
            return None
        match = _ID.match(block, offset + len(_LINE))
        if match is None or (pin_id := match[0].decode()) == self.id:
            return None
        self.id = self._last = pin_id
        self.seen += 1
        return Pinned(stream=self.stream, consumer=self.consumer, group=self.group, pin_id=pin_id)

    def refused(self, code: int, shown: str | None) -> Event | None:
        """Process the refusal of a request that showed the pin ``shown``. Return the event to emit, if any.

        A refusal may be late. It has no effect if the id has changed since.
        """
        if code != 423:
            self._disabled = True
        if shown is None or shown != self.id:
            return None
        self.id = None
        return Unpinned(stream=self.stream, consumer=self.consumer, group=self.group, pin_id=shown)

    def given_since(self, seen: int) -> tuple[bool, str | None]:
        """Return whether a request sent without a pin, after ``seen`` ids, may have received a pin, and the pin's id.

        The server assigns a pin to a waiting request, with a message. If more than one id was seen since, the id is
        unknown (None), and the answer to the next request shows it.
        """
        return self.seen > seen, self._last if self.seen == seen + 1 else None


@dataclass(slots=True)
class ShownPins:
    """The pins shown by the requests of a continuous reader, by the number of the request.

    Consecutive requests mostly show the same pin, so only the latest changes are stored.
    """

    pin: Pin
    _changes: deque[tuple[int, str | None, int]] = field(default_factory=lambda: deque(maxlen=16))

    def shows(self, number: int) -> str | None:
        """Return the pin to show with the next request, and record it. ``number`` must grow with each request."""
        now = self.pin.id, self.pin.seen
        if not self._changes or self._changes[-1][1:] != now:
            self._changes.append((number, *now))
        return self.pin.id

    def refused(self, code: int, number: int) -> tuple[bool, Event | None]:
        """Process the refusal of a request for its pin.

        Returns:
            Whether the request may have had a pin, shown or received, and the event to emit, if any. If it had no pin,
            a repeated request would be refused again.
        """
        for first, shown, seen in reversed(self._changes):
            if number >= first:
                had, pin_id = self.pin.given_since(seen) if shown is None else (True, shown)
                return had, self.pin.refused(code, pin_id) if had else None
        # The request is too old to tell whether it had a pin, so assume that it had one. If it had none, the server
        # also refuses the repeated request, which is recent enough to tell.
        return number > 0, None

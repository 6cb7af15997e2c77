"""The messages that pulls have handed to the program, which the drain of a connection waits for."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, ref

from ...errors import ClosedError
from ...protocol.consumers.ack import AckState

if TYPE_CHECKING:
    from ..._runtime.context import Context
    from ..message import Message
    from .puller import Puller

__all__ = ["Handed", "InHand", "in_hand"]

_REFERRED: Final = 3  # references to a message at the end of its list: the list, the loop and the argument


class Handed(list["Message"]):
    """The messages of a fetch. A loop over them refers to this list, so it lives as long as the loop.

    A program may also copy the list, or pass the messages to tasks. So when the list is dropped, `InHand` follows each
    message that is still to be acked, as long as the program refers to it.

    Attributes:
        hand: What follows the messages then, or None.
    """

    __slots__ = ("__weakref__", "hand")
    hand: InHand | None
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __del__(self) -> None:
        # Most messages are acked by now, or end with the list.
        for message in self:
            if message._state is None and sys.getrefcount(message) > _REFERRED:  # noqa: SLF001  one room
                hand: InHand | None = getattr(self, "hand", None)
                if hand is not None and not sys.is_finalizing():
                    hand.follow_message(message)


class InHand:
    """The messages that the program has, of all pulls of a connection, and whether it may pull more.

    The references are weak: what the program has dropped without an ack, it will not ack.

    Attributes:
        has_ended: Whether the connection is being drained, so that nothing more is requested.
        lists: The messages of each fetch.
    """

    def __init__(self) -> None:
        self.has_ended: bool = False
        self.lists: set[ref[Handed]] = set()
        self._states: set[ref[AckState]] = set()
        self._pullers: WeakSet[Puller] = WeakSet()

    def add_puller(self, puller: Puller) -> None:
        """Add a puller whose fetches end with the drain."""
        self._pullers.add(puller)

    def add_batch(self, messages: Handed) -> None:
        """Note the messages of a fetch."""
        self.lists.add(ref(messages, self.lists.discard))  # a WeakSet would add calls to each fetch
        messages.hand = self
        # `next` takes its message out of the list, which then ends.
        if len(messages) == 1:
            self.follow_message(messages[0])

    def follow_message(self, message: Message) -> None:
        """Follow a message that is not in a list any more, as long as the program refers to it."""
        from ..message import ack_state  # here, because a message imports more than this module

        state = ack_state(message)
        if state is not None:  # with ack policy none, no ack follows
            self._states.add(ref(state, self._states.discard))

    def check_may_pull(self) -> None:
        """Raise `ClosedError` if nothing more is requested."""
        if self.has_ended:
            raise ClosedError("the connection is being drained: no more messages are requested")

    def end_pulls(self) -> None:
        """End the fetches in flight with what they have, and refuse new ones."""
        self.has_ended = True
        for puller in self._pullers:
            puller.changed.set()

    async def return_late_messages(self) -> None:
        """Return to the server what arrived for fetches that had ended."""
        await asyncio.gather(*(puller.close(give_back=True) for puller in list(self._pullers)))

    @property
    def is_fetching(self) -> bool:
        """True while a fetch has not ended, which may still return messages to the program."""
        return any(puller.is_fetching for puller in self._pullers)

    @property
    def unacked(self) -> int:
        """The number of messages that the program still has, and has not acked."""
        from ..message import ack_state, awaits_ack

        lists = [messages for one in self.lists if (messages := one()) is not None]
        listed = {id(message): message for messages in lists for message in messages if awaits_ack(message)}
        followed = {state for one in self._states if (state := one()) is not None}
        others = followed - {ack_state(message) for message in listed.values()}
        return len(listed) + sum(not state.acked for state in others)


def in_hand(context: Context) -> InHand:
    """Return what the pulls of a connection share."""
    shared: InHand = context.shared.setdefault(InHand, InHand())
    return shared

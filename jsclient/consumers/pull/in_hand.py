"""Keeps track of unacknowledged messages that the application still references.

The drain of a connection waits until the application has acknowledged or dropped them.
"""

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

# If only its list references a message, its reference count is 3: the list, the loop and the argument.
_REFERRED: Final = 3


class Handed(list["Message"]):
    """The list of messages that a fetch has returned. A loop over the messages keeps the list alive.

    The application may also copy the list, or pass the messages to tasks. When the list is garbage collected, its
    unacknowledged messages that are still referenced are therefore passed to `InHand`.

    Attributes:
        hand: Takes care of the messages when the list is garbage collected, or None.
    """

    __slots__ = ("__weakref__", "hand")
    hand: InHand | None
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __del__(self) -> None:
        # Keep track of unacked messages that are still referenced elsewhere. Usually there are none, because all
        # messages have been acked, or are garbage collected together with the list.
        for message in self:
            if message._state is None and sys.getrefcount(message) > _REFERRED:  # noqa: SLF001  same package
                hand: InHand | None = getattr(self, "hand", None)
                if hand is not None and not sys.is_finalizing():
                    hand.follow_message(message)


class InHand:
    """The pulled messages of a connection that the application still references.

    All references are weak. If the application has dropped a message without acknowledging it, no ack will follow, so
    there is no point in waiting for one.

    Attributes:
        has_ended: True if the connection is being drained. No more messages may be requested then.
        lists: The lists of messages that fetches have returned.
    """

    def __init__(self) -> None:
        self.has_ended: bool = False
        self.lists: set[ref[Handed]] = set()
        self._states: set[ref[AckState]] = set()
        self._pullers: WeakSet[Puller] = WeakSet()

    def add_puller(self, puller: Puller) -> None:
        """Add a puller, whose fetches must end when the connection is drained."""
        self._pullers.add(puller)

    def add_batch(self, messages: Handed) -> None:
        """Keep track of the messages that a fetch has returned."""
        self.lists.add(ref(messages, self.lists.discard))  # a WeakSet would add calls to each fetch
        messages.hand = self
        # `next` takes its single message out of the list, which is garbage collected right after, so follow the
        # message itself.
        if len(messages) == 1:
            self.follow_message(messages[0])

    def follow_message(self, message: Message) -> None:
        """Keep track of a message that is no longer in a list, as long as the application references it."""
        from ..message import ack_state  # imported here, because importing this module must stay cheap

        state = ack_state(message)
        if state is not None:  # otherwise no ack is expected, for example with ack policy "none"
            self._states.add(ref(state, self._states.discard))

    def check_may_pull(self) -> None:
        """Raise `ClosedError` if no more messages may be requested."""
        if self.has_ended:
            raise ClosedError("the connection is being drained: no more messages are requested")

    def end_pulls(self) -> None:
        """End the fetches in flight, which return the messages received so far, and refuse new ones."""
        self.has_ended = True
        for puller in self._pullers:
            puller.changed.set()

    async def return_late_messages(self) -> None:
        """Return messages to the server that arrived after their fetches had ended."""
        await asyncio.gather(*(puller.close(give_back=True) for puller in list(self._pullers)))

    @property
    def is_fetching(self) -> bool:
        """True while a fetch is running, because it may still return messages to the application."""
        return any(puller.is_fetching for puller in self._pullers)

    @property
    def unacked(self) -> int:
        """Number of messages that the application still references and has not acknowledged."""
        from ..message import ack_state, awaits_ack

        lists = [messages for one in self.lists if (messages := one()) is not None]
        listed = {id(message): message for messages in lists for message in messages if awaits_ack(message)}
        followed = {state for one in self._states if (state := one()) is not None}
        others = followed - {ack_state(message) for message in listed.values()}
        return len(listed) + sum(not state.acked for state in others)


def in_hand(context: Context) -> InHand:
    """Return the `InHand` that all pullers of a connection share."""
    shared: InHand = context.shared.setdefault(InHand, InHand())
    return shared

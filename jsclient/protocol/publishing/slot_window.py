"""A window that keeps ordinary publishes in compiled slots, as long as they receive ordinary acks.

On an error, an answer that is not an ordinary ack, a deadline or a change of the connection, `SlotWindow` creates a
record of each publish, and `PublishWindow` takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...errors import JetStreamError
from ..wire.frames import Frame
from .in_flight import AnsweredSubjects, InFlight, TicketT
from .publish_window import Failures, PublishWindow, Sends

__all__ = ["Commands", "SlotWindow", "Slots"]

# After an unusual answer, this many of the following publishes get a record when they are sent, because their answers
# will probably be unusual as well, for example if the server doesn't write acks in the usual form.
_RESTING = 1000


class Commands(Protocol):
    """A buffer of commands that also counts their bytes."""

    commands: list[bytes]
    size: int


class Slots(Protocol):
    """Publishes in flight, in compiled code. The number at the end of a reply subject selects the slot of the publish.

    Attributes:
        prefix: The part of reply subjects before the number. It changes only while no publish is in a slot.
        number: The number of the last publish sent, here or elsewhere.
        size: Bytes of headers and payloads in flight, here or elsewhere.
        small: Number of bytes that the server accepts for certain.
        next_check: When to check the publishes.
    """

    prefix: bytes
    number: int
    size: int
    small: int
    next_check: float

    def connect(  # noqa: PLR0917
        self,
        others: dict[bytes, Any],
        max_count: float,
        watch: float,
        outbox: Commands,
        sooner: Callable[[float], None],
        check_size: Callable[[int], None],
        too_much: Callable[[int], bool],
        /,
    ) -> None:
        """Set the publishes in flight elsewhere, the limits for both together, and the buffer for the commands.

        ``sooner`` is called with the moment at which a publish must be checked, if that is before ``next_check``.
        ``check_size`` is called with sizes above ``small``, and ``too_much`` with the bytes in flight above
        ``watch``.
        """

    def __len__(self) -> int:
        """Return the number of publishes in flight, here or elsewhere."""

    @property
    def oldest(self) -> int:
        """The number of the oldest publish in a slot, or 0 if every slot is empty."""

    def publish(  # noqa: PLR0917
        self,
        subject: bytes,
        header: bytes,
        data: bytes,
        now: float,
        timeout: float,
        repeatable: bool,  # noqa: FBT001
        admitted: bool,  # noqa: FBT001
        /,
    ) -> Any:
        """Add a publish, which gets the next number, and add its command to the outbox.

        Args:
            repeatable: Check the publish after its attempt, and not only at its deadline.
            admitted: Ignore the limits.

        Returns:
            The future of the publish, or None if it was not added, because it exceeds a limit or needs a record.
        """

    def take(self, frames: list[Frame], start: int, answered: dict[bytes, None], /) -> tuple[int, int]:
        """Settle publishes by the frames from ``start`` on, up to the first frame that is not an ordinary ack.

        The futures receive the acks, and ``answered`` receives the subjects.

        Returns:
            The index of that first frame, and the number of settled publishes.
        """

    def drain(self) -> list[tuple[Any, ...]]:
        """Remove all publishes. Return their reply subjects and the fields of their `InFlight`, oldest first."""

    def rest(self, count: int, /) -> None:
        """Refuse the next ``count`` publishes, which then get records."""


class SlotWindow(PublishWindow[TicketT]):
    """Publishes in flight, the newest of them in slots."""

    __slots__ = ("slots",)

    def __init__(self, never_an_id: str, answered: AnsweredSubjects, slots: Slots) -> None:
        self.slots: Slots = slots  # newer than all of `in_flight`
        PublishWindow.__init__(self, never_an_id, answered)

    @property
    def size(self) -> int:
        return self.slots.size

    @size.setter
    def size(self, size: int) -> None:
        self.slots.size = size

    @property
    def next_check(self) -> float:
        return self.slots.next_check

    @next_check.setter
    def next_check(self, moment: float) -> None:
        self.slots.next_check = moment

    @property
    def count(self) -> int:
        return len(self.slots)

    def expand(self) -> None:
        for reply, *fields in self.slots.drain():
            self.in_flight[reply] = InFlight(*fields)

    def add_publish(self, reply: bytes, entry: InFlight[TicketT]) -> None:
        self.expand()
        PublishWindow.add_publish(self, reply, entry)

    def answers(self, frames: list[Frame], now: float) -> Failures[TicketT]:
        failures: Failures[TicketT] = []
        slots, in_flight, answered = self.slots, self.in_flight, self.answered.subjects
        start, count = 0, len(frames)
        while start < count:
            stop, stored = slots.take(frames, start, answered)
            self._count_stored(0, stored)
            if stop == start:
                while stop < count and frames[stop][0] in in_flight:
                    stop += 1
                # The next frame is an error, an ack in another form, an answer to a repeated attempt, or a message that
                # answers no publish. Only records can handle such frames, so create the records.
                if stop == start:
                    self.expand()
                    slots.rest(_RESTING)
                    stop = count
                failures += PublishWindow.answers(self, frames[start:stop], now)
            start = stop
        return failures

    def has_older(self, number: int) -> bool:
        return 0 < self.slots.oldest <= number or PublishWindow.has_older(self, number)

    def connected(self, now: float) -> Sends[TicketT]:
        self.expand()
        return PublishWindow.connected(self, now)

    def check_publishes(self, now: float) -> tuple[Failures[TicketT], Sends[TicketT]]:
        self.expand()
        return PublishWindow.check_publishes(self, now)

    def fail_publishes(self, why: Callable[[InFlight[TicketT]], JetStreamError | None]) -> Failures[TicketT]:
        self.expand()
        return PublishWindow.fail_publishes(self, why)

"""Events that concern the end of a worker or of a subscription's consumer. Source: ADR-15."""

from __future__ import annotations

from ..errors import JetStreamError
from .event_base import Event, Severity

__all__ = ["AcksUnsent", "ConsumerNotKept", "DeleteFailed", "DurableDeleted"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class ConsumerNotKept(Event, frozen=True, kw_only=True):
    """A subscription created a named consumer without ``delete_on_close``, so it will delete the consumer when it ends.

    The event is emitted once, when the consumer is created, because a named consumer is often meant to be kept. To keep
    the consumer, pass ``delete_on_close=False``. To delete it without this event, pass ``delete_on_close=True``. See
    ADR-15 for the rule.
    """

    _text = (
        "this subscription created the consumer, and will delete it when it ends (unsubscribe, drain), also under "
        "other readers, because delete_on_close was not given: give delete_on_close=False to keep it for the next run, "
        "or delete_on_close=True to have it deleted"
    )


class DurableDeleted(Event, frozen=True, kw_only=True):
    """A subscription ended and deleted the named consumer that it had created.

    To keep the consumer, pass ``delete_on_close=False`` when you subscribe. If the state of the consumer couldn't be
    requested before, the attributes other than ``chosen`` are None.

    Attributes:
        pending: Number of messages that hadn't been delivered.
        unacked: Number of messages that had been delivered, but not acknowledged.
        num_waiting: Number of pull requests from other readers, which have lost the consumer too.
        push_bound: Whether another member of the queue group was subscribed, which has lost the consumer too.
        chosen: True if ``delete_on_close=True`` was passed. False if the subscription deleted the consumer by default.
    """

    pending: int | None = None
    unacked: int | None = None
    num_waiting: int | None = None
    push_bound: bool | None = None
    chosen: bool = False

    @property
    def severity(self) -> Severity:
        """The severity to log this event with.

        It is "info" if the application requested the deletion, no messages were pending or unacked, and no other
        readers were using the consumer. Otherwise, it is "warning".
        """
        harmless = self.pending == 0 and not (self.unacked or self.num_waiting or self.push_bound)
        return "info" if self.chosen and harmless else "warning"

    def _says(self) -> str:
        state = "; its state could not be read, so what was left in it is unknown"
        if self.pending is not None:
            state = f" with {_count(self.pending, 'message')} undelivered and {self.unacked} unacked"
        others = ""
        if self.push_bound:
            others = "; other members of its queue group are still subscribed and receive nothing more"
        elif self.num_waiting:
            others = f"; {_count(self.num_waiting, 'pull request')} of other readers waited"
        why = "delete_on_close=True was given" if self.chosen else "this subscription had created it"
        return (
            f"the consumer was deleted{state}{others}, because {why}: give delete_on_close=False to keep it"
        )


class DeleteFailed(Event, frozen=True, kw_only=True):
    """A subscription has ended, but couldn't delete the consumer that it had created.

    The server removes an ephemeral consumer later. A durable consumer remains until you delete it.

    Attributes:
        error: The error that prevented the deletion.
    """

    _text = "the consumer could not be deleted: {error}"

    error: JetStreamError


class AcksUnsent(Event, frozen=True, kw_only=True):
    """A worker was stopped while the server was unreachable, so it couldn't settle all of its messages.

    The server redelivers these messages after ``ack_wait``, unless they have reached ``max_deliver``. Handlers must
    therefore cope with messages that have already been handled.

    Attributes:
        count: Number of messages that had been handled, but whose acknowledgements couldn't be sent.
        returned: Number of messages that had failed or hadn't been handled, and couldn't be returned to the server.
    """

    about = "worker"

    count: int
    returned: int = 0

    def _says(self) -> str:
        parts = []
        if self.count:
            were = "was handled, but its ack" if self.count == 1 else "were handled, but their acks"
            parts.append(f"{_count(self.count, 'message')} {were} could not be sent")
        if self.returned:
            parts.append(f"{_count(self.returned, 'message')} could not be returned")
        them = "it" if self.count + self.returned == 1 else "them"
        return (
            f"the worker ended while the server was away: {', and '.join(parts)}; the server delivers {them} again "
            "after ack_wait, so handlers must bear a repetition"
        )

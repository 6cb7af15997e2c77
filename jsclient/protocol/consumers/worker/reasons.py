"""The errors because of which a message is dead-lettered without another attempt."""

from __future__ import annotations

__all__ = ["DeliveriesExhaustedError", "Reject"]


class Reject(Exception):
    """Raised by a handler for a message that can never be handled, so the worker doesn't retry the message.

    ::

        async def handle(message):
            if not is_valid(message.data):
                raise jsclient.Reject("not an order")

    If the worker has a dead-letter subject, the message is stored there immediately. Otherwise, the message is
    terminated. The text of the exception becomes part of the dead letter's headers and of the server's advisory.
    """


class DeliveriesExhaustedError(Exception):
    """A message was delivered as often as allowed, but no worker finished handling it.

    This is the reason given in the message's dead letter and in the event `DeadLettered`. The workers that received the
    message crashed, were stopped, or exceeded ``ack_wait``.
    """

    __module__ = "jsclient"  # Set explicitly, because dead letters contain the qualified name of the reason.

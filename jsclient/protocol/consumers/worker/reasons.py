"""The errors because of which a message is dead-lettered without another attempt."""

from __future__ import annotations

__all__ = ["DeliveriesExhaustedError", "Reject"]


class Reject(Exception):
    """Raised by a handler for a message that can never be handled. It is dead-lettered at once, not retried.

    The text of ``Reject("no such customer")`` is part of the dead letter's headers and the server's advisory.
    """


class DeliveriesExhaustedError(Exception):
    """The reason why a message was dead-lettered without being handled: none of its deliveries was settled.

    The workers that received them died, were stopped, or exceeded ``ack_wait``.
    """

    __module__ = "jsclient"  # Set explicitly, because dead letters contain the qualified name of the reason.

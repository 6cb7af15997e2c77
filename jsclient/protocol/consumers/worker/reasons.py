"""Why a message is dead-lettered without another attempt."""

from __future__ import annotations

__all__ = ["DeliveriesExhaustedError", "Reject"]


class Reject(Exception):
    """Raised by a handler: this message can never be handled. It is dead-lettered at once, not retried.

    ``Reject("no such customer")``: the text goes into the dead letter's headers and the server's advisory.
    """


class DeliveriesExhaustedError(Exception):
    """Why a message was dead-lettered without being handled: none of its deliveries was settled.

    Their workers died, were stopped, or exceeded ``ack_wait``.
    """

    __module__ = "jsclient"  # from the start: dead letters carry the name

"""An `AckWindow` with a compiled fast path. See `jsclient.protocol.publishing.slot_window`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from .._runtime.connection.speedups import chosen
from .._runtime.connection.wire import CHUNK
from .._runtime.context import Context
from ..protocol.models.publish import quick_pub_acks
from ..protocol.publishing.in_flight import ATTEMPT
from ..protocol.publishing.slot_window import Slots, SlotWindow
from .ack_window import AckWindow, FailureSink
from .admission import Limits
from .unretrieved import PublishFuture

__all__ = ["SlotAcks", "new_slots"]


def new_slots(context: Context) -> Slots | None:
    """Return compiled slots, or None if the extension is missing or the client uses a nats-py connection."""
    if context.connection.outbox is None or (slots := chosen().slots) is None:
        return None
    loop = asyncio.get_running_loop()
    return slots(PublishFuture, loop, quick_pub_acks, asyncio.InvalidStateError, ATTEMPT, CHUNK)


class SlotAcks(AckWindow[PublishFuture]):
    """An `AckWindow` that keeps its newest messages in compiled slots."""

    def __init__(
        self,
        context: Context,
        failures: FailureSink[PublishFuture],
        limits: Limits,
        slots: Slots,
        *,
        after_event: Callable[[], None] | None = None,
    ) -> None:
        self._slots = slots
        window: SlotWindow[PublishFuture] = SlotWindow(secrets.token_hex(11), context.answered, slots)
        AckWindow.__init__(self, context, failures, limits, window=window, after_event=after_event)
        assert self.connection.outbox is not None
        slots.connect(
            window.in_flight,
            limits.max_in_flight,
            self.admission.watch,
            self.connection.outbox,
            self.next_check,
            self.connection.check_size,
            self.admission.too_much,
        )

    @property
    def prefix(self) -> bytes:
        return self._slots.prefix

    @prefix.setter
    def prefix(self, prefix: bytes) -> None:
        self.window.expand()
        self._slots.prefix = prefix

    @property
    def small(self) -> int:
        return self._slots.small

    @small.setter
    def small(self, small: int) -> None:
        self._slots.small = small

    @property
    def number(self) -> int:
        return self._slots.number

    @number.setter
    def number(self, number: int) -> None:
        self._slots.number = number

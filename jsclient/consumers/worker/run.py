"""``run``, which calls a handler with the messages of a subscription or consumer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Unpack

from ..._runtime.context import Context
from ..._runtime.handlers import check_handler, check_plain
from ...errors import ConfigError
from ...protocol.consumers.priority import GroupOptions
from ...protocol.consumers.worker.work_rules import RetryDelay, WorkOptions
from ...protocol.wire.checks import check_arguments

if TYPE_CHECKING:  # imported when a worker is started
    from .handler_pool import Handler
    from .sources import Source
    from .worker import Key, Worker

__all__ = ["Running"]

_log = logging.getLogger("jsclient.worker")


class Running:
    """Base of `Subscription`, `PullSubscription` and `Consumer`: a worker can run on each of them."""

    _context: Context
    _all_workers: tuple[Worker, ...] = ()
    _has_warned: bool = False

    def _source(self, group: GroupOptions) -> Source:
        """Create the source of a worker's messages. ``group`` is for pull requests."""
        raise NotImplementedError

    def _started(self, worker: Worker) -> None:
        """Called when a worker was started."""

    def _workers(self) -> list[Worker]:
        """Return the workers that have not ended."""
        return [worker for worker in self._all_workers if worker.is_running]

    def _check_alone(self, reader: str) -> None:
        """Warn of a second reader beside a worker, because each message goes to only one of them."""
        if self._all_workers and not self._has_warned and self._workers():
            self._has_warned = True
            _log.warning(
                "%r is read by run() already: each message goes either to its handler or to this %s; use concurrency= "
                "for more handlers at a time, or a consumer for each reader to have every message in both",
                self,
                reader,
            )

    async def _end_workers(self) -> None:
        """Stop all workers and wait for them, unless called from one of their handlers."""
        for worker in self._workers():
            await worker.abandon()

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        key: Key | None = None,
        prefetch: int | None = None,
        keep_alive: bool = True,
        handler_timeout: float | None = 600.0,
        retry_delay: RetryDelay | None = None,
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        ack_sync: bool = False,
        stop: asyncio.Event | None = None,
        stop_signals: Collection[int] = (),
        grace: float = 20.0,
        **group: Unpack[GroupOptions],
    ) -> Worker:
        """Call ``handler`` with each message. The message is acked when it returns, and retried when it raises.

        ``await sub.run(handler)`` runs until the subscription ends or the worker is stopped, and returns its
        `WorkCounts`. ``worker = sub.run(handler)`` returns the `Worker`, which can be stopped and awaited later.

        Args:
            handler: Called with each message. A coroutine function runs on the event loop. A plain function runs in a
                thread, so that it may block. It cannot be interrupted. The result of the handler is ignored. If it
                acked, nak'ed or terminated the message, the worker sends nothing. It may raise `Reject` for a message
                that can never be handled.
            concurrency: The maximum number of handlers that run at the same time.
            key: A plain function of the message, called on the event loop. Messages with equal keys are handled one
                after the other, in the order of the stream, concurrently with other messages. None as a key means no
                order. A failed message is retried by this worker before the next message with its key, until it is
                handled or dead-lettered. Several workers on one consumer do not keep this order among them.
            prefetch: Messages that may wait, here or in flight, besides the messages being handled. The default is the
                number handled in the last half second: at least twice ``concurrency`` (with ``key`` 64), at most 500
                and ``max_ack_pending`` of the consumer. Other workers could handle them meanwhile, so set it if
                handling suddenly takes long. A push subscription receives as many as ``max_ack_pending`` allows.
            keep_alive: Report progress to the server before ``ack_wait`` (or the entry of ``backoff`` for this
                delivery) is over, for messages being handled or waiting here, so that they are not redelivered.
            handler_timeout: Seconds after which a handler is cancelled and its message counts as failed. None: never.
                If the handler does not end then, the message is abandoned anyway, and the handler still counts as
                running until it ends.
            retry_delay: Seconds before a failed message is retried, or a function of the number of the attempt (from
                1). The default is ``backoff`` of the consumer, or, without it, 0.5 s, doubled each time up to 60 s.
            max_deliver: The number of deliveries after which a failing message is not retried. The default is the
                consumer's ``max_deliver``, or no limit. A message that arrives after more deliveries is not handled
                again, because its handlers never finished. This needs a consumer without a limit (-1) or with a larger
                limit, since messages that the consumer stops delivering do not arrive here.
            dead_letter: The subject under which a copy of a failed message is stored, with headers ``Dead-Letter-…``
                for its origin and the reason. In ``"dead.>"`` the subject of the message replaces ``>``. The message is
                terminated after the copy is stored. If the consumer has ``max_deliver``, messages whose worker died
                during the last delivery are stored too: the server sends an advisory to the worker that reads next.
                Without a subject a message is only terminated. The event `DeadLettered` reports both.
            ack_sync: Wait until the server has confirmed each ack.
            stop: An event that stops the worker when it is set.
            stop_signals: Signals that stop the worker, such as ``signal.SIGTERM``. A second signal cancels running
                handlers. Not available on Windows.
            grace: Seconds that running handlers have to finish when the worker stops. See `Worker.stop`.
            group, min_pending, min_ack_pending, priority: For a consumer with priority groups. See
                `PullSubscription.fetch`.

        Raises:
            ConfigError: A value is out of range. No request was sent. The `Worker` raises all other errors.

        A handler that is cancelled from within, or raises any ``Exception``, fails only its message, and the event
        `HandlerFailed` reports it. Any other exception (``SystemExit``) ends the worker.

        The server counts every delivery, including a delivery to a worker that died before handling it.

        Stopped, or cancelled: no new message is started, buffered messages are returned to the server at once (nak),
        and running handlers have ``grace`` seconds. A push subscription ends with its worker, like after ``drain``,
        because the server keeps delivering to it. A pull subscription can be run again.

        Reconnect: acks wait for the connection, and the worker keeps its messages.
        """
        options = WorkOptions(
            concurrency=concurrency,
            ordered=key is not None,
            prefetch=prefetch,
            keep_alive=keep_alive,
            handler_timeout=handler_timeout,
            max_deliver=max_deliver,
            retry_delay=retry_delay,
            dead_letter=dead_letter,
            grace=grace,
        )
        check_arguments(Running.run, group, GroupOptions)
        check_handler("handler", handler)
        _check_signals(stop_signals)
        if key is not None:
            check_handler("key", key)
            check_plain("key", key)
        options.check_options()
        if callable(retry_delay):
            check_handler("retry_delay", retry_delay, "number of the attempt")
            check_plain("retry_delay", retry_delay)
        from .worker import Worker

        self._check_alone("run()")
        worker = Worker(
            self._context,
            self._source(group),
            handler,
            options,
            key=key,
            ack_sync=ack_sync,
            stop=stop,
            stop_signals=stop_signals,
        )
        self._all_workers = (*self._workers(), worker)
        self._started(worker)
        return worker


def _check_signals(signals: Collection[int]) -> None:
    is_list = isinstance(signals, Collection) and not isinstance(signals, str | bytes)
    if not is_list or not all(isinstance(number, int) and not isinstance(number, bool) for number in signals):
        raise ConfigError(
            f"stop_signals is {signals!r:.60}: a list of signals is needed, such as [signal.SIGTERM]"
        )

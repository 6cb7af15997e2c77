"""The method ``run`` of subscriptions and consumers, which starts a worker."""

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
    """Base class of `Subscription`, `PullSubscription` and `Consumer` that provides `run`."""

    _context: Context
    _all_workers: tuple[Worker, ...] = ()
    _has_warned: bool = False

    def _source(self, group: GroupOptions) -> Source:
        """Create the source of the messages of a worker. ``group`` contains the priority group options for pulling."""
        raise NotImplementedError

    def _started(self, worker: Worker) -> None:
        """Called after a worker was started. Does nothing by default."""

    def _workers(self) -> list[Worker]:
        """Return the workers that have not ended."""
        return [worker for worker in self._all_workers if worker.is_running]

    def _check_alone(self, reader: str) -> None:
        """Log a warning if another reader starts while a worker is running, because each message goes to only one."""
        if self._all_workers and not self._has_warned and self._workers():
            self._has_warned = True
            _log.warning(
                "%r is read by run() already: each message goes either to its handler or to this %s; use concurrency= "
                "for more handlers at a time, or a consumer for each reader to have every message in both",
                self,
                reader,
            )

    async def _end_workers(self) -> None:
        """Stop all workers and wait for their end, except for a worker whose handler is calling this method."""
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
        """Call ``handler`` with each message. A message is acked if the handler returns, and retried if it raises.

        ::

            async def handle(message):
                await save(message.data)

            await subscription.run(handle, concurrency=10)

        ``await subscription.run(handle)`` runs until the subscription ends or the worker is stopped, and returns the
        `WorkCounts` of the worker. ``worker = subscription.run(handle)`` starts the `Worker` in the background, so you
        can stop it and await it later.

        Args:
            handler: Called with each message. A coroutine function runs on the event loop. A plain function runs in a
                thread, so it may block, but it can't be interrupted. The result of the handler is ignored. If the
                handler has acked, nak'ed or terminated the message, the worker doesn't ack it. The handler may raise
                `Reject` for a message that can never be handled.
            concurrency: Maximum number of handlers that run at the same time.
            key: A plain function that returns a key for a message. It is called on the event loop. Messages with the
                same key are handled one after the other, in the order of the stream. Messages with different keys, or
                with the key None, are handled concurrently. When a handler fails, this worker retries the message
                before it handles the next message with the same key. There is no such order across several workers on
                one consumer.
            prefetch: Maximum number of messages buffered or in flight, in addition to those being handled. By default,
                it adapts to the number of messages handled in half a second. It is then at least twice ``concurrency``
                (64 with ``key``), and at most 500 or the consumer's ``max_ack_pending``. Choose a small number if some
                messages take long, because other workers can't handle buffered messages. Push subscriptions ignore this
                argument, and receive as many messages as ``max_ack_pending`` allows.
            keep_alive: Report progress to the server before the ``ack_wait`` of a message (or the ``backoff`` of this
                delivery) is over, so messages being handled or buffered aren't redelivered.
            handler_timeout: How long a handler may run, in seconds. After this time, the handler is cancelled, and its
                message counts as failed. None disables the timeout. If the handler ignores its cancellation, the
                message is given up, but the handler counts towards ``concurrency`` until it ends.
            retry_delay: How long to wait before a failed message is retried, in seconds, or a function that returns the
                delay for the number of an attempt, starting at 1. Defaults to the consumer's ``backoff``. If the
                consumer has none, the delay is 0.5 s at first and doubles each time, up to 60 s.
            max_deliver: Number of deliveries after which a failing message isn't retried. Defaults to the consumer's
                ``max_deliver``, or to no limit. If a message arrives after even more deliveries, no handler has ever
                finished it, so it isn't handled again. The consumer must have no limit (-1) or a larger limit, because
                the server would otherwise stop delivering the message before this worker can decide.
            dead_letter: A subject for copies of messages that can't be handled. Their headers ``Dead-Letter-…`` contain
                the origin and the reason. In ``"dead.>"``, the subject of the message replaces ``>``. The message is
                terminated after its copy is stored. If the consumer has ``max_deliver``, messages whose worker crashed
                during the last delivery are stored too, by the worker that reads next. Without ``dead_letter``,
                messages are only terminated. Either way, the event `DeadLettered` is emitted.
            ack_sync: Wait until the server has confirmed each ack.
            stop: An event that stops the worker when it is set.
            stop_signals: Signals that stop the worker, such as ``signal.SIGTERM``. A second signal cancels running
                handlers. Not available on Windows.
            grace: How many seconds running handlers have to finish when the worker stops. See `Worker.stop`.
            group: Name of the priority group. Required if the consumer has priority groups.
            min_pending: Receive messages only if at least this many are undelivered. For the priority policy
                "overflow". See `PullSubscription.fetch`.
            min_ack_pending: The same for unacknowledged messages. If both are given, one condition is enough.
            priority: 0 to 9. Requests with lower numbers are served first. For the policy "prioritized".

        Raises:
            ConfigError: An argument is invalid. No request was sent. All other errors are raised when the `Worker` is
                awaited.

        If the handler raises an ``Exception``, or if something in it is cancelled, the event `HandlerFailed` is emitted
        and the worker continues. Any other exception, such as ``SystemExit``, ends the worker.

        The server counts every delivery, including deliveries to a worker that crashed before it handled the message.

        When the worker is stopped or cancelled, it starts no more handlers, and returns the messages in its buffer to
        the server. Running handlers have ``grace`` seconds to finish. A push subscription then ends too, because the
        server would continue to deliver messages. A pull subscription can be run again.

        While the client reconnects, acks wait for the connection, and the worker keeps its messages.
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

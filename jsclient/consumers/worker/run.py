"""``run``: the part of a subscription or consumer that has its messages handled."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from ..._runtime.context import Context
from ...errors import ConfigError
from ...protocol.consumers.worker.work_rules import RetryDelay, WorkOptions
from .handler import Handler
from .sources import Source
from .worker import Key, Worker

__all__ = ["Running"]


class Running:
    """What `Subscription`, `PullSubscription` and `Consumer` have in common: a worker can be run on them."""

    _context: Context

    def _source(self, group: Mapping[str, Any]) -> Source:
        """Where the messages of a worker come from. ``group``: what pull requests are to say of a priority group."""
        raise NotImplementedError

    def _started(self, worker: Worker) -> None:
        """A worker runs."""

    def _workers(self) -> list[Worker]:
        """The workers that run on this."""
        return [one for one in self._context.open if isinstance(one, Worker) and one.reads(self)]

    async def _end_workers(self) -> None:
        """Stop them and wait, unless a handler of theirs asks for it."""
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
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> Worker:
        """Have each message handled, and answer for it: acked when the handler returns, tried again when it raises.

        ``await sub.run(handler)`` runs until the subscription ends or the worker is stopped, and returns its
        `WorkCounts`. ``worker = sub.run(handler)`` gives the `Worker`, to be stopped and awaited later.

        Args:
            handler: Is called with each message. A coroutine function runs on the event loop. A plain function runs
                in a thread, so that it may block; it cannot be interrupted. What it returns does not matter. A message
                that it acked, nak'ed or terminated itself is left at that. It may raise `Reject`: the message can
                never be handled.
            concurrency: Handlers at a time.
            key: A function of the message. Messages with equal keys are handled one after the other, in the order of
                the stream, others meanwhile; None as a key means no order. A message that failed is held, and tried
                again here, before the next one with its key begins: until it is handled or dead-lettered. The order is
                that of this worker; several workers on one consumer share keys without order among them.
            prefetch: Messages that may wait, here or on their way, beside those that are handled; by default twice
                ``concurrency``, with ``key`` 64 or more. Others could handle them meanwhile, so keep it small where
                handling takes long. A push subscription is sent as many as ``max_ack_pending`` of its consumer lets.
            keep_alive: Tell the server in time, before ``ack_wait`` (or the entry of ``backoff`` for this delivery) is
                over, that a message is being worked on or waits here, so that it is not delivered a second time.
            handler_timeout: Seconds after which a handler is cancelled and its message counts as failed; None:
                never. Where the handler does not end then, the message is given up all the same, and the place of the
                handler stays taken until it ends.
            retry_delay: Seconds before a message that failed is tried again, or a function of the number of the try
                (from 1). By default ``backoff`` of the consumer, or, without it, 0.5 s, doubled each time up to 60 s.
            max_deliver: Deliveries after which a message that fails is given up; by default that of the consumer,
                else without limit. A message that arrives after more deliveries is given up without being handled:
                nobody survived it. For that to be noticed give it here, and leave that of the consumer unlimited (-1)
                or larger, since what the consumer stops to deliver does not come here.
            dead_letter: The subject under which a copy of a message that is given up is stored, with headers
                ``Dead-Letter-…`` that say where it was and why; in ``"dead.>"`` the message's own subject stands for
                ``>``. The message is terminated when the copy is stored, not before. Messages whose last delivery
                ended with the death of their worker are found too, where the consumer has ``max_deliver``: the server
                tells the worker that reads on (an advisory). Without a subject a message is only terminated; the event
                `DeadLettered` tells of either.
            ack_sync: Wait until the server has counted each ack.
            stop: Set it to stop the worker.
            stop_signals: Signals that stop it, such as ``signal.SIGTERM``; a second one cancels running handlers.
                Not on Windows.
            grace: Seconds that running handlers have when it stops; see `Worker.stop`.
            group, min_pending, min_ack_pending, priority: Of a consumer with priority groups, as for
                `PullSubscription.fetch`.

        Raises:
            ConfigError: A value out of range; nothing was sent. What else can go wrong is raised from the `Worker`.

        A handler that is cancelled from within, or raises any ``Exception``, has failed its message and nothing else;
        the event `HandlerFailed` tells it. Anything else that it raises (``SystemExit``) ends the worker.
        A delivery counts when the server made it: also one to a worker that died while the message waited.
        Stopped, or cancelled: nothing new begins, what waits is given back to the server at once (nak), running
        handlers have ``grace`` seconds. A push subscription ends with its worker, as after ``drain``, for the server
        sends on as long as it lasts; a pull subscription can be run again.
        Reconnect: answers wait for the connection; messages in hand are kept.
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
        if not callable(handler):
            raise ConfigError(f"handler is {type(handler).__name__}: it must be a function")
        if key is not None and not callable(key):
            raise ConfigError(f"key is {type(key).__name__}: it must be a function of the message")
        options.check()
        asks = {
            "group": group,
            "min_pending": min_pending,
            "min_ack_pending": min_ack_pending,
            "priority": priority,
        }
        worker = Worker(
            self._context,
            self._source({name: value for name, value in asks.items() if value is not None}),
            handler,
            options,
            key=key,
            ack_sync=ack_sync,
            stop=stop,
            stop_signals=stop_signals,
        )
        self._started(worker)
        return worker

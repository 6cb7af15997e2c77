"""The options of a worker applied to its consumer: concurrency, keep-alives, retries.

Source: nats-server server/consumer.go. ``backoff`` replaces ``ack_wait`` for each delivery (checkPending): delivery
``n`` has ``backoff[n - 1]`` seconds, and the last entry applies to all later deliveries. A nak with a delay ignores
that (processNak counts from ``ack_wait``, which is ``backoff[0]``), so delivery ``n`` waits
``backoff[n - 1] - backoff[0]`` longer than requested, as measured on 2.10 to 2.15. `WorkRules.wire_delay` compensates
for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ....errors import ConfigError
from ...models.consumer import AckPolicy, ConsumerConfig
from ...wire.checks import check_count
from ...wire.names import check_filter_subject
from ...wire.units import seconds_to_ns

__all__ = ["RetryDelay", "WorkOptions", "WorkRules", "default_delay"]

RetryDelay: TypeAlias = float | Callable[[int], float]

ACK_WAIT = 30.0  # the server's default, in seconds
_SOONEST = 0.001  # minimum delay before the next attempt, in seconds
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 60.0  # the first and the longest delay before another attempt, in seconds


@dataclass(slots=True, frozen=True)
class WorkOptions:
    """The user's options for a worker. See ``run`` of the subscriptions."""

    concurrency: int = 1
    ordered: bool = False
    prefetch: int | None = None
    keep_alive: bool = True
    handler_timeout: float | None = 600.0
    max_deliver: int | None = None
    retry_delay: RetryDelay | None = None
    dead_letter: str | None = None
    grace: float = 20.0

    def check_options(self) -> None:
        """Check the options.

        Raises:
            ConfigError: A number is out of range, there is a key without keep_alive, or the dead-letter subject is not
                valid.
        """
        check_count("concurrency", self.concurrency)
        if self.prefetch is not None:
            check_count("prefetch", self.prefetch)
        if self.max_deliver is not None:
            check_count("max_deliver", self.max_deliver)
        if self.ordered and not self.keep_alive:
            raise ConfigError("key needs keep_alive: a failed message is held until it is retried")
        if self.handler_timeout is not None:
            _check_seconds("handler_timeout", self.handler_timeout, above=0.0)
        if self.retry_delay is not None and not callable(self.retry_delay):
            _check_seconds("retry_delay", self.retry_delay)
        _check_seconds("grace", self.grace)
        if self.dead_letter is not None:
            check_filter_subject(self.dead_letter)
            # Check the subject without the final ">", because the subject of the message will take its place.
            head = self.dead_letter.removesuffix(".>")
            if "*" in head.split(".") or head == ">":
                raise ConfigError(
                    f"dead_letter is {self.dead_letter!r}: a wildcard may stand in it as '.>' at its end only"
                )

    @property
    def waiting(self) -> int:
        """Number of messages that may wait, here or in flight. It is small, because other workers could handle them."""
        if self.prefetch is not None:
            return self.prefetch
        # If messages are ordered by key, keep more of them, so that a free handler finds one whose key isn't busy.
        return max(64, 4 * self.concurrency) if self.ordered else 2 * self.concurrency


def _check_seconds(name: str, value: float, *, above: float | None = None) -> None:
    ns = seconds_to_ns(value, what=name)
    if above is not None and ns <= above:
        raise ConfigError(f"{name} is {value!r} s: it must be over 0")


def default_delay(attempt: int) -> float:
    """Return the seconds before the next attempt: 0.5, 1, 2 … 60."""
    return float(min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(attempt - 1, 20)))


class WorkRules:
    """The options of a worker, applied to its consumer.

    Attributes:
        options: The user's options.
        capacity: Maximum number of messages held, including messages being handled.
        pull: Number of messages that a pull reader may request in addition.
        limit: The delivery in which a failure is final, or None if there is no limit.
        server_limit: Number of deliveries after which the server stops redelivery, or None if there is no limit.
        waits: How long the server waits for each delivery's ack, in seconds. The last applies to later deliveries.
        backed_off: Whether ``waits`` comes from ``backoff``.
    """

    def __init__(self, options: WorkOptions, config: ConsumerConfig) -> None:
        """Apply the options. Raises `ConfigError` for a consumer whose messages are not acked one by one."""
        if config.ack_policy not in (None, AckPolicy.EXPLICIT):
            raise ConfigError(
                f"run needs a consumer with ack policy explicit; this one has {str(config.ack_policy)!r}"
            )
        self.options: WorkOptions = options
        # Half of the waiting messages are kept in this worker. The other half is in flight.
        buffered = options.waiting // 2
        self.capacity: int = options.concurrency + buffered
        self.pull: int = options.waiting - buffered
        if config.max_batch and config.max_batch > 0:
            self.pull = min(self.pull, config.max_batch)
        max_deliver = config.max_deliver
        self.server_limit: int | None = max_deliver if max_deliver and max_deliver > 0 else None
        limits = [limit for limit in (options.max_deliver, self.server_limit) if limit is not None]
        self.limit: int | None = min(limits, default=None)
        self.waits: tuple[float, ...] = tuple(config.backoff or ()) or (config.ack_wait or ACK_WAIT,)
        self.backed_off: bool = bool(config.backoff)

    def doubts(self) -> list[str]:
        """Return warnings about options that are probably mistakes. Each warning says how to correct the option."""
        options, warnings = self.options, []
        if options.dead_letter is not None and self.limit is None:
            warnings.append(
                f"dead_letter is {options.dead_letter!r}, but deliveries have no limit: a failing message is retried "
                "for ever, and only Reject makes a dead letter; set max_deliver of run(), or that of the consumer"
            )
        if self.server_limit is not None and (options.max_deliver or 0) > self.server_limit:
            warnings.append(
                f"max_deliver of run() is {options.max_deliver}, but the consumer stops at {self.server_limit} "
                "deliveries, which is what counts: set that of the consumer to -1, or to more"
            )
        return warnings

    def ack_wait(self, deliveries: int) -> float:
        """Return the seconds for which the server waits for the ack of this delivery."""
        return self.waits[min(max(deliveries, 1), len(self.waits)) - 1]

    def interval(self, deliveries: int) -> float:
        """Return the seconds between progress reports.

        It is a third of ``ack_wait``, as a report may be lost or late.
        """
        return self.ack_wait(deliveries) / 3

    @property
    def hold(self) -> float:
        """How long messages may wait without keep-alive, in seconds."""
        return min(self.waits) / 3

    def is_final(self, attempt: int) -> bool:
        """Return whether a failure in this attempt is final."""
        return self.limit is not None and attempt >= self.limit

    def is_exhausted(self, deliveries: int) -> bool:
        """Return whether a message was delivered more often than allowed, so it must not be handled."""
        return self.limit is not None and deliveries > self.limit

    def is_last(self, deliveries: int) -> bool:
        """Return whether this is the last delivery by the server."""
        return self.server_limit is not None and deliveries >= self.server_limit

    def retry_delay(self, attempt: int) -> tuple[float, Exception | None]:
        """Return the seconds before the next attempt, and the error of the user's ``retry_delay``, if any."""
        retry_delay = self.options.retry_delay
        if retry_delay is None:
            return (self.ack_wait(attempt) if self.backed_off else default_delay(attempt)), None
        if not callable(retry_delay):
            return float(retry_delay), None
        try:
            delay = retry_delay(attempt)
            _check_seconds("retry_delay", delay)
            return float(delay), None
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            return default_delay(attempt), error

    def wire_delay(self, deliveries: int, delay: float) -> float | None:
        """Return the delay to send in a nak, so that the server redelivers the message in ``delay`` seconds.

        Return None if the consumer's ``backoff`` decides.
        """
        if not self.backed_off:
            return delay
        if self.options.retry_delay is None:
            return None
        return max(_SOONEST, delay - (self.ack_wait(deliveries) - self.waits[0]))

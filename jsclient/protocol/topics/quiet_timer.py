"""`QuietTimer`, which decides how long a reader waits for a record before it reads the history."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["QuietTimer"]


@dataclass(slots=True)
class QuietTimer:
    """Adapts how often a reader checks the stream for records whose push was lost. Pass it to `EventSource.subscribe`.

    If a reader receives nothing for some time, it can't know whether nothing was published or pushes were lost, so it
    checks the history. The timer decides how long the reader waits before each check. The time grows after a check that
    finds nothing, and shrinks after a check that finds records::

        source.subscribe(quiet=QuietTimer(shortest=5, longest=60))

    Attributes:
        shortest: Shortest time to wait, in seconds. Defaults to 30.
        longest: Longest time to wait, in seconds. With 0, the default, the time is constant.
        factor: The factor by which the time grows or shrinks. Defaults to 2.
        period: The time to wait now, in seconds. It begins with ``shortest``.

    Raises:
        ConfigError: A value isn't a number, or ``0 < shortest <= period <= longest`` and ``factor >= 1`` don't hold.
    """

    shortest: float = 30.0
    longest: float = 0.0
    factor: float = 2.0
    period: float = 0.0

    def __post_init__(self) -> None:
        for seconds in (self.shortest, self.longest, self.period):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise ConfigError(f"quiet timer: {seconds!r:.40} is not a number of seconds")
        self.longest = self.longest or self.shortest
        self.period = self.period or self.shortest
        if not 0 < self.shortest <= self.period <= self.longest or self.factor < 1:
            raise ConfigError(
                f"quiet timer from {self.shortest} to {self.longest} s, now {self.period} s, factor {self.factor}: "
                "0 < shortest <= period <= longest and factor >= 1 are needed"
            )

    def page_was_empty(self) -> None:
        """Wait longer before the next check, because the last check found no new record."""
        self.period = min(self.period * self.factor, self.longest)

    def page_had_records(self) -> None:
        """Check sooner next time, because the last check found a record that hadn't been pushed."""
        self.period = max(self.period / self.factor, self.shortest)

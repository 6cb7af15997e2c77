"""`QuietTimer`, which decides how long a reader waits for a record before it reads the history."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["QuietTimer"]


@dataclass(slots=True)
class QuietTimer:
    """The time that a reader waits for a record before it reads the history. It adapts to lost pushes.

    If ``longest`` is 0, the time is constant. Pass a timer to `EventSource.subscribe` as ``quiet``.

    Attributes:
        shortest, longest: The bounds of the time, in seconds.
        period: The current time, in seconds.
        factor: The factor by which the time grows or shrinks.
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
        """Lengthen the time, because the history contained no new record."""
        self.period = min(self.period * self.factor, self.longest)

    def page_had_records(self) -> None:
        """Shorten the time, because the history contained a record that had not been pushed."""
        self.period = max(self.period / self.factor, self.shortest)

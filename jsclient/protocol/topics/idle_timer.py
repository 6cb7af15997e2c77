"""How long nothing may come until somebody asks.

Source: P3Sub: "the time constant of the timer is application-specific, and may be adaptive".
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["QuietTimer"]


@dataclass(slots=True)
class QuietTimer:
    """A period that grows while asking finds nothing and shrinks when it does.

    With ``longest`` left out it is always the same.

    Attributes:
        shortest, longest: Its bounds, seconds.
        period: What it is now, seconds.
    """

    shortest: float = 30.0
    longest: float = 0.0
    factor: float = 2.0
    period: float = 0.0

    def __post_init__(self) -> None:
        for seconds in (self.shortest, self.longest, self.period):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise ConfigError(f"a quiet timer of {seconds!r:.40}: a number of seconds is needed")
        self.longest = self.longest or self.shortest
        self.period = self.period or self.shortest
        if not 0 < self.shortest <= self.period <= self.longest or self.factor < 1:
            raise ConfigError(
                f"a quiet timer of {self.shortest} to {self.longest} s, now {self.period}, times {self.factor}: "
                "seconds over 0 are needed, the shortest first, and a factor of 1 or more"
            )

    def found_nothing(self) -> None:
        """There was nothing to be asked for: ask less often."""
        self.period = min(self.period * self.factor, self.longest)

    def found_something(self) -> None:
        """Something had not come by itself: ask more often."""
        self.period = max(self.period / self.factor, self.shortest)

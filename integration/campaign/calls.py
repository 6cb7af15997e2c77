"""Calls with a deadline: how each ended, and whether in time and as documented."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from integration.campaign.report import Outcome
from jsclient.errors import JetStreamError


class Calls:
    """What became of calls: `within` awaits one and notes its end."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.hung: list[str] = []
        self.undocumented: list[str] = []
        self.slowest = (0.0, "")

    async def within(self, limit: float, what: str, call: Awaitable[Any]) -> Any:
        """The result of a call, or its documented error. None if it hangs or raises another error."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit) as timeout:
                result = await call
            self.ended["result"] += 1
            return result
        except JetStreamError as error:
            self.ended[type(error).__name__] += 1
            return error
        except TimeoutError:
            # A TimeoutError of the call itself is not our limit, and no documented error either.
            if timeout.expired():
                self.hung.append(f"{what}: not done after {limit} s")
            else:
                self.undocumented.append(f"{what}: TimeoutError")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # A cancellation of the campaign must pass. A call that ends as cancelled by itself is a fault.
            if task is not None and task.cancelling():
                raise
            self.undocumented.append(f"{what}: CancelledError")
        except Exception as error:  # noqa: BLE001  that is what is looked for
            self.undocumented.append(f"{what}: {error!r:.200}")
        finally:
            self.slowest = max(self.slowest, (round(time.monotonic() - started, 2), what))
        return None

    def judge(self, outcome: Outcome) -> None:
        outcome.ran["calls"] = sum(self.ended.values()) + len(self.hung) + len(self.undocumented)
        outcome.ran["ended"] = dict(self.ended)
        outcome.ran["slowest"] = f"{self.slowest[1]}, {self.slowest[0]} s"
        outcome.none_of("every call ends within its deadline", self.hung)
        outcome.none_of("every error is documented", self.undocumented)

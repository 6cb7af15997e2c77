"""The frames that went over the wire, in order, with the questions that tests ask about them."""

from __future__ import annotations

import asyncio
import time

from integration.kit.network.match import Predicate, delivered, published
from integration.kit.network.wire import Frame


class Recording:
    """Frames of all connections and both directions, in the order they were seen."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._grown = asyncio.Event()
        self.frames: list[Frame] = []
        """What was seen, dropped frames included; `frame.fate` says what became of each."""

    def record(self, frame: Frame) -> None:
        if self._enabled:
            frame.number = len(self.frames)
            frame.time = frame.time or time.monotonic()
            self.frames.append(frame)
            self._grown.set()

    def find(self, predicate: Predicate, since: int = 0) -> list[Frame]:
        """All frames that fit. `since` is a frame number, such as an earlier `len(frames)`."""
        return [frame for frame in self.frames[since:] if predicate(frame)]

    def sent(self, pattern: str = ">", since: int = 0) -> list[Frame]:
        """Publishes of clients to subjects that match a NATS pattern."""
        return self.find(published(pattern), since)

    def received(self, pattern: str = ">", since: int = 0) -> list[Frame]:
        """Messages of the server on subjects that match a NATS pattern."""
        return self.find(delivered(pattern), since)

    def subs(self, since: int = 0) -> list[Frame]:
        return self.find(lambda frame: frame.op == "SUB", since)

    def unsubs(self, since: int = 0) -> list[Frame]:
        return self.find(lambda frame: frame.op == "UNSUB", since)

    async def wait_for(self, predicate: Predicate, timeout: float = 30.0, since: int = 0) -> Frame:
        """Return the first frame that fits, from those recorded already or to come.

        Raises:
            AssertionError: none within `timeout`. Shows the last frames.
        """
        if not self._enabled:
            raise RuntimeError("nothing is recorded here, so nothing can be waited for")
        checked = since
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._grown.clear()
                    actual = self.find(predicate, checked)
                    if actual:
                        return actual[0]
                    checked = max(since, len(self.frames))
                    await self._grown.wait()
        except TimeoutError:
            raise AssertionError(
                f"no such frame within {timeout} s; the last of {len(self.frames)}:\n{self.tell(10)}"
            ) from None

    def tell(self, last: int = 40) -> str:
        """The last frames as text, one per line, for failure messages."""
        return "\n".join(str(frame) for frame in self.frames[-last:])


def in_order(*frames: Frame) -> bool:
    """Whether the proxy saw these frames in this order."""
    numbers = [frame.number for frame in frames]
    return numbers == sorted(numbers)

"""Rules of a proxy: a predicate, and the treatment of the frames that fit it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from integration.kit.network.match import Predicate
from integration.kit.network.wire import Frame

if TYPE_CHECKING:
    from integration.kit.network.links import Link


class Rule:
    """A fault armed on a proxy. `frames` are those it has acted on, the proof that it did."""

    fate = "changed"

    def __init__(self, predicate: Predicate, count: int | None) -> None:
        self.predicate = predicate
        self.frames: list[Frame] = []
        self.active = True
        self.ends_link = False
        """Whether the connection ends where this rule acts."""
        self._remaining = count
        self._acted = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self.frames)

    def remove(self) -> None:
        """Let every further frame pass."""
        self.active = False

    async def wait(self, count: int = 1, timeout: float = 30.0) -> list[Frame]:
        """Return once the rule has acted `count` times.

        Raises:
            AssertionError: it has not, within `timeout`.
        """
        try:
            async with asyncio.timeout(timeout):
                while len(self.frames) < count:
                    self._acted.clear()
                    await self._acted.wait()
        except TimeoutError:
            raise AssertionError(
                f"the fault acted {len(self.frames)} times of {count} within {timeout} s"
            ) from None
        return self.frames

    def takes(self, frame: Frame) -> bool:
        """Whether the frame is this rule's. It counts as acted on then."""
        if not self.active or not self.predicate(frame):
            return False
        if self._remaining is not None:
            self._remaining -= 1
            self.active = self._remaining > 0
        frame.fate = self.fate
        self.frames.append(frame)
        self._acted.set()
        return True

    def act(self, frame: Frame, link: Link) -> bytes:
        """The frames to pass on in the frame's place."""
        raise NotImplementedError


class DropRule(Rule):
    fate = "dropped"

    def act(self, frame: Frame, link: Link) -> bytes:
        return b""


class RewriteRule(Rule):
    """Pass on whatever a function makes of the frame."""

    def __init__(self, predicate: Predicate, count: int | None, make: Callable[[Frame], bytes]) -> None:
        super().__init__(predicate, count)
        self._make = make

    def act(self, frame: Frame, link: Link) -> bytes:
        return self._make(frame)


class HoldRule(Rule):
    """Keep frames back. Later ones overtake them."""

    fate = "held"

    def __init__(self, predicate: Predicate, count: int | None) -> None:
        super().__init__(predicate, count)
        self._held: list[tuple[Frame, Link]] = []

    def act(self, frame: Frame, link: Link) -> bytes:
        self._held.append((frame, link))
        return b""

    def release(self) -> int:
        """Pass on the delayed frames, in order, and stop delaying. Return how many could still have been delayed."""
        self.remove()
        held, self._held = self._held, []
        return sum(link.pipes[frame.direction].write(frame.raw) for frame, link in held)


class CutRule(Rule):
    """Pass on the beginning of a frame, then end the connection."""

    fate = "cut"

    def __init__(self, predicate: Predicate, after_bytes: int | None) -> None:
        super().__init__(predicate, 1)
        self.ends_link = True
        self._after = after_bytes

    def act(self, frame: Frame, link: Link) -> bytes:
        body = len(frame.headers) + len(frame.payload)
        # The body is followed by CRLF, so it starts here.
        start = len(frame.raw) - 2 - body
        inside = body // 2 if self._after is None else self._after
        return frame.raw[: start + min(inside, body + 1)]

"""The streams of a source that reads several, and the planner of each."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ...errors import JetStreamError
from ..options.source import SourceOptions
from .listing import Listing
from .lookup import (
    Lookup,
    LossPolicy,
    NoSuchStreamError,
    WorkQueueError,
    check_filters,
    matches,
    matching_names,
)
from .offsets import LogOffset
from .planner import StreamPlanner

__all__ = ["Members"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_LOOK_AGAIN = 1.0  # seconds between looks for streams that match the pattern
_TRY_AGAIN = 60.0  # seconds between attempts to read a work queue


class Members:
    """The streams of a source, on the driver.

    Attributes:
        names: The names of the streams to read, in order.
        policy: Raises or logs the error for a stream that was deleted.
        is_held: Whether the streams are read up to their ends at one moment, for an AvailableNow query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.policy: LossPolicy = LossPolicy(options.fail_on_data_loss)
        self.is_held: bool = False
        self.names: tuple[str, ...] = options.streams
        self._options = options
        self._next = -math.inf  # monotonic seconds: time of the next look for streams that match the pattern
        self._listing = Listing(options)
        self._planners: dict[str, StreamPlanner] = {}
        self._checked = False  # whether the filters were
        self._left_out: set[str] = set()  # names that were logged
        self._refused: dict[str, float] = {}  # work queues, with the monotonic time of the next attempt

    def refresh(self) -> None:
        """Look for streams that match the pattern, if there is one and the last look is long enough ago."""
        if self._options.stream_pattern is None or self.is_held or time.monotonic() < self._next:
            return
        try:
            now = time.monotonic()
            found = matching_names(self._options)
            self.names = tuple(name for name in found if self._refused.get(name, now) <= now)
            self._listing.names = frozenset(self.names)
        except JetStreamError as error:  # if the first look has succeeded, the options are right
            if self._next == -math.inf:
                raise
            log.warning("option 'streamPattern': %s; asking again", error)
        else:
            if not self.names and self._next == -math.inf:
                log.warning(
                    "option 'streamPattern' is %r, which no stream matches yet", self._options.stream_pattern
                )
        self._next = time.monotonic() + _LOOK_AGAIN

    def planner(self, name: str) -> StreamPlanner:
        """The planner of a stream.

        Raises `NoSuchStreamError` if the stream does not exist, when it is asked for first.
        """
        if name not in self._planners:
            options = self._options.of(name)
            known = bool(self._planners)
            made = StreamPlanner(options, Lookup(options, narrows=True, known=known, listing=self._listing))
            made.facts  # noqa: B018  asks
            if not made.lookup.fits:
                level = logging.WARNING if self._options.stream_pattern is None else logging.INFO
                log.log(
                    level,
                    "option 'subjects': no filter can match a message of stream %r; it is not read",
                    name,
                )
            if self.is_held:
                made.hold_end()
            self._planners[name] = made
        return self._planners[name]

    def start(self) -> dict[str, LogOffset]:
        """The offsets of a new query. Raises `NoSuchStreamError` if a stream that is named does not exist."""
        self.refresh()
        found = {}
        for name in self.names:
            with contextlib.suppress(*self._may_be_gone):
                found[name] = self.planner(name).start()
        return found

    def joining(self, given: Mapping[str, LogOffset]) -> dict[str, LogOffset]:
        """The first offsets of the streams that are not in the given ones.

        Those that are named begin as the options say, those that match a pattern with their first message.
        """
        found = {}
        for name in self.names:
            if name in given:
                continue
            try:
                planner = self.planner(name)
                found[name] = planner.beginning() if self._options.stream_pattern else planner.start()
            except NoSuchStreamError as error:
                if not self._may_be_gone:
                    self.policy.accept(error)
                continue
            except WorkQueueError as error:
                self._leave_out(name, error)
                continue
            if not found[name].idle:
                log.info("stream %r is read from now on, after sequence %d", name, found[name].seq)
        return found

    def _leave_out(self, name: str, error: WorkQueueError) -> None:
        """Do not read a work queue that has begun to match the pattern, for a minute. Raises ``error`` without one."""
        if self._options.stream_pattern is None:
            raise error
        if name not in self._refused:
            log.warning("option 'streamPattern' matches %r, but it is not read: %s", name, error)
        self._refused[name] = time.monotonic() + _TRY_AGAIN
        self.names = tuple(one for one in self.names if one != name)
        self.forget(name)

    @property
    def _may_be_gone(self) -> tuple[type[NoSuchStreamError], ...]:
        """What is raised, and does not matter, for a stream that was deleted after it matched the pattern."""
        return () if self._options.stream_pattern is None else (NoSuchStreamError,)

    def reads(self, name: str, offset: LogOffset) -> bool:
        """Whether a stream of the checkpoint is to be read. If not, its offset stays in the checkpoint.

        Raises `NoSuchStreamError` for one that matches the pattern, and was deleted.
        """
        pattern = self._options.stream_pattern
        if name in self.names:
            return True
        if pattern is not None and matches(name, pattern):
            self.planner(name).lookup.facts()  # a list of names is not made at one moment
            return True
        if name not in self._left_out:
            self._left_out.add(name)
            log.warning(
                "stream %r of the checkpoint is not in the options: it is not read any further; its offset stays at "
                "sequence %d",
                name,
                offset.seq,
            )
        return False

    def forget(self, name: str) -> bool:
        """Forget a stream that was deleted, unless it is named: if it is created again, it is a new one."""
        if self._options.stream_pattern is None:
            return False
        self._planners.pop(name, None)
        return True

    def hold_ends(self) -> None:
        """Read the streams that exist now, no further than their ends."""
        self.refresh()
        self.is_held = True
        for name in self.names:
            # Raised when the offsets are asked for.
            with contextlib.suppress(NoSuchStreamError, WorkQueueError):
                self.planner(name)

    def created(self) -> dict[str, str]:
        """When each stream was created."""
        found = {}
        for name in self.names:
            with contextlib.suppress(*self._may_be_gone):
                found[name] = self.planner(name).facts.created
        return found

    def beginnings(self, offset: LogOffset) -> dict[str, LogOffset]:
        """The first messages of the streams that were created after the one of an offset: it may be one of them."""
        return {
            name: self.planner(name).beginning()
            for name, created in self.created().items()
            if _is_later(created, offset.created)
        }

    def check_filters(self) -> None:
        """Raise `ConfigError` for a filter that can match no message of any stream."""
        if self.names and not self._checked and self._planners.keys() >= {*self.names}:
            self._checked = True
            lookups = {name: one.lookup for name, one in self._planners.items()}
            check_filters(
                self._options, {name: one.subjects if one.fits else () for name, one in lookups.items()}
            )

    def report(self) -> dict[str, Any]:
        """What is known of each stream, see `StreamPlanner.report`, and its filters, if it has any."""
        found = {}
        for name, one in sorted(self._planners.items()):
            if (report := one.report()) is not None:
                filters = one.lookup.subjects
                found[name] = report | ({"subjects": [*filters]} if filters else {})
        return found


def _is_later(one: str, other: str) -> bool:
    """Whether one time of creation is after another; False if one of them is unknown."""
    try:
        return datetime.fromisoformat(one) > datetime.fromisoformat(other)
    except (ValueError, TypeError):
        return False

"""The streams of a source that reads several streams, and the planner of each."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any

from ...errors import JetStreamError
from ...tables.listing import StreamListing
from ...tables.lookup import (
    Lookup,
    NoSuchStreamError,
    WorkQueueError,
    check_filters,
    matches,
    matching_names,
)
from ...tables.loss_policy import LossPolicy
from ...tables.offsets import LogOffset
from ...tables.source_options import SourceOptions
from .pace import SharedPace
from .planner import StreamPlanner

__all__ = ["Members"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_LOOK_AGAIN = 1.0  # seconds between searches for streams that match the pattern
_TRY_AGAIN = 60.0  # seconds between attempts to read a work queue
_AT_ONCE = 16  # maximum number of streams to look up at the same time


class Members:
    """The streams that a source reads, with a planner for each. Used on the driver.

    Attributes:
        names: The names of the streams to read, in order.
        policy: The policy that raises or logs the error for a stream that was deleted.
        is_held: Whether the streams are read only up to fixed ends, for an AvailableNow query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.policy: LossPolicy = LossPolicy(options.fail_on_data_loss)
        self.is_held: bool = False
        self.names: tuple[str, ...] = options.streams
        self._options = options
        self._next = -math.inf  # monotonic time of the next search for streams that match the pattern
        self._listing = StreamListing(options)
        self._pace = SharedPace(options.poll_interval)
        self._planners: dict[str, StreamPlanner] = {}
        self._pending: dict[str, Future[StreamPlanner]] = {}  # planners that `look_up` has opened
        self._checked = False  # true once the filters have been checked
        self._logged: set[str] = set()  # names of streams that were logged as not read any further
        self._refused: dict[str, float] = {}  # work queues, with the monotonic time of the next attempt

    def refresh(self) -> None:
        """Search for streams that match the pattern, if a search is due.

        Does nothing without a pattern, or after `hold_ends`.
        """
        if self._options.stream_pattern is None or self.is_held or time.monotonic() < self._next:
            return
        try:
            now = time.monotonic()
            matching = matching_names(self._options)
            self._refused = {name: again for name, again in self._refused.items() if name in matching}
            self.names = tuple(name for name in matching if self._refused.get(name, now) <= now)
            self._listing.names = frozenset(self.names)
        except JetStreamError as error:
            # An error of the first search is probably caused by a wrong option, so raise it. Later errors are treated
            # as transient, because the options have worked before.
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
        """Return the planner of a stream.

        The first call for a stream raises `NoSuchStreamError` if the stream does not exist.
        """
        if name not in self._planners:
            pending = self._pending.pop(name, None)
            planner = self._open_planner(name) if pending is None else pending.result()
            if not planner.lookup.fits:
                level = logging.WARNING if self._options.stream_pattern is None else logging.INFO
                log.log(
                    level,
                    "option 'subjects': no filter can match a message of stream %r; it is not read",
                    name,
                )
            if self.is_held:
                planner.hold_end()
            self._planners[name] = planner
        return self._planners[name]

    def _open_planner(self, name: str) -> StreamPlanner:
        known = bool(self._planners)
        lookup = Lookup(self._options.for_stream(name), narrows=True, known=known, listing=self._listing)
        planner = StreamPlanner(self._options.for_stream(name), lookup, pace=self._pace)
        planner.facts  # noqa: B018  reading the property requests the facts
        return planner

    def look_up(self, names: Iterable[str]) -> None:
        """Look up the streams that have no planner yet, several at the same time.

        The very first stream is looked up alone, so that wrong options fail with a single request. Errors are not
        raised here, but by `planner`.
        """
        new = [name for name in names if name not in self._planners]
        if not self._planners and new:
            with contextlib.suppress(JetStreamError):
                self.planner(new.pop(0))
        if not self._planners or len(new) < 2:
            return

        def checked(name: str) -> StreamPlanner:
            planner = self._open_planner(name)
            with contextlib.suppress(JetStreamError):  # raised later, with the request for the offsets
                planner.check_facts(planner.facts)
            return planner

        with ThreadPoolExecutor(min(_AT_ONCE, len(new)), "jsclient-spark-look") as pool:
            self._pending = {name: pool.submit(checked, name) for name in new}

    def begin_round(self, *, look: bool) -> None:
        """Begin a round of checks. For ``look`` see `SharedPace.begin_round`."""
        if self._pace.begin_round(look=look):
            self._listing.begin_round()

    def end_round(self) -> None:
        """End the round that `begin_round` began."""
        self._pace.end_round(self._listing.pages)

    def refresh_facts(self, names: Sequence[str]) -> None:
        """Prepare for requests of the facts of these streams.

        New streams are looked up, and states that were listed earlier are dropped.
        """
        self.look_up(names)
        self._listing.begin_round(len(names))

    def start_offsets(self) -> dict[str, LogOffset]:
        """Return the offsets at which a new query starts.

        Raises `NoSuchStreamError` if a named stream does not exist.
        """
        self.refresh()
        self.look_up(self.names)
        offsets = {}
        for name in self.names:
            with contextlib.suppress(*self._ignored_errors):
                offsets[name] = self.planner(name).start_offset()
        return offsets

    def joining(self, known: Mapping[str, LogOffset]) -> dict[str, LogOffset]:
        """Return the first offsets of the streams that are not in ``known``.

        Named streams start where the options say. Streams that match a pattern start at their first message.
        """
        offsets = {}
        self.look_up(self.names)
        for name in self.names:
            if name in known:
                continue
            try:
                planner = self.planner(name)
                offsets[name] = (
                    planner.beginning() if self._options.stream_pattern else planner.start_offset()
                )
            except NoSuchStreamError as error:
                if not self._ignored_errors:
                    self.policy.accept(error)
                continue
            except WorkQueueError as error:
                # The query must not fail because a work queue was created whose name matches the pattern.
                self._skip_for_now(name, error)
                continue
            if not offsets[name].idle:
                log.info("stream %r is read from now on, after sequence %d", name, offsets[name].seq)
        return offsets

    def _skip_for_now(self, name: str, error: WorkQueueError) -> None:
        """Skip a work queue that matches the pattern for a minute. Raises ``error`` if there is no pattern."""
        if self._options.stream_pattern is None:
            raise error
        if name not in self._refused:
            log.warning("option 'streamPattern' matches %r, but it is not read: %s", name, error)
        self._refused[name] = time.monotonic() + _TRY_AGAIN
        self.names = tuple(other for other in self.names if other != name)
        self.forget_stream(name)

    @property
    def _ignored_errors(self) -> tuple[type[NoSuchStreamError], ...]:
        """The errors to ignore, because a stream that matched the pattern may be deleted at any time."""
        return () if self._options.stream_pattern is None else (NoSuchStreamError,)

    def reads(self, name: str, offset: LogOffset) -> bool:
        """Return whether a stream of the checkpoint is still read. If not, its offset stays in the checkpoint.

        Raises `NoSuchStreamError` for a stream that matches the pattern and was deleted.
        """
        pattern = self._options.stream_pattern
        if name in self.names:
            return True
        if pattern is not None and matches(name, pattern):
            # The list of names isn't a snapshot and may have missed the stream, so request the stream's facts. This
            # raises an error if the stream was deleted.
            self.planner(name).lookup.facts()
            return True
        if name not in self._logged:
            self._logged.add(name)
            log.warning(
                "stream %r of the checkpoint is not in the options: it is not read any further; its offset stays at "
                "sequence %d",
                name,
                offset.seq,
            )
        return False

    def forget_stream(self, name: str) -> bool:
        """Forget a deleted stream that matched the pattern. Returns False without a pattern.

        If the stream is created again, it counts as a new stream.
        """
        if self._options.stream_pattern is None:
            return False
        self._planners.pop(name, None)
        return True

    def hold_ends(self) -> None:
        """Limit the read to the streams that exist now and to their current ends."""
        self.refresh()
        self.is_held = True
        self.look_up(self.names)
        for name in self.names:
            # Ignore these errors here, because they are raised when the offsets are requested.
            with contextlib.suppress(NoSuchStreamError, WorkQueueError):
                self.planner(name)

    def created(self) -> dict[str, str]:
        """Return the creation time of each stream."""
        self.look_up(self.names)
        times = {}
        for name in self.names:
            with contextlib.suppress(*self._ignored_errors):
                times[name] = self.planner(name).facts.created
        return times

    def beginnings(self, offset: LogOffset) -> dict[str, LogOffset]:
        """Return the first offset of each stream that was created after the stream of ``offset``.

        If that stream was recreated, it is among them.
        """
        return {
            name: self.planner(name).beginning()
            for name, created in self.created().items()
            if _is_later(created, offset.created)
        }

    def check_filters(self) -> None:
        """Raise `ConfigError` for a filter that can match no message of any stream, or warn if there is a pattern.

        Checks once, as soon as all streams were looked up.
        """
        if self.names and not self._checked and self._planners.keys() >= {*self.names}:
            self._checked = True
            lookups = {name: planner.lookup for name, planner in self._planners.items()}
            check_filters(
                self._options, {name: one.subjects if one.fits else () for name, one in lookups.items()}
            )

    def report_streams(self) -> dict[str, Any]:
        """Return the result of `StreamPlanner.report_progress` for each stream, and its filters if it has any."""
        reports = {}
        for name, planner in sorted(self._planners.items()):
            if (report := planner.report_progress()) is not None:
                filters = planner.lookup.subjects
                reports[name] = report | ({"subjects": [*filters]} if filters else {})
        return reports


def _is_later(one: str, other: str) -> bool:
    """Return whether one creation time is later than another. Returns False if either is unknown."""
    try:
        return datetime.fromisoformat(one) > datetime.fromisoformat(other)
    except (ValueError, TypeError):
        return False

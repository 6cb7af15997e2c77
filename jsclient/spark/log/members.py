"""The streams of a source that reads several, and the planner of each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from ..options.source import SourceOptions
from .lookup import LossPolicy, NoSuchStreamError, check_filters
from .offsets import LogOffset
from .planner import StreamPlanner

__all__ = ["Members"]

log: logging.Logger = logging.getLogger("jsclient.spark")


class Members:
    """The streams of a source, on the driver.

    Attributes:
        policy: What to do about streams that were deleted.
        is_held: Whether the streams are read up to their ends at one moment, for an AvailableNow query.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.policy: LossPolicy = LossPolicy(options.fail_on_data_loss)
        self.is_held: bool = False
        self._options = options
        self._planners: dict[str, StreamPlanner | None] = {}  # None: no filter can match a message of the stream
        self._checked = False  # whether the filters were
        self._left_out: set[str] = set()  # names that were logged

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the streams to read, in order."""
        return self._options.streams

    def planner(self, name: str) -> StreamPlanner | None:
        """The planner of a stream; None if no filter can match a message of it.

        Raises `NoSuchStreamError` if the stream does not exist, when it is asked for first.
        """
        if name not in self._planners:
            options = self._options.of(name)
            made = StreamPlanner(options)
            fitting = made.lookup.fitting(made.facts)
            if options.subjects and not fitting:
                log.warning("option 'subjects': no filter can match a message of stream %r; it is not read", name)
                self._planners[name] = None
                return None
            made.lookup.subjects = fitting
            if self.is_held:
                made.hold_end()
            self._planners[name] = made
        return self._planners[name]

    def joining(self, given: Mapping[str, LogOffset]) -> dict[str, LogOffset]:
        """The first offsets of the streams that are not in the given ones."""
        found = {}
        for name in self.names:
            if name in given:
                continue
            try:
                planner = self.planner(name)
            except NoSuchStreamError as error:
                if not given:
                    raise
                self.policy.accept(error)
                continue
            if planner is not None:
                found[name] = planner.start()
        return found

    def reads(self, name: str, offset: LogOffset) -> bool:
        """Whether a stream of the checkpoint is to be read. If not, its offset stays in the checkpoint."""
        if name in self.names:
            return True
        if name not in self._left_out:
            self._left_out.add(name)
            log.warning(
                "stream %r of the checkpoint is not in option 'stream': it is not read any further; its offset stays "
                "at sequence %d",
                name,
                offset.seq,
            )
        return False

    def hold_ends(self) -> None:
        """Read the streams no further than their ends now."""
        self.is_held = True
        for name in self.names:
            with contextlib.suppress(NoSuchStreamError):  # raised when the offsets are asked for
                self.planner(name)

    def created(self) -> dict[str, str]:
        """When each stream was created."""
        planners = {name: self.planner(name) for name in self.names}
        return {name: planner.facts.created for name, planner in planners.items() if planner is not None}

    def check_filters(self) -> None:
        """Raise `ConfigError` for a filter that can match no message of any stream."""
        if not self._checked and self._planners.keys() >= {*self.names}:
            self._checked = True
            check_filters(self._options, {name: one.lookup.subjects for name, one in self._planners.items() if one})

    def report(self) -> dict[str, Any]:
        """What is known of each stream, see `StreamPlanner.report`."""
        reports = {name: one.report() for name, one in sorted(self._planners.items()) if one}
        return {name: report for name, report in reports.items() if report is not None}

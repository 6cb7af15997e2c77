"""The choice between the compiled readers of jsclient-speedups and the Python readers."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...protocol.connection.websocket import masked
from ...protocol.consumers.ack import Metadata, Runs, match_jsack, read_jsack
from ...protocol.wire.headers import find_header, ordinary_block

if TYPE_CHECKING:
    from ...protocol.publishing.burst_window import JoinAcks
    from ...protocol.publishing.slot_window import Slots
    from ...protocol.topics.record_codec import Split
    from ...protocol.wire.commands import BurstCommands, PublishCommand
    from ...protocol.wire.frames import Frame

__all__ = ["SERIES", "CallbackRun", "Choice", "Scan", "chosen"]

SERIES = "0.1"
"""The first two numbers of compatible versions of jsclient-speedups, which equal jsclient's."""

Scan = Callable[[bytes, int], "tuple[list[tuple[bytes, list[Frame]]], int]"]
"""Reads whole frames from an offset. Returns them in runs of one sid, and the offset after the last whole frame."""

_log = logging.getLogger("jsclient.connection")


class CallbackRun(Protocol):
    """Calls the callback of a push subscription with messages that wait. See `PushBuffer`."""

    @property
    def message(self) -> Any:
        """The message of the latest call."""

    @property
    def remaining(self) -> int:
        """The number of messages that the latest `call_run` was allowed to take and did not take."""

    def call_run(self, count: int) -> tuple[Any, ...] | None:
        """Call the callback with at most ``count`` messages. Stop early if a call has to wait."""


class Choice(NamedTuple):
    """The functions in use, compiled or in Python.

    ``scan`` is None if only the Python reader is used. ``text`` describes which functions are used, and why. A
    compiled ``find_header`` raises `ValueError` for a name that only the Python function can decide.
    """

    scan: Scan | None
    text: str
    find_header: Callable[[bytes, str], str | None] = find_header
    match_jsack: Callable[[bytes], object] = match_jsack
    read_jsack: Callable[[bytes], Metadata] = read_jsack
    ordinary_block: Callable[[dict[str, str | Sequence[str]]], bytes | None] = ordinary_block
    runs: Runs = Runs()
    split_stored: Split | None = None
    publish_command: PublishCommand | None = None
    burst_commands: BurstCommands | None = None
    join_acks: JoinAcks | None = None
    jsack_numbers: Callable[[list[Frame]], bytes] | None = None
    slots: Callable[..., Slots] | None = None
    callback_run: Callable[..., CallbackRun] | None = None
    masked: Callable[[bytes, bytes], bytes] = masked


@functools.cache
def chosen() -> Choice:
    """Return the choice for this process, which is made when its first connection is opened."""
    if os.environ.get("JSCLIENT_PURE", "") not in {"", "0"}:
        return Choice(None, "Python (JSCLIENT_PURE is set)")
    try:
        import jsclient_speedups
    except ModuleNotFoundError as error:
        if error.name == "jsclient_speedups":
            return Choice(None, "Python (jsclient-speedups is not installed)")
        return _unusable(f"cannot be imported: {error}")
    except ImportError as error:  # a binary for another platform, for example
        return _unusable(f"cannot be imported: {error}")
    version = str(jsclient_speedups.__version__)
    if version.split(".")[:2] != SERIES.split("."):
        return _unusable(f"{version} does not fit this jsclient, which needs {SERIES}.*")
    try:
        choice = Choice(
            jsclient_speedups.scan,
            f"compiled (jsclient-speedups {version})",
            jsclient_speedups.find_header,
            jsclient_speedups.is_ordinary_jsack,
            _reading_with(jsclient_speedups.split_jsack),
            jsclient_speedups.ordinary_block,
            Runs(jsclient_speedups.last_of_whole_run, jsclient_speedups.total_size),
            jsclient_speedups.split_stored,
            jsclient_speedups.publish_command,
            jsclient_speedups.burst_commands,
            jsclient_speedups.join_acks,
            jsclient_speedups.jsack_numbers,
            jsclient_speedups.Slots,
            jsclient_speedups.CallbackRun,
            jsclient_speedups.masked,
        )
    except AttributeError as error:  # an early build of this version
        return _unusable(f"{version} is incomplete: {error}")
    _log.info("messages are read with jsclient-speedups %s", version)
    return choice


def _reading_with(split: Callable[[bytes], tuple[Any, ...] | None]) -> Callable[[bytes], Metadata]:
    def read(reply: bytes) -> Metadata:
        parts = split(reply)
        return read_jsack(reply) if parts is None else Metadata(*parts)

    return read


def _unusable(why: str) -> Choice:
    _log.warning(
        'jsclient-speedups %s; messages are read with Python: pip install --upgrade "jsclient[speed]"', why
    )
    return Choice(None, f"Python (jsclient-speedups {why})")

"""Logs a warning if an application ends without closing a publisher, because messages may be lost unnoticed."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Collection
from typing import Any, Protocol
from weakref import WeakSet

from ..errors import counted
from ..protocol.publishing.in_flight import InFlight
from .unretrieved import UnretrievedFailures

__all__ = ["describe", "publishers", "say"]

_log = logging.getLogger("jsclient.publisher")
# The ID of the process that has imported this module. A forked process has a different ID, so it doesn't warn about the
# publishers of its parent. The ID is removed at exit, so that each publisher is reported only once.
_processes = {os.getpid()}


class _Publisher(Protocol):
    def describe_rest(self) -> str: ...


publishers: WeakSet[_Publisher] = WeakSet()
"""The publishers of this process that still exist."""


def describe(in_flight: Collection[InFlight[Any]], failures: UnretrievedFailures) -> str:
    """Describe the messages in flight and the failures that were not retrieved. Return "" if there are none."""
    parts = []
    if waiting := len(in_flight):
        message = counted(waiting, "message waits for its ack", "messages wait for their acks")
        parts.append(f"{message}, the first on {next(iter(in_flight)).to!r}")
    if first := failures.first:
        failed = counted(len(failures), "publish failed", "publishes failed")
        parts.append(f"{failed}, the first on {first.subject!r}: {first.error}")
    if not parts:
        return ""
    return (
        f"a publisher was not closed: {'; '.join(parts)}. Publish in 'async with "
        "js.publisher() as publisher', which waits for the acks, or await publisher.flush() before the end"
    )


def say(text: str) -> None:
    """Log a warning, unless ``text`` is empty or this process is a fork of the publishing process."""
    if text and os.getpid() in _processes:
        _log.warning("%s", text)


def _warn_at_exit() -> None:
    for publisher in list(publishers):
        say(publisher.describe_rest())
    _processes.clear()


atexit.register(_warn_at_exit)  # Python may not call __del__ of publishers that still exist at exit

"""The processes of a session. Spark's scripts, JVMs and Python workers stay in the session of their first process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def in_session(leader: int) -> Iterator[int]:
    """The process ids of a session, given by the process that leads it."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                if os.getsid(int(path.name)) == leader:
                    yield int(path.name)


def kill_session(leader: int) -> None:
    """SIGKILL to all of them."""
    for pid in in_session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def executors_in_session(leader: int) -> list[int]:
    """The process ids of the JVMs of executors."""
    results = []
    for pid in in_session(leader):
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                results.append(pid)
    return results


def with_children(pid: int) -> list[int]:
    """A process, and all that it started."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):
                # The name of the command, in brackets, may contain anything.
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    actual = [pid]
    for one in actual:
        actual += [child for child, parent in parents.items() if parent == one]
    return actual

"""Wait until SIGSTOP has taken effect: kill() returns before the last thread of the process has stopped."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["wait_until_frozen"]

_LIMIT = 1.0  # seconds; a thread that waits for the disk stops later


def wait_until_frozen(pid: int) -> None:
    """Block until every thread of ``pid`` is stopped, usually well below a millisecond."""
    end = time.monotonic() + _LIMIT
    while not _is_frozen(pid) and time.monotonic() < end:
        time.sleep(0.0002)


def _is_frozen(pid: int) -> bool:
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    # The state follows the name of the program, which is in parentheses. Without /proc there is nothing to see.
    return all(task.rpartition(")")[2].split()[0] in "Tt" for task in tasks)

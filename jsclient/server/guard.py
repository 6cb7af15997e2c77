"""Run a command, and end it when the process that started it is gone.

`launch` starts this file as a script, with a pipe as its standard input::

    guard.py <pid of the parent process> <directory> <command> [<argument> ...]

The command is ended (SIGTERM, five seconds later SIGKILL) when the parent process writes a byte into the pipe,
or has ended for any reason. In the second case the directory is removed too.
The exit code is the command's, or 128 + the number of the signal that ended it.

The guard is a separate process because Linux's parent-death signal follows the *thread* that forked, which in an
asyncio program may end long before the process does. Other systems have no such signal. The guard has only one
thread when it forks.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def launch(command: list[str], directory: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a guard that runs ``command`` for this process, both writing to ``log``."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(directory), *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        bufsize=0,
        start_new_session=True,  # Ctrl-C must reach only the program, which ends its processes in order
    )


def ask_to_end(guard: subprocess.Popen[bytes]) -> None:
    """Make a guard end its command and itself. Does not wait. Calling it again does nothing."""
    if guard.stdin is not None and not guard.stdin.closed:
        with contextlib.suppress(BrokenPipeError):  # the guard has ended already
            guard.stdin.write(b".")
        guard.stdin.close()


def main(parent: int, directory: str, command: list[str]) -> int:
    """Run ``command`` to its end, or end it when ``parent`` requests this or is gone. Return the exit code."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_guard(),  # noqa: PLW1509 - safe: there is one thread so far
    )
    # A signal to the whole group is meant for the command too, so the guard stays until the command has ended. The
    # handlers are set after the fork, and are not SIG_IGN, so that the command does not inherit them.
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    abandoned = threading.Event()
    threading.Thread(target=_end_when_unwanted, args=(child, parent, abandoned), daemon=True).start()
    code = child.wait()
    if abandoned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_when_unwanted(child: subprocess.Popen[bytes], parent: int, abandoned: threading.Event) -> None:
    if not _is_end_requested(parent):
        abandoned.set()
    child.terminate()
    child.send_signal(signal.SIGCONT)  # a stopped process does not handle SIGTERM
    time.sleep(_GRACE)
    child.kill()


def _is_end_requested(parent: int) -> bool:
    """Wait until ``parent`` requests the end (True) or is gone (False)."""
    # Either sign alone may be late: a forked child of the parent (multiprocessing) keeps the pipe open, and a dying
    # parent closes the pipe before its children get a new parent.
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0]:
            return bool(os.read(0, 1))
    return False


def _die_with_guard() -> Callable[[], object] | None:
    """Return a function that makes the child die with the guard (on Linux), in case the guard is killed."""
    if sys.platform != "linux":
        return None
    import ctypes  # imported here, because it is slow to load

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))

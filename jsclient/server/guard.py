"""Run a command, and end it when the process that started it is gone.

`launch` starts this file as a script, with a pipe as its standard input::

    guard.py <pid of the parent process> <directory> <command> [<argument> ...]

The guard ends the command when the parent process writes a byte to the pipe, or when the parent process has ended for
any reason. It sends SIGTERM, and SIGKILL five seconds later. If the parent process has ended, the guard also removes
the directory. The exit code of the guard is the exit code of the command, or 128 plus the number of the signal that
ended the command.

The guard is a separate process, because Linux sends the parent-death signal when the *thread* that forked ends. In an
asyncio application, that thread may end long before the process does. Other systems have no such signal. The guard
itself has only one thread when it forks.
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
    """Start a guard that runs ``command`` on behalf of this process. The output of both goes to ``log``."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(directory), *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        bufsize=0,
        start_new_session=True,  # Ctrl-C must reach only the application, which ends its processes in order
    )


def ask_to_end(guard: subprocess.Popen[bytes]) -> None:
    """Ask a guard to end its command and itself, without waiting for it. Calling this function again does nothing."""
    if guard.stdin is not None and not guard.stdin.closed:
        with contextlib.suppress(BrokenPipeError):  # the guard has ended already
            guard.stdin.write(b".")
        guard.stdin.close()


def main(parent: int, directory: str, command: list[str]) -> int:
    """Run ``command`` until it ends, or until ``parent`` asks for its end or is gone. Return the exit code."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_guard(),  # noqa: PLW1509 - safe, because there is only one thread so far
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
    """Wait until ``parent`` requests the end (return True) or is gone (return False)."""
    # Check both the pipe and the parent's pid, because neither is sufficient. A forked child of the parent
    # (multiprocessing) keeps the pipe open, and a dying parent closes the pipe before its children get a new parent.
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0]:
            return bool(os.read(0, 1))
    return False


def _die_with_guard() -> Callable[[], object] | None:
    """Return a function that makes Linux kill the child if the guard is killed, or None on other systems."""
    if sys.platform != "linux":
        return None
    import ctypes  # imported here, because it is slow to load

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))

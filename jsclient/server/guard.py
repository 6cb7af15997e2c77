"""Run one command, and end it when the process that asked for it is gone.

`launch` starts this file as a script, with a pipe as its standard input::

    guard.py <pid of the asking process> <directory> <command> [<argument> ...]

The command is ended (SIGTERM, five seconds later SIGKILL) when the asking process writes a byte into the pipe,
or is gone, however it went. In the second case the directory is removed too.
The exit code is the command's, or 128 + the number of the signal that ended it.

Why a process of its own: Linux's parent-death signal follows the *thread* that forked, which in an asyncio
program may end long before the process does, and other systems have no such signal. The guard has one job, and
one thread when it forks.
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
        start_new_session=True,  # Ctrl-C is for the program, which ends what it started in its own order
    )


def ask_to_end(guard: subprocess.Popen[bytes]) -> None:
    """Make a guard end its command, and then itself. The caller waits for that. Harmless if called again."""
    if guard.stdin is not None and not guard.stdin.closed:
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            guard.stdin.write(b".")
        guard.stdin.close()


def main(parent: int, directory: str, command: list[str]) -> int:
    """Run ``command`` to its end, which comes early when ``parent`` wants it or is gone."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_guard(),  # noqa: PLW1509 - safe: there is one thread so far
    )
    # Who signals the whole group means the command too: the guard stays until that has ended. Handlers, not
    # SIG_IGN, and set after the fork, so that the command does not inherit them.
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    abandoned = threading.Event()
    threading.Thread(target=_end_when_unwanted, args=(child, parent, abandoned), daemon=True).start()
    code = child.wait()
    if abandoned.is_set():
        shutil.rmtree(directory, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_when_unwanted(child: subprocess.Popen[bytes], parent: int, abandoned: threading.Event) -> None:
    if not _asked_to_end(parent):
        abandoned.set()
    child.terminate()
    child.send_signal(signal.SIGCONT)  # a stopped process takes no SIGTERM
    time.sleep(_GRACE)
    child.kill()


def _asked_to_end(parent: int) -> bool:
    """Wait until ``parent`` wants the end, which gives True, or is gone."""
    # Either sign alone may be late: a forked child of the parent (multiprocessing) keeps the pipe open, and a
    # dying parent closes the pipe before it gives its children away.
    while os.getppid() == parent:
        if select.select([0], [], [], 1.0)[0]:
            return bool(os.read(0, 1))
    return False


def _die_with_guard() -> Callable[[], object] | None:
    """On Linux, what makes the child die with the guard, should somebody kill the guard."""
    if sys.platform != "linux":
        return None
    import ctypes  # here, as nothing else needs it and it is slow to load

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))

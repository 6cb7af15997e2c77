"""Run one command, and end it when the process that asked for it is gone.

A script, started by `jsclient.server` with a pipe as standard input::

    guard.py <pid of the asking process> <directory> <command> [<argument> ...]

The command is ended (SIGTERM, five seconds later SIGKILL) when the pipe is closed or the asking process has
died, however it died. In the second case the directory is removed too, as nobody else is left to do it. The
exit code is the command's, or 128 + the number of the signal that ended it.

Why a process of its own: Linux's parent-death signal follows the *thread* that forked, which in an asyncio
program may end long before the process does, and other systems have no such signal. The guard has one job, and
one thread when it forks.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


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
    threading.Thread(target=_end_when_unwanted, args=(child, parent), daemon=True).start()
    code = child.wait()
    if os.getppid() != parent:
        shutil.rmtree(directory, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_when_unwanted(child: subprocess.Popen[bytes], parent: int) -> None:
    # The pipe alone does not tell: a forked child of the parent (multiprocessing) keeps its other end open.
    while os.getppid() == parent and not select.select([0], [], [], 1.0)[0]:
        pass
    child.terminate()
    child.send_signal(signal.SIGCONT)  # a stopped process takes no SIGTERM
    time.sleep(_GRACE)
    child.kill()


def _die_with_guard() -> Callable[[], object] | None:
    """On Linux, what makes the child die with the guard, should somebody kill the guard."""
    if sys.platform != "linux":
        return None
    import ctypes  # here, as nothing else needs it and it is slow to load

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))

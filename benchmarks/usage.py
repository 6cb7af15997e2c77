"""The CPU and memory used by processes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

__all__ = ["cpu", "cpu_of", "memory"]

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu() -> float:
    """Return the seconds of user and system time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of(pid: int) -> float:
    """Return the seconds of user and system time that another process has used, or 0 without ``/proc``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory() -> tuple[float, float]:
    """Return the resident MB of this process: the current value and the peak."""
    try:
        # Not ru_maxrss: on Linux, a child that was started with vfork begins with its parent's value.
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return peak, peak
    fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return (int(fields["VmRSS"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024)

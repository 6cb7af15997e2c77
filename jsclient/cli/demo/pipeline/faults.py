"""Faults of streaming queries: the reason in one line, and whether another start can succeed. Pure."""

from __future__ import annotations

import re

__all__ = ["is_transient", "reason"]

_ERROR = re.compile(r"^[\s:]*(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)): (\S.*)$", re.MULTILINE)
# Faults of Spark itself when queries start at the same time: in the maps that they share, or because a Python process
# took longer than ten seconds to start on a busy machine.
_TRANSIENT = (
    "java.io.OptionalDataException",
    "java.io.StreamCorruptedException",
    "java.util.ConcurrentModificationException",
    "Python worker failed to connect back",
)


def is_transient(error: BaseException) -> bool:
    """Whether the query can succeed when it is started again: Spark failed, and not the source or the sink."""
    text = str(error)
    return not _errors(text, "jsclient.") and any(fault in text for fault in _TRANSIENT)


def reason(error: BaseException) -> str:
    """The cause in one line: the innermost error of jsclient in Spark's text, else the outermost of Java, else its
    first line."""
    text = str(error)
    ours, theirs = _errors(text, "jsclient."), _errors(text, "java.", "org.apache.spark.")
    if ours or theirs:
        return ours[-1] if ours else theirs[0]
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _errors(text: str, *packages: str) -> list[str]:
    """The errors of these packages in a text, outermost first, each as ``Name: message``."""
    found = _ERROR.findall(text)
    return [
        f"{name.rpartition('.')[2]}: {message.strip()}"
        for name, message in found
        if name.startswith(packages)
    ]

"""Reads long runs of acks with a regular expression, which is faster in Python than reading them one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...protocol.wire.frames import Frame

__all__ = ["LONG_RUN", "PatternReader"]

LONG_RUN = 128  # number of frames in a run that make a pattern worth its compilation
_LONGEST = 1024  # maximum number of bytes of a payload


class PatternReader:
    """Reads frames of one subscription that have different subjects, no headers and no reply, such as acks.

    Each subscription needs a pattern with its own sid. Compiling a pattern takes as long as reading hundreds of frames,
    so it is compiled after the second long run.
    """

    CAPACITY = 16  # maximum number of subscriptions

    def __init__(self, lengths: Mapping[bytes, int]) -> None:
        self._lengths = lengths
        # By sid, the pattern, or None after the first long run.
        self._patterns: dict[bytes, re.Pattern[bytes] | None] = {}

    def count_run(self, sid: bytes) -> None:
        """Record that a run of at least `LONG_RUN` frames was read. Compile the pattern at the second one."""
        patterns = self._patterns
        if sid not in patterns:
            if len(patterns) == self.CAPACITY:
                patterns.clear()
            patterns[sid] = None
        elif patterns[sid] is None:
            # The last alternative matches all that follows the frames, so that no gap between matches is skipped.
            text = rb"MSG ([^ \r]+) %b (\d{1,8})\r\n([^\r]{0,%d})\r\n|(.).*"
            patterns[sid] = re.compile(text % (re.escape(sid), _LONGEST), re.DOTALL)

    def read_frames(self, data: bytes, pos: int, sid: bytes, batch: list[Frame]) -> int:
        """Add the frames from ``pos`` on to ``batch``. Return their size in bytes, or 0 if no pattern exists yet.

        Reading stops before a payload that contains CR or does not have the announced length.
        """
        pattern = self._patterns.get(sid)
        if pattern is None or not data.startswith(b"\r\n", pos - 2):
            return 0
        matches = pattern.findall(data, pos)
        if matches and matches[-1][3]:
            matches.pop()
        lengths = self._lengths
        frames = [
            (to, b"", b"", payload) for to, text, payload, _ in matches if lengths[text] == len(payload)
        ]
        if len(frames) < len(matches):
            stop = [lengths[text] == len(payload) for _, text, payload, _ in matches].index(False)
            del frames[stop:], matches[stop:]
        batch += frames
        same = len(b"MSG   \r\n\r\n") + len(sid)
        return same * len(matches) + sum(
            [len(to) + len(text) + len(payload) for to, text, payload, _ in matches]
        )

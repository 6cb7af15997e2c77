"""What the compiled `join_acks` does, in Python: for tests of windows without it, and to compare it with."""

from __future__ import annotations

import re

TEXT = rb'"[ -!#-\[\]-~]+", ?'
ORDINARY = re.compile(
    rb'\{"stream":' + TEXT + rb'(?:"domain":' + TEXT + rb')?"seq":[1-9][0-9]{0,18}(?:,"duplicate": true)?\}'
)


def join_acks(frames, start, stop, replies=None, first=0) -> bytes:
    if not 0 <= start < stop <= len(frames):
        return b""
    answers = frames[start:stop]
    if replies is not None and [frame[0] for frame in answers] != replies[first : first + stop - start]:
        return b""
    texts = [frame[3] for frame in answers]
    return b"[%b]" % b",".join(texts) if all(map(ORDINARY.fullmatch, texts)) else b""

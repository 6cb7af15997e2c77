"""Shorter patience of the library's retries, for tests that wait for their end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jsclient._runtime import retry


def impatient(monkeypatch: pytest.MonkeyPatch, missing_stream: float) -> None:
    """Let readers treat a missing stream as deleted after this many seconds."""
    monkeypatch.setattr(
        retry.Retry.__init__, "__defaults__", (replace(retry.READING, missing_stream=missing_stream),)
    )

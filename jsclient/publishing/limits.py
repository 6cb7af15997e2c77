"""Defaults of the publishers: how much may be in flight, how often a fast ingest asks for an ack."""

from __future__ import annotations

from typing import Final

__all__ = ["ACK_EVERY", "MAX_BYTES", "MAX_IN_FLIGHT"]

MAX_IN_FLIGHT: Final = 4000
"""Publishes in flight."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of headers and payloads in flight."""

ACK_EVERY: Final = 200
"""Messages for which a fast ingest asks for one ack."""

"""Finds out why the readers of a stream receive no records, from its info and the errors of the readers.

The readers of topics use it when no record arrives (`protocol.consumers.stall`). If the stream may simply have no new
record, no cause is reported.

Source: nats-server server/stream.go (StreamInfo, StreamSourceInfo), ADR-31.
"""

from __future__ import annotations

from ...errors import ApiError, JetStreamError, PermissionDeniedError, StreamNotFoundError
from ..consumers.diagnosis import cannot_look, copies, no_leader
from ..consumers.finding import Finding
from ..models.stream import StreamInfo

__all__ = ["cannot_look_at_stream", "diagnose_stream"]

_LEADERLESS = 503  # the code with which the servers of a cluster answer while there is no leader


def diagnose_stream(
    info: StreamInfo, *, after: float, failure: JetStreamError | None = None
) -> list[Finding]:
    """Return the reasons why readers receive no records, the likeliest cause first.

    Args:
        info: The state of the stream.
        after: If no record arrives for this many seconds, the reader checks the stream.
        failure: Why the reader can't read the history, if all its attempts have failed. Otherwise None.
    """
    findings = [*no_leader("stream", info.cluster), *copies(info, after)]
    if failure is not None:
        findings.append(
            Finding(
                code="no_answer",
                level="error",
                what="the stream's records cannot be read",
                evidence=f"{type(failure).__name__}: {failure}",
                fix="look at the servers of the stream; the reader tries again by itself",
            )
        )
    return findings


def cannot_look_at_stream(error: JetStreamError, stream: str) -> Finding:
    """Return the finding for an error of a request for the stream's info."""
    if isinstance(error, StreamNotFoundError | PermissionDeniedError):
        return cannot_look(error, stream, "")
    leaderless = isinstance(error, ApiError) and error.code == _LEADERLESS
    return Finding(
        code="no_leader" if leaderless else "no_answer",
        level="error",
        what="the stream has no leader" if leaderless else "the server does not say how the stream is",
        evidence=f"{type(error).__name__}: {error}",
        fix="start the servers that are away: most replicas of the stream, and most servers of the cluster, must be "
        "up",
    )

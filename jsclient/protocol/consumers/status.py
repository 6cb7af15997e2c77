"""The meanings of inline statuses, in one table.

Push, pull and ordered readers all use `classify`, and none of them reads a description itself. The rows follow
nats-server's consumer.go, stream.go and client.go (2.15). Descriptions are compared by their start, ignoring case,
and the first matching row applies.

Source: ADR-15 §Automatic Status Management, ADR-37 §Status handling, ADR-42.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from ...errors import (
    BadRequestError,
    ConsumerDeletedError,
    LeadershipChangeError,
    NoRespondersError,
    PullLimitError,
    PushBasedError,
    StatusError,
)

__all__ = ["ORDINARY", "Ending", "Meaning", "Verdict", "classify", "is_idle_heartbeat"]


class Meaning(Enum):
    """The reaction that a status requires."""

    HEARTBEAT = auto()  # the server is alive
    FLOW_CONTROL = auto()  # to be answered when the reader reaches it in the queue
    ENDED = auto()  # the pull request has ended normally, so send the next request
    RETRY = auto()  # the server refused the request for now, so report that and retry after a pause
    REFUSED = auto()  # the server would refuse every repetition of the request, so report that and stop
    GONE = auto()  # no pull consumer of this name exists any more, so report that and stop


class Ending(Enum):
    """The reason why a fetch ended. It is the attribute ``ending`` of a `Batch` or a `DirectBatch`.

    These endings are normal, and the messages can simply be handled:

    * ``FULL``: All requested messages have arrived.
    * ``MAX_BYTES``: The next message would have exceeded ``max_bytes``.
    * ``NO_MESSAGES``: With ``no_wait``, no more messages were available immediately.
    * ``EXPIRED``: The time that was allowed for the fetch is over.

    All other endings come with an error:

    * ``REFUSED``: The server refused the request.
    * ``MOVED``: The consumer moved to another server.
    * ``UNPINNED``: The client is no longer pinned (see `Unpinned`).
    * ``NO_RESPONDERS``: No server currently answers for the consumer.
    * ``DELETED``: The consumer was deleted.
    * ``SILENT``: Neither messages nor heartbeats arrived.
    * ``DISCONNECTED``: The connection was lost.
    * ``CLOSED``: The reader or the connection was closed.
    """

    FULL = "full"
    MAX_BYTES = "max_bytes"
    NO_MESSAGES = "no_messages"
    EXPIRED = "expired"
    REFUSED = "refused"
    MOVED = "moved"
    UNPINNED = "unpinned"
    NO_RESPONDERS = "no_responders"
    DELETED = "deleted"
    SILENT = "silent"
    DISCONNECTED = "disconnected"
    CLOSED = "closed"


ORDINARY: Final = frozenset({Ending.FULL, Ending.MAX_BYTES, Ending.NO_MESSAGES, Ending.EXPIRED})
"""Endings without an error, after which the server sends no more messages for the request."""


class Verdict(NamedTuple):
    """The meaning of a status, how it ends a pull request, and its error, or None if it is not an error."""

    meaning: Meaning
    ending: Ending | None
    error: type[StatusError] | None
    retryable: bool = False


_M, _E = Meaning, Ending
_UNKNOWN: Final = Verdict(_M.REFUSED, _E.REFUSED, StatusError)

_TABLE: Final = (
    (100, "flowcontrol", Verdict(_M.FLOW_CONTROL, None, None)),
    (100, "", Verdict(_M.HEARTBEAT, None, None)),
    (404, "", Verdict(_M.ENDED, _E.NO_MESSAGES, None)),
    (408, "", Verdict(_M.ENDED, _E.EXPIRED, None)),
    (409, "batch completed", Verdict(_M.ENDED, _E.FULL, None)),
    (409, "message size exceeds maxbytes", Verdict(_M.ENDED, _E.MAX_BYTES, None)),
    (409, "consumer deleted", Verdict(_M.GONE, _E.DELETED, ConsumerDeletedError)),
    (409, "consumer is push based", Verdict(_M.GONE, _E.REFUSED, PushBasedError)),
    (409, "exceeded maxwaiting", Verdict(_M.RETRY, _E.REFUSED, PullLimitError, retryable=True)),
    (409, "exceeded max", Verdict(_M.REFUSED, _E.REFUSED, PullLimitError)),
    (409, "leadership change", Verdict(_M.RETRY, _E.MOVED, LeadershipChangeError, retryable=True)),
    (409, "server shutdown", Verdict(_M.RETRY, _E.MOVED, LeadershipChangeError, retryable=True)),
    (409, "", Verdict(_M.RETRY, _E.REFUSED, StatusError, retryable=True)),
    (400, "bad request - not a pinned client", Verdict(_M.REFUSED, _E.UNPINNED, BadRequestError)),
    (400, "", Verdict(_M.REFUSED, _E.REFUSED, BadRequestError)),
    (412, "", Verdict(_M.REFUSED, _E.REFUSED, BadRequestError)),
    (423, "", Verdict(_M.RETRY, _E.UNPINNED, StatusError, retryable=True)),
    (429, "", Verdict(_M.RETRY, _E.REFUSED, StatusError, retryable=True)),
    (503, "", Verdict(_M.RETRY, _E.NO_RESPONDERS, NoRespondersError, retryable=True)),
)


def classify(code: int, description: str) -> Verdict:
    """Return the meaning of a status. An unknown status counts as a refusal, which is reported and never retried."""
    lowered = description.strip().lower()
    # The server writes "FlowControl Request". Accept the spelling with a space too, because it has been seen as well.
    if code == 100 and lowered.startswith("flow control"):
        lowered = "flowcontrol"
    for row_code, start, verdict in _TABLE:
        if code == row_code and lowered.startswith(start):
            return verdict
    return _UNKNOWN


def is_idle_heartbeat(description: str) -> bool:
    """Return whether this is the description of a known heartbeat. Any other status 100 counts as a heartbeat too."""
    return description.strip().lower().startswith("idle heartbeat")

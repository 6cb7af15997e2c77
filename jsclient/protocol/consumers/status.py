"""Inline statuses: one table for what each of them means.

Push, pull and ordered readers all ask `classify`; none of them looks at a description again. The rows follow
nats-server's consumer.go, stream.go and client.go (2.15). Descriptions are compared without case, by their start;
the first row that fits counts. Source: ADR-15 §Automatic Status Management, ADR-37 §Status handling, ADR-42.
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

__all__ = ["ORDINARY", "Ending", "Meaning", "Verdict", "classify"]


class Meaning(Enum):
    """What a status asks of the reader."""

    HEARTBEAT = auto()  # a sign of life
    FLOW_CONTROL = auto()  # to be answered when its place in the queue is reached
    ENDED = auto()  # the pull request is over in the ordinary way: ask again
    RETRY = auto()  # not now: tell the user, ask again after a pause
    REFUSED = auto()  # not as asked: tell the user; the same request would be refused again
    GONE = auto()  # asking again cannot help


class Ending(Enum):
    """Why a fetch ended. Those in `ORDINARY` carry no error."""

    FULL = "full"  # as many messages as asked for
    MAX_BYTES = "max_bytes"  # the next message would have passed max_bytes
    NO_MESSAGES = "no_messages"  # no_wait, and nothing more is there
    EXPIRED = "expired"  # the time was over
    REFUSED = "refused"  # the server did not take the request as it was
    MOVED = "moved"  # the consumer's leader changed or its server shuts down
    UNPINNED = "unpinned"  # the request showed a pin that holds no longer
    NO_RESPONDERS = "no_responders"  # nobody answers for this consumer now
    DELETED = "deleted"  # the consumer is gone
    SILENT = "silent"  # no message and no heartbeat
    DISCONNECTED = "disconnected"  # the connection was lost
    CLOSED = "closed"  # the reader or the connection was closed


ORDINARY: Final = frozenset({Ending.FULL, Ending.MAX_BYTES, Ending.NO_MESSAGES, Ending.EXPIRED})
"""Endings that are no error and after which the server sends nothing more for the request."""


class Verdict(NamedTuple):
    """What a status means, how it ends a pull, and the error it stands for (None where it is no error)."""

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
    """What a status means. One that is not in the table is refused: never asked again, always told."""
    lowered = description.strip().lower()
    # "FlowControl Request" is the server's spelling; others have been seen with a blank.
    if code == 100 and lowered.startswith("flow control"):
        lowered = "flowcontrol"
    for row_code, start, verdict in _TABLE:
        if code == row_code and lowered.startswith(start):
            return verdict
    return _UNKNOWN

"""The JetStream API as a proxy saw it: which requests a client made, in order, and with which bodies."""

from __future__ import annotations

import json
from collections.abc import Callable

from integration.kit.judge.oracle import Json
from integration.kit.network.recording import Recording
from integration.kit.network.wire import Frame

PREFIX = "$JS.API."


def api_requests(tap: Recording, pattern: str = ">", since: int = 0) -> list[str]:
    """Subjects of the API requests, without their prefix, in the order in which they were sent."""
    return [(frame.subject or "").removeprefix(PREFIX) for frame in tap.sent(f"{PREFIX}{pattern}", since)]


def body(frame: Frame) -> Json:
    """The JSON object that a frame carries."""
    answer: Json = json.loads(frame.payload)
    return answer


def creates(tap: Recording, since: int = 0) -> list[Frame]:
    """The requests that create a consumer, by whichever subject."""
    return [
        *tap.sent(f"{PREFIX}CONSUMER.CREATE.>", since),
        *tap.sent(f"{PREFIX}CONSUMER.DURABLE.CREATE.>", since),
    ]


def traffic(tap: Recording, since: int = 0) -> list[str]:
    """The data that clients sent, without greetings, PINGs and PONGs, as text. Empty if no client sent a command."""
    quiet = {"CONNECT", "PING", "PONG"}
    return [str(f) for f in tap.frames[since:] if f.direction == "to_server" and f.op not in quiet]


def delivers(tap: Recording, since: int = 0) -> list[Frame]:
    """SUBs of deliver subjects, without the inbox that takes the answers to requests."""
    return [frame for frame in tap.subs(since) if not (frame.subject or "").endswith(".*")]


def answers_to(tap: Recording, pattern: str) -> Callable[[Frame], bool]:
    """A predicate for the server's answers to API requests that match, for the proxy's rules."""
    reply_subjects: set[str | None] = set()

    def fits(frame: Frame) -> bool:
        reply_subjects.update(sent.reply for sent in tap.sent(f"{PREFIX}{pattern}"))
        return frame.op in {"MSG", "HMSG"} and frame.subject in reply_subjects

    return fits

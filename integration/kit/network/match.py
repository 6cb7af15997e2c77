"""Predicates over frames, for a proxy's filters and for assertions on its recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from integration.kit.network.wire import TO_CLIENT, TO_SERVER, Direction, Frame, subject_matches

Predicate: TypeAlias = Callable[[Frame], bool]

PUBLISH_OPS = frozenset({"PUB", "HPUB"})
MESSAGE_OPS = frozenset({"MSG", "HMSG"})


def match(
    *,
    op: str | None = None,
    subject: str | None = None,
    reply: str | None = None,
    direction: Direction | None = None,
    status: str | None = None,
    payload: bytes | None = None,
    header: tuple[str, str] | None = None,
) -> Predicate:
    """A predicate for frames that fit everything given.

    `op` PUB also means HPUB, and MSG also HMSG. `subject` and `reply` are NATS patterns. `status`
    is how the inline status starts (`"409"`). `payload` is the whole payload. `header` is a name
    and its exact value.
    """
    ops = None if op is None else {op, f"H{op}"} if op in {"PUB", "MSG"} else {op}

    def fits(frame: Frame) -> bool:
        return (
            (ops is None or frame.op in ops)
            and (direction is None or frame.direction == direction)
            and (subject is None or _fits(subject, frame.subject))
            and (reply is None or _fits(reply, frame.reply))
            and (status is None or (frame.status or "").startswith(status))
            and (payload is None or frame.payload == payload)
            and (header is None or frame.header(header[0]) == header[1])
        )

    return fits


def published(pattern: str) -> Predicate:
    """A client's publish to a subject that matches `pattern`."""
    return match(op="PUB", direction=TO_SERVER, subject=pattern)


def delivered(pattern: str) -> Predicate:
    """A server's message on a subject that matches `pattern`."""
    return match(op="MSG", direction=TO_CLIENT, subject=pattern)


def with_status(status: str) -> Predicate:
    """A server's status message that starts so, such as `"408"` or `"100 Idle Heartbeat"`."""
    return match(op="MSG", direction=TO_CLIENT, status=status)


def is_heartbeat(frame: Frame) -> bool:
    return _to_client(frame) and frame.status == "100 Idle Heartbeat"


def is_flow_control(frame: Frame) -> bool:
    """The server's flow control request."""
    return _to_client(frame) and frame.status == "100 FlowControl Request"


def is_flow_control_reply(frame: Frame) -> bool:
    """The client's answer to a flow control request."""
    return published("$JS.FC.>")(frame)


def is_ack(frame: Frame) -> bool:
    """A client's ack of any kind. Its `payload` says which."""
    return published("$JS.ACK.>")(frame)


def is_publish_ack(frame: Frame) -> bool:
    """The server's answer to a publish that was stored (or was a duplicate)."""
    if not (_to_client(frame) and frame.payload.startswith(b"{")):
        return False
    try:
        answer = json.loads(frame.payload)
    except ValueError:
        return False
    return "stream" in answer and "seq" in answer and "type" not in answer


def is_data(frame: Frame) -> bool:
    """A stream message delivered by a consumer."""
    return _to_client(frame) and (frame.reply or "").startswith("$JS.ACK.")


def is_message(*stream_seqs: int) -> Predicate:
    """A delivery of one of these stream sequences."""
    return lambda frame: is_data(frame) and stream_seq(frame) in stream_seqs


def stream_seq(frame: Frame) -> int:
    """The stream sequence of a delivered message, from its ack reply."""
    return _ack_numbers(frame)[1]


def consumer_seq(frame: Frame) -> int:
    """The consumer sequence of a delivered message, from its ack reply."""
    return _ack_numbers(frame)[2]


def _ack_numbers(frame: Frame) -> list[int]:
    """Delivered, stream sequence and consumer sequence of an ack reply of either form."""
    tokens = (frame.reply or "").split(".")
    # The second form has domain and account hash between the prefix and the stream name.
    first = 4 if len(tokens) == 9 else 6
    return [int(token) for token in tokens[first : first + 3]]


def _to_client(frame: Frame) -> bool:
    return frame.direction == TO_CLIENT and frame.op in MESSAGE_OPS


def _fits(pattern: str, subject: str | None) -> bool:
    return subject is not None and subject_matches(pattern, subject)

"""Frames as a server sends them, and hypothesis strategies for frames that no server should send."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from jsclient.protocol.models.consumer import AckPolicy, ConsumerConfig, ConsumerInfo, SequenceInfo
from jsclient.protocol.wire.frames import Frame

STREAM, CONSUMER = "ORDERS", "worker"
INBOX = b"_INBOX.deliver"
FC = b"$JS.FC.ORDERS.worker.%d"
TIME_NS = 1_700_000_000_123_456_789


def jsack(stream_seq: int = 1, consumer_seq: int | None = None, **fields: Any) -> bytes:
    """A JSAck. ``consumer_seq`` is ``stream_seq`` unless it is given. ``domain`` makes it v2."""
    tail = "{stream}.{consumer}.{delivered}.{sseq}.{cseq}.{ts}.{pending}".format(
        **{
            "stream": STREAM,
            "consumer": CONSUMER,
            "delivered": 1,
            "sseq": stream_seq,
            "cseq": stream_seq if consumer_seq is None else consumer_seq,
            "ts": TIME_NS,
            "pending": 0,
        }
        | fields
    )
    domain = fields.get("domain")
    return f"$JS.ACK.{tail}".encode() if domain is None else f"$JS.ACK.{domain}.aHash.{tail}".encode()


def data(
    stream_seq: int,
    consumer_seq: int | None = None,
    payload: bytes = b"x",
    header: bytes = b"",
    **fields: Any,
) -> Frame:
    """A message of the stream."""
    return b"orders.new", jsack(stream_seq, consumer_seq, **fields), header, payload


def status(code: int, description: str = "", reply: bytes = b"", **headers: object) -> Frame:
    """An inline status. Headers with ``_`` for ``-``."""
    line = f"NATS/1.0 {code} {description}".rstrip()
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return INBOX, reply, f"{line}\r\n{fields}\r\n".encode(), b""


def heartbeat(
    last_consumer: int | None = None, last_stream: int | None = None, stalled: bytes = b""
) -> Frame:
    """An idle heartbeat."""
    fields: dict[str, object] = {}
    if last_consumer is not None:
        fields = {"Nats_Last_Consumer": last_consumer, "Nats_Last_Stream": last_stream or last_consumer}
    if stalled:
        fields["Nats_Consumer_Stalled"] = stalled.decode()
    return status(100, "Idle Heartbeat", **fields)


def flow_control(number: int = 1, subject: bytes = b"") -> Frame:
    """A flow control request."""
    return status(100, "FlowControl Request", subject or FC % number)


def foreign(payload: bytes = b"hello") -> Frame:
    """A message that another client published to the deliver subject."""
    return INBOX, b"", b"", payload


def info(
    name: str = CONSUMER, *, delivered: int = 0, push_bound: bool = False, stream: str = STREAM, **config: Any
) -> ConsumerInfo:
    """A consumer as the server reports it. A pull consumer unless ``deliver_subject`` is given."""
    fields = {"ack_policy": AckPolicy.EXPLICIT, **config}
    return ConsumerInfo(
        stream_name=stream,
        name=name,
        config=ConsumerConfig(**fields),
        push_bound=push_bound,
        delivered=SequenceInfo(consumer_seq=0, stream_seq=delivered),
    )


# --- what nobody should send -----------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(0, 2**64 - 1).map(str),
    st.sampled_from(["", "-1", "+1", "1_0", "0x1", "1.0", " 1", "1 ", "٣", "１", "9" * 400, str(2**64), "a"]),
    st.text(max_size=5),
)
tokens = st.one_of(
    st.sampled_from(["ORDERS", "worker", "_", "", "*", ">", "$JS", "ACK"]), st.text(max_size=8), numbers
)
odd_jsacks = st.one_of(
    st.lists(tokens, max_size=14).map(lambda items: ".".join(["$JS", "ACK", *items])),
    st.lists(numbers, min_size=5, max_size=5).map(lambda items: ".".join(["$JS.ACK.S.C", *items])),
    st.lists(numbers, min_size=5, max_size=7).map(lambda items: ".".join(["$JS.ACK.d.h.S.C", *items])),
    st.lists(tokens, max_size=14).map(".".join),
    st.text(max_size=60),
)
good_names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)
u64 = st.integers(0, 2**64 - 1)

"""A window of publishes, and the answers to them."""

from __future__ import annotations

import msgspec

from jsclient.protocol.models import PubAck
from jsclient.protocol.publishing.in_flight import (
    ATTEMPT,
    InFlight,
)
from jsclient.protocol.publishing.publish_window import PublishWindow

ID = b"NATS/1.0\r\nNats-Msg-Id: an id\r\n\r\n"
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


ACKED: list[tuple[str, PubAck]] = []


"""What tickets were given, since it was last looked at."""


class Ticket:
    """Stands for a future."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, ack: PubAck) -> None:
        assert not self.over
        self.over = True
        ACKED.append((self.name, ack))


def window() -> PublishWindow[Ticket]:
    ACKED.clear()
    return PublishWindow("never an id")


def answers(under, frames, now) -> tuple[list[str], list[PubAck], list]:
    """Whose publishes were stored, their acks, and what failed."""
    failures = under.answers(frames, now)
    tickets, acks = [name for name, _ in ACKED], [ack for _, ack in ACKED]
    ACKED.clear()
    return tickets, acks, failures


def reply(number: int) -> bytes:
    return b"_INBOX.x.%d" % number


def send(under, number=1, *, now=0.0, timeout=5.0, with_id=False, payload=b"12345"):
    """A publish goes out. Its ticket is its number as text."""
    header = ID if with_id else b""
    due = min(now + timeout, now + ATTEMPT) if with_id else now + timeout
    size = len(header) + len(payload)
    entry = InFlight(
        Ticket(str(number)),
        b"orders.new",
        header,
        payload,
        size,
        number,
        now + timeout,
        due,
        repeatable=with_id,
    )
    under.add_publish(reply(number), entry)
    return entry


def reply_with(to, body) -> tuple[bytes, bytes, bytes, bytes]:
    subject = to if isinstance(to, bytes) else reply(to)
    return subject, b"", b"", body if isinstance(body, bytes) else msgspec.json.encode(body)


def ack(to, seq=7, **fields):
    return reply_with(to, {"stream": "ORDERS", "seq": seq, **fields})


def refusal(to, err_code, code=400):
    return reply_with(to, {"error": {"code": code, "err_code": err_code, "description": "no"}})


def nobody(to):
    subject = to if isinstance(to, bytes) else reply(to)
    return subject, b"", NO_RESPONDERS, b""


def errors(failures) -> list[tuple[str, type[Exception]]]:
    return [(entry.ticket.name, type(error)) for entry, error in failures]


def numbers(sends) -> list[str]:
    return [entry.ticket.name for _, entry in sends]

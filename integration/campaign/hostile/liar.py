"""A fake server that knows what a real one answers, and says something else now and then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from integration.campaign.fuzz import samples as s
from integration.campaign.fuzz.grammar import bytes_damaged, json_damaged
from integration.kit.network.wire import Frame, message
from integration.kit.servers.fake_server import FakeServer

Lie = Callable[[bytes], bytes]

CONSUMER = json.loads(s.CONSUMER_INFO)
STREAM = json.loads(s.STREAM_INFO)


class Liar(FakeServer):
    """Answers the API like a server with one stream S over `a.>`. `lie` changes each answer.

    Attributes:
        delivers: What a consumer's deliver subject, or the inbox of a pull, is sent: header blocks and replies.
    """

    def __init__(self, chance: Random, **options: Any) -> None:
        super().__init__(**options)
        self.chance = chance
        self.lie: Lie = lambda body: body
        self.delivers: Callable[[str, str], list[bytes]] = self.deliveries
        self.answer(">", self.reply_to)
        self._tasks: list[asyncio.Task[None]] = []

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside, until `stop`."""
        self._tasks.append(asyncio.create_task(work))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def reply_to(self, request: Frame) -> bytes | None:
        if request.reply is None:
            return None
        client = self.clients[request.connection]
        sid = client.sid_of(request.reply)
        if sid is None:
            return None
        subject = request.subject or ""
        if ".MSG.NEXT." in subject:
            return b"".join(self.delivers(request.reply, sid))
        answers = [self.message(request.reply, sid, self.lie(body_of(subject, request.payload)))]
        if "CONSUMER." in subject and (inbox := deliver_subject(request.payload)):
            inbox_sid = client.sid_of(inbox)
            answers += self.delivers(inbox, inbox_sid) if inbox_sid else []
        return b"".join(answers)

    def message(self, subject: str, sid: str, body: bytes) -> bytes:
        return message(subject, sid, body)

    def deliveries(self, inbox: str, sid: str) -> list[bytes]:
        """Five messages as a consumer sends them."""
        return [
            message("a.b", sid, b"x", reply=f"$JS.ACK.S.worker.1.{n}.{n}.1700000000123456789.7")
            for n in range(1, 6)
        ]

    def odd_deliveries(self, inbox: str, sid: str) -> list[bytes]:
        """Messages and statuses, damaged."""
        results = []
        for number in range(self.chance.randrange(1, 20)):
            ack = s.ACK.replace(b"ORDERS", b"S").replace(b".22.20.", b".%d.%d." % (number, number))
            if self.chance.random() < 0.5:
                ack = bytes_damaged(self.chance, ack)
            block = self.chance.choice((b"", *s.STATUSES))
            if self.chance.random() < 0.5:
                block = bytes_damaged(self.chance, block)
            results.append(frame(inbox, sid, ack if self.chance.random() < 0.6 else b"", block))
        return results


def frame(subject: str, sid: str, reply: bytes, block: bytes, payload: bytes = b"") -> bytes:
    """A message with any bytes as header block. The line itself stays one."""
    reply = bytes(byte for byte in reply if byte not in b" \r\n\0\t")
    words = [subject.encode(), sid.encode(), *([reply] if reply else [])]
    if block:
        line = b"HMSG " + b" ".join([*words, b"%d" % len(block), b"%d" % (len(block) + len(payload))])
    else:
        line = b"MSG " + b" ".join([*words, b"%d" % len(payload)])
    return line + b"\r\n" + block + payload + b"\r\n"


def deliver_subject(payload: bytes) -> str | None:
    try:
        answer = json.loads(payload)["config"].get("deliver_subject")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return answer if isinstance(answer, str) else None


def body_of(subject: str, payload: bytes) -> bytes:
    """What a server answers to a request."""
    if "STREAM.NAMES" in subject:
        return b'{"total":1,"offset":0,"limit":1024,"streams":["S"]}'
    if "STREAM.LIST" in subject:
        return json.dumps({"total": 1, "offset": 0, "limit": 256, "streams": [stream()]}).encode()
    if "STREAM.MSG.GET" in subject:
        return s.STORED
    # the order matters: the longer verbs are answered above
    if "STREAM." in subject:
        return json.dumps(stream()).encode()
    if "CONSUMER." in subject:
        try:
            request = json.loads(payload).get("config", {})
        except (ValueError, AttributeError):
            request = {}
        name = request.get("name") or request.get("durable_name") or subject.rsplit(".", maxsplit=1)[-1]
        return json.dumps({**CONSUMER, "stream_name": "S", "name": name, "config": request}).encode()
    if "INFO" in subject:
        return s.ACCOUNT
    return b'{"stream":"S","seq":7}'


def stream() -> dict[str, Any]:
    config = {
        "name": "S",
        "subjects": ["a.>"],
        "retention": "limits",
        "storage": "file",
        "allow_direct": True,
    }
    return {**STREAM, "config": config, "cluster": None, "mirror": None}


def damaged(chance: Random, often: float) -> Lie:
    """A lie: some answers are damaged."""

    def lie(body: bytes) -> bytes:
        if chance.random() > often:
            return body
        return (json_damaged if chance.random() < 0.7 else bytes_damaged)(chance, body)

    return lie

"""A connection without a network, and the few answers of a JetStream API that the handles need.

The fake carries what is sent, in order, in ``log`` and ``sent``. The test plays the server: it delivers frames, cuts
the connection, refuses and withholds. Nothing here imitates the server's decisions: every answer is the test's.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from jsclient import JetStream
from jsclient._runtime.connection.connection import Connection, Lifecycle
from jsclient.errors import ConnectError, DisconnectedError, JetStreamError, PermissionDeniedError
from jsclient.protocol.events import Event
from jsclient.protocol.wire.frames import Frame, Sink
from jsclient.protocol.wire.names import subject_matches
from tests.support.strategies import CONSUMER, STREAM, data, heartbeat, status

__all__ = ["SILENCE", "FakeApi", "FakeConnection", "PullServer", "Refusal", "Sent", "connected"]


class Sent(NamedTuple):
    subject: str
    payload: bytes
    reply: str
    header: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.payload) if self.payload else {}


class Refusal(NamedTuple):
    """The API's answer is an error."""

    err_code: int
    code: int = 400
    description: str = "refused"


SILENCE = object()
"""The API does not answer."""


class FakeInbox:
    def __init__(self, subject: str, sink: Sink, queue: str) -> None:
        self.subject = subject
        self.sink = sink
        self.queue = queue
        self.denied: PermissionDeniedError | None = None
        self.open = True


class FakeConnection(Connection):
    """Keeps all that is sent. Delivers the messages that the test gives it."""

    def __init__(self, *, tells: bool = True) -> None:
        self.events: list[Event] = []
        super().__init__(self.events.append if tells else None)
        self.sent: list[Sent] = []
        self.log: list[tuple[str, str]] = []  # ("sub" | "unsub" | "drain" | "pub", subject)
        self.inboxes: list[FakeInbox] = []
        self.settled: list[tuple[bytes, bool]] = []  # acks, and whether each is sent again after a cut
        self.api = FakeApi()
        self.failing: JetStreamError | None = None  # the error that every publish raises
        self.under_way: list[tuple[str, list[Frame]]] = []  # arrives while a subscription is drained
        self.limit = 1024 * 1024
        self.publishing = 0  # turns of the loop that a publish waits for room
        self.stuck = False  # a publish waits for room for ever
        self._up, self._over = True, False

    # --- state -------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._up

    @property
    def is_closed(self) -> bool:
        return self._over

    @property
    def max_payload(self) -> int:
        return self.limit

    @property
    def server_version(self) -> str:
        return "2.15.1"

    # --- traffic -----------------------------------------------------------------------------------------

    def send(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        self.check_open()
        if not self._up:
            raise DisconnectedError("not connected")
        self.check_size(len(header) + len(payload))
        if self.failing is not None:
            raise self.failing
        request = Sent(subject, payload, reply, header)
        self.sent.append(request)
        self.log.append(("pub", subject))
        if reply and (answer := self.api.answer(request)) is not SILENCE:
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            asyncio.get_running_loop().call_soon(self.deliver, reply, [(reply.encode(), b"", b"", body)])

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        for _ in range(self.publishing):
            await asyncio.sleep(0)
        self.send(subject, payload, reply=reply, header=header)
        if self.stuck:
            await asyncio.Event().wait()

    async def ack(self, reply: bytes, payload: bytes, *, settles: bool) -> None:
        self.settled.append((payload, settles))
        await self.publish(reply.decode("utf-8", "surrogateescape"), payload)

    async def subscribe(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> FakeInbox:
        return self.subscribe_now(subject, sink, queue, limit=limit)

    def subscribe_now(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> FakeInbox:
        self.check_open()
        inbox = FakeInbox(subject, sink, queue)
        self.inboxes.append(inbox)
        self.log.append(("sub", subject))
        return inbox

    def end_after(self, inbox: Any, count: int, *, earlier: int) -> None:
        self.log.append((f"end after {count - earlier}", inbox.subject))

    async def unsubscribe(self, inbox: Any) -> None:
        await asyncio.sleep(0)
        self._remove(inbox, "unsub")

    async def drain(self, inbox: Any, timeout: float) -> None:
        while self.under_way:
            await asyncio.sleep(0.001)
            if self.under_way:  # another drain may have delivered it
                self.deliver(*self.under_way.pop(0))
        self._remove(inbox, "drain")

    def _remove(self, inbox: FakeInbox, how: str) -> None:
        if inbox.open:
            inbox.open = False
            self.inboxes.remove(inbox)
            self.log.append((how, inbox.subject))

    async def ping(self, timeout: float) -> float:
        self.check_open()
        return 0.001

    def abort(self) -> None:
        self._over, self._up = True, False
        self._notify(Lifecycle.CLOSED)

    async def close(self) -> None:
        if not self._over:
            self._over, self._up = True, False
            self._notify(Lifecycle.CLOSED)

    # --- what the test does ------------------------------------------------------------------------------

    def deliver(self, subject: str, frames: list[Frame]) -> None:
        """The server sends these, together, to each subscriber of ``subject``."""
        for inbox in list(self.inboxes):
            if subject_matches(inbox.subject, subject):
                inbox.sink(frames)

    def disconnect(self) -> None:
        self._up = False
        self._notify(Lifecycle.DISCONNECTED)

    def reconnect(self) -> None:
        self._up = True
        self._notify(Lifecycle.CONNECTED)

    def deny(self, operation: str, subject: str) -> None:
        self._permission_denied(PermissionDeniedError(operation, subject))

    @contextmanager
    def broken(self, error: JetStreamError | None = None) -> Iterator[None]:
        """Every publish fails."""
        self.failing = error or ConnectError("broken")
        try:
            yield
        finally:
            self.failing = None

    # --- what the test sees ------------------------------------------------------------------------------

    def told(self, kind: type[Event]) -> list[Any]:
        """The events of this class so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def to(self, start: str) -> list[Sent]:
        """The publishes to subjects that start so."""
        return [sent for sent in self.sent if sent.subject.startswith(start)]

    def acks(self) -> list[bytes]:
        return [sent.payload for sent in self.to("$JS.ACK.")]

    def pulls(self) -> list[Sent]:
        return [sent for sent in self.sent if ".CONSUMER.MSG.NEXT." in sent.subject]

    def deleted(self) -> list[str]:
        """The consumers whose deletion was asked for."""
        return [sent.subject.rpartition(".")[2] for sent in self.to("$JS.API.CONSUMER.DELETE.")]

    @property
    def listening(self) -> list[str]:
        """Subjects with a NATS subscription, other than that for API answers."""
        return [inbox.subject for inbox in self.inboxes if not inbox.subject.endswith(".*")]


Answer = Any


class FakeApi:
    """Answers API requests: what the test scripted for the verb, else what a willing server would say."""

    def __init__(self) -> None:
        self.streams: list[str] | None = [STREAM]
        self.consumers: dict[str, dict[str, Any]] = {}  # name: config
        self.delivered = 0  # the stream sequence before the start of a new consumer
        self.stream_created = "2026-01-01T00:00:00Z"
        self.last_seq = 0
        self.replicas = 1
        self.script: dict[str, list[Answer]] = defaultdict(list)
        self._consumer_count = 0

    def on(self, verb: str, *answers: Answer) -> None:
        """The next answers to a verb: an object, a `Refusal`, `SILENCE`, bytes, or a function of the request."""
        self.script[verb] += answers

    def answer(self, request: Sent) -> Answer:
        tokens = request.subject.split(".")
        if tokens[:2] != ["$JS", "API"] or ".MSG.NEXT." in request.subject:
            return SILENCE
        verb = _verb(tokens[2:])
        scripted = self.script[verb]
        answer = scripted.pop(0) if scripted else getattr(self, f"_{verb.lower().replace('.', '_')}")
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Refusal):
            return {"error": answer._asdict()}
        return answer

    def info(self, name: str, config: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """A consumer info."""
        return {
            "stream_name": STREAM,
            "name": name,
            "created": "2026-01-01T00:00:00Z",
            "config": config,
            "delivered": {"consumer_seq": 0, "stream_seq": self.delivered},
            **fields,
        }

    def has(self, name: str = CONSUMER, **config: Any) -> None:
        """There is such a consumer."""
        self.consumers[name] = {"ack_policy": "explicit", "durable_name": name, **config}

    def _stream_names(self, _: Sent) -> Answer:
        return {"streams": self.streams}

    def _stream_info(self, request: Sent) -> Answer:
        return {
            "config": {
                "name": request.subject.rpartition(".")[2],
                "subjects": ["orders.>"],
                "num_replicas": self.replicas,
            },
            "created": self.stream_created,
            "state": {
                "messages": 0,
                "bytes": 0,
                "first_seq": 1,
                "last_seq": self.last_seq,
                "consumer_count": 0,
            },
        }

    def _consumer_info(self, request: Sent) -> Answer:
        name = request.subject.split(".")[-1]
        if name not in self.consumers:
            return Refusal(10014, 404, "consumer not found")
        return self.info(name, self.consumers[name])

    def _consumer_create(self, request: Sent) -> Answer:
        config = request.json["config"]
        self._consumer_count += 1
        name = config.get("durable_name") or config.get("name") or f"made{self._consumer_count}"
        self.consumers[name] = config
        before = config.get("opt_start_seq", self.delivered + 1) - 1
        return self.info(name, config, delivered={"consumer_seq": 0, "stream_seq": before})

    _consumer_durable_create = _consumer_create

    def _consumer_delete(self, request: Sent) -> Answer:
        self.consumers.pop(request.subject.split(".")[-1], None)
        return {"success": True}


def _verb(tokens: list[str]) -> str:
    return ".".join(tokens[:3] if tokens[1:2] == ["DURABLE"] else tokens[:2])


class connected:  # noqa: N801  reads as: async with connected() as (js, connection)
    """A `JetStream` on a fake connection. Closed at the end."""

    def __init__(self, timeout: float = 5.0) -> None:
        self.connection = FakeConnection()
        self._timeout = timeout

    async def __aenter__(self) -> tuple[JetStream, FakeConnection]:
        self.js = JetStream(self.connection, timeout=self._timeout)
        return self.js, self.connection

    async def __aexit__(self, *_: object) -> None:
        await self.js.close()


class PullServer:
    """Serves the pull requests of a fake connection: some at once, some later, in order, each message once."""

    def __init__(
        self, connection: FakeConnection, total: int, chance: random.Random, *, beats: bool = False
    ) -> None:
        self.connection = connection
        self.beats = beats  # heartbeats while a request waits
        self.total = total
        self.chance = chance
        self.sent = 0
        self._seen = 0
        self._held: list[tuple[str, int, float]] = []  # inbox, messages wanted, over at
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.chance.choice([0, 0.01, 0.2]))
            for pull in self.connection.pulls()[self._seen :]:
                self._seen += 1
                over = loop.time() + pull.json.get("expires", 0) / 1e9
                self._held.append((pull.reply, pull.json["batch"], over))
            # Serve a part of the oldest request, as a server with few messages does.
            if self._held and self.sent < self.total:
                inbox, expected, over = self._held.pop(0)
                count = min(expected, self.total - self.sent, self.chance.randint(1, 5))
                numbers = range(self.sent + 1, self.sent + count + 1)
                self.sent += count
                self.connection.deliver(inbox, [data(number) for number in numbers])
                if expected > count:
                    self._held.insert(0, (inbox, expected - count, over))
            for held in self._held if self.beats else []:
                self.connection.deliver(held[0], [(held[0].encode(), *heartbeat()[1:])])
            for held in [held for held in self._held if held[2] <= loop.time()]:
                self._held.remove(held)
                fields = {"Nats_Pending_Messages": held[1], "Nats_Pending_Bytes": 0}
                _, *remainder = status(408, "Request Timeout", **fields)
                self.connection.deliver(held[0], [(held[0].encode(), *remainder)])

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

"""Raw protocol lines of a server that is none: the connection is never dead and silent (F4, X12)."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from typing import Any

import pytest

from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually
from integration.kit.network.wire import Frame, message
from integration.kit.servers.fake_server import FakeServer
from jsclient import ConnectError, Disconnected, ErrorRaised, JetStreamError, PermissionDenied, Reconnected

FAST = {"reconnect_time_wait": 0.02, "connect_timeout": 20.0}

HARMLESS = [
    b"+OK\r\n",
    b"PING\r\n",
    b"PONG\r\n",
    b"PONG\r\nPONG\r\nPONG\r\n",
    b"MSG nobody 999999 0\r\n\r\n",
    b"MSG nobody abc 0\r\n\r\n",
    b"MSG \xff\xfe 999999 0\r\n\r\n",
    b"HMSG nobody 999999 2 2\r\nNA\r\n",
    b"-ERR 'Permissions Violation for Publish to \"Some.Subject\"'\r\n",
    b'-ERR \'Permissions Violation for Subscription to "x" using queue "y"\'\r\n',
    b"-ERR 'Invalid Subject'\r\n",
    b"INFO {}\r\n",
    b'INFO {"max_payload": -1, "connect_urls": [], "ldm": true}\r\n',
]
FATAL = [
    b"-ERR 'Something New'\r\n",
    b"-ERR\r\n",
    b"-ERR \xff\xfe\r\n",
    b"-ERR 'User Authentication Expired'\r\n",
    b"-ERR 'maximum connections exceeded'\r\n",
    b"-ERR 'Stale Connection'\r\n",
    b"WHAT is this\r\n",
    b"\r\n",
    b"\x00\x01\x02\r\n",
    b"GET / HTTP/1.1\r\n",
    b"INFO \r\n",
    b"INFO nonsense\r\n",
    b"INFO []\r\n",
    b'INFO {"connect_urls": 5}\r\n',
    b"INFO " + b"[" * 60_000 + b"\r\n",
    b"MSG\r\n",
    b"MSG a\r\n",
    b"MSG a 1 -5\r\nxx\r\n",
    b"MSG a 1 99999999999999999999\r\n",
    b"MSG a 1 2147483648\r\n",
    b"MSG a 1 1\r\nxx\r\n",
    b"MSG a b c d e 1\r\n",
    b"HMSG a 1 5 3\r\nxxx\r\n",
    b"HMSG a 1 -1 3\r\nxxx\r\n",
    b"HMSG a 1 3\r\nxxx\r\n",
    b"A" * 70_000,
    b"MSG " + b"a" * 70_000,
]


class Fed:
    """A subscription of jsclient at a fake server, which delivers to it by hand."""

    def __init__(self, fake: FakeServer, sub: Any) -> None:
        self.fake = fake
        self.sub = sub
        self.count = 0

    @classmethod
    async def make(cls, fake: FakeServer, js: Any) -> Fed:
        fake.answer_message("$JS.API.STREAM.NAMES", {"streams": ["S"], "total": 1})
        info: dict[str, Any] = {"stream_name": "S", "name": "C", "created": "2026-01-01T00:00:00Z"}
        state = {
            "delivered": {"consumer_seq": 0, "stream_seq": 0},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_pending": 0,
        }

        def created(request: Frame) -> bytes:
            if request.payload:
                info["config"] = json.loads(request.payload)["config"]
            body = {**info, **state}
            sid = fake.client.sid_of(request.reply or "")
            return message(request.reply or "", sid or "", json.dumps(body).encode())

        fake.answer("$JS.API.CONSUMER.CREATE.S", created)
        fake.answer("$JS.API.CONSUMER.INFO.S.C", created)
        fake.answer_message("$JS.API.CONSUMER.DELETE.>", {"success": True})
        return cls(fake, await js.subscribe("a"))

    async def deliver(self) -> None:
        """One more message comes through, over whichever connection there is."""
        self.count += 1
        await eventually(lambda: self.fake.client.sid_of(self.sub.subject), what="the subscription")
        reply = f"$JS.ACK.S.C.1.{self.count}.{self.count}.1700000000000000000.0"
        self.fake.send_message(self.sub.subject, str(self.count).encode(), reply=reply)
        assert (await self.sub.next(timeout=30)).data == str(self.count).encode()


@pytest.mark.parametrize("line", HARMLESS, ids=lambda line: repr(line[:40]))
async def test_harmless_lines_ignored(line: bytes, connect: Any, events: list[Any]) -> None:
    """F4."""
    async with FakeServer() as fake:
        js = await connect(fake, **FAST)
        fed = await Fed.make(fake, js)
        await fed.deliver()
        fake.send(line)
        await fed.deliver()
        assert await js.ping() < 5
        assert len(fake.clients) == 1
        if b"Permissions" in line:
            assert "Some.Subject" in str(of(PermissionDenied, events)) or "'x'" in str(events)
        await js.close()


@pytest.mark.core_cases(9)
@pytest.mark.parametrize("line", FATAL, ids=lambda line: repr(line[:40]))
async def test_nonsense_reconnects(line: bytes, connect: Any, events: list[Any]) -> None:
    """F4: 7 dead and silent, 6 closed for good in nats-py."""
    async with FakeServer() as fake:
        js = await connect(fake, **FAST)
        fed = await Fed.make(fake, js)
        await fed.deliver()
        fake.send(line)
        await eventually(lambda: of(Reconnected, events), 60, "a new connection")
        assert of(ErrorRaised, events)
        assert len(of(Disconnected, events)) == 1
        await fed.deliver()
        assert len(fake.clients) == 2
        await js.close()


async def test_frame_split_anywhere_read(connect: Any) -> None:
    """F4: every place at which the network may cut a chunk."""
    async with FakeServer() as fake:
        js = await connect(fake, **FAST)
        fed = await Fed.make(fake, js)
        await fed.deliver()
        sid = fake.client.sid_of(fed.sub.subject)
        for at in range(1, 70, 3):
            fed.count += 1
            reply = f"$JS.ACK.S.C.1.{fed.count}.{fed.count}.1700000000000000000.0"
            frame = f"HMSG {fed.sub.subject} {sid} {reply} 12 15\r\nNATS/1.0\r\n\r\nxyz\r\n".encode()
            await fake.send_split(frame, [at, 1, 1])
            assert (await fed.sub.next(timeout=30)).data == b"xyz"
        await js.close()


@pytest.mark.parametrize("endless", ["control line", "payload", "huge frame"])
async def test_server_pours_in_bounded(endless: str, connect: Any, events: list[Any]) -> None:
    """X12: 150 MB were taken and kept by nats-py. 5 MB at most here."""
    async with FakeServer() as fake:
        js = await connect(fake, **FAST)
        fed = await Fed.make(fake, js)
        await fed.deliver()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if endless == "payload":
            fake.announce(fed.sub.subject, 2_000_000_000)
        elif endless == "huge frame":
            fake.announce(fed.sub.subject, (1 << 20) + (1 << 17))
        piece = b"x" * 65536
        pouring = asyncio.create_task(fake.pour(piece, 150_000_000))
        await eventually(lambda: of(Disconnected, events), 60, "the end of the connection")
        fake.clients[0].drop()
        taken = await asyncio.wait_for(pouring, 60)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{endless}: {taken / 1e6:.1f} MB poured, {grown:.1f} MB grown")
        assert grown < 60
        assert of(ErrorRaised, events)
        await eventually(lambda: of(Reconnected, events), 60, "a new connection")
        await fed.deliver()
        await js.close()


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"INFO\r\n",
        b"INFO {\r\n",
        b"INFO []\r\n",
        b"INFO {}",
        b"-ERR 'maximum connections exceeded'\r\n",
        b"INFO " + b"x" * 100_000 + b"\r\n",
        b'INFO {"connect_urls": 7}\r\n',
    ],
    ids=lambda line: repr(line[:40]),
)
async def test_greeting_none_connect_error_in_time(greeting: bytes) -> None:
    """X12, R19."""
    import jsclient

    async with FakeServer(greeting=greeting) as fake:
        started = time.monotonic()
        with pytest.raises(ConnectError):
            await jsclient.connect(fake.url, connect_timeout=0.5)
        assert time.monotonic() - started < 10


async def test_dying_server_names_errors(connect: Any, events: list[Any]) -> None:
    """R19, R2: no one waits for ever."""
    async with FakeServer(answer_pings=True) as fake:
        js = await connect(fake, **{**FAST, "connect_timeout": 2.0}, timeout=1.0, ping_interval=0.3)
        fake.answer_pings = False
        started = time.monotonic()
        results = await asyncio.gather(
            js.publish("a", b"x"),
            js.publish("a", b"x", msg_id="1"),
            js.account_info(),
            js.stream("S"),
            js.subscribe("a"),
            js.pull_subscribe("a"),
            js.ping(1.0),
            return_exceptions=True,
        )
        assert time.monotonic() - started < 5, "their timeout is 1 s, not the 5 s of the default"
        assert all(isinstance(result, JetStreamError) for result in results), results
        await eventually(lambda: of(Disconnected, events), 60, "the dead server to be found")
        fake.answer_pings = True
        await eventually(lambda: of(Reconnected, events), 60, "the reconnect")
        await js.close()

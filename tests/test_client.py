"""`JetStream` itself: its state, what its options may be, and how it closes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from jsclient import JetStream, connect
from jsclient.client import ConnectOptions
from jsclient.client import JetStream as Defined
from jsclient.errors import ClosedError, ConfigError
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual

ROOT = Path(__file__).resolve().parents[1]


def test_it_is_the_class_of_its_module():
    assert JetStream is Defined


@virtual
async def test_state_in_words():
    async with connected() as (js, connection):
        assert (js.is_connected, js.is_closed, js.server_version) == (True, False, "2.15.1")
        assert repr(js) == "<JetStream connected, server 2.15.1>"
        connection.disconnect()
        assert repr(js) == "<JetStream reconnecting, server 2.15.1>"
        connection.reconnect()
        await js.close()
        assert repr(js) == "<JetStream closed, server 2.15.1>"
        with pytest.raises(ClosedError):
            async with js:
                pass


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": True},
        {"stall_after": -1},
        {"prefix": "a b"},
        {"domain": "a.b"},
        {"domain": ""},
    ],
)
@virtual
async def test_invalid_option_is_refused(options):
    with pytest.raises(ConfigError):
        JetStream(FakeConnection(), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"tim_out": 1},
        {"name": ""},
        {"inbox_prefix": "a b"},
        {"inbox_prefix": "a.*"},
        {"reconnect_time_wait": -1},
    ],
)
def test_invalid_option_of_connect_is_refused_before_it_dials(options):
    async def main():
        with pytest.raises(ConfigError):
            await connect("nats://127.0.0.1:1", **options)

    asyncio.run(main())


@virtual
async def test_domain_is_in_every_request():
    connection = FakeConnection()
    js = JetStream(connection, domain="hub")
    asking = asyncio.ensure_future(js.account_info())
    await settle()
    assert connection.sent[0].subject == "$JS.hub.API.INFO"
    asking.cancel()
    await js.close()


@virtual
async def test_core_is_one_object():
    async with connected() as (js, _):
        assert js.core is js.core


class Handle:
    """A handle that takes its time to end."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error, self.ended = seconds, error, 0

    async def abandon(self) -> None:
        await asyncio.sleep(self.seconds)
        self.ended += 1
        if self.error is not None:
            raise self.error


@virtual
async def test_close_ends_every_handle_once():
    async with connected() as (js, connection):
        handles = [Handle(0.5), Handle(1.0), Handle()]
        for handle in handles:
            js._context.open.add(handle)
        await asyncio.gather(js.close(), js.close())
        assert connection.is_closed
        assert min(handle.ended for handle in handles) >= 1
        assert connection.listening == []


@virtual
async def test_handle_that_cannot_end_stops_no_other_one():
    async with connected() as (js, connection):
        bad, good = Handle(error=ConfigError("bad")), Handle()
        js._context.open |= {bad, good}
        await js.close()
        assert good.ended
        assert connection.is_closed


@virtual
async def test_silent_server_is_not_waited_for():
    async with connected() as (js, connection):
        slow = Handle(seconds=1000.0)
        js._context.open.add(slow)

        async def ping(timeout):
            await asyncio.sleep(timeout)
            raise ClosedError("no answer")

        connection.ping = ping
        loop = asyncio.get_running_loop()
        start = loop.time()
        closing = asyncio.ensure_future(js.close())
        await asyncio.sleep(5)
        assert connection.is_closed
        assert loop.time() - start <= 5
        closing.cancel()
        await asyncio.wait({closing})
        await asyncio.sleep(1000)


@virtual
async def test_cancelled_close_aborts():
    async with connected() as (js, connection):
        js._context.open.add(Handle(seconds=3.0))
        closing = asyncio.ensure_future(js.close())
        await settle()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert connection.is_closed
        await asyncio.sleep(10)


def test_every_option_is_described_in_the_guide():
    guide = (ROOT / "docs/howto/connecting.md").read_text(encoding="utf-8")
    _, _, table = guide.partition("## All options")
    described = set(
        re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    )
    assert described == {"servers", *(connect.__kwdefaults__ or {}), *ConnectOptions.__annotations__}

"""Canary secrets: in nothing that is logged, raised, shown or reported (X10)."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import pytest

import jsclient
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually
from integration.kit.servers.fake_server import FakeServer
from jsclient import ConfigError, ConnectError, Disconnected, JetStreamError, Reconnected

CANARY = "canary7d1f"
WAYS = ["url", "password", "token", "token in url"]


def arguments(way: str, url: str) -> tuple[str, dict[str, Any]]:
    match way:
        case "url":
            return url.replace("nats://", f"nats://ann:{CANARY}@"), {}
        case "token in url":
            return url.replace("nats://", f"nats://{CANARY}@"), {}
        case "token":
            return url, {"token": CANARY}
        case _:
            return url, {"user": "ann", "password": CANARY}


def texts(error: BaseException | None) -> Iterable[str]:
    """An error, its traceback and its causes, as logs show them, and pickled, where it is ours."""
    while error is not None:
        yield str(error)
        yield repr(error)
        yield "".join(traceback.format_exception(error))
        if isinstance(error, JetStreamError):
            yield repr(pickle.dumps(error))
        error = error.__cause__ or error.__context__


@pytest.mark.core_cases(6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["refused", "closed", "garbage", "no server", "TLS"])
async def test_failing_connect_shows_no_secret(way: str, fault: str, caplog: Any) -> None:
    """X10."""
    caplog.set_level(logging.DEBUG)
    greeting = {"garbage": b"INFO nonsense\r\n", "closed": b"-ERR 'no'\r\n"}.get(fault)
    async with FakeServer(greeting=greeting) as fake:
        fake.info["auth_required"] = True
        if fault == "refused":
            fake.answer_pings = False
            fake.answer_connect = b"-ERR 'Authorization Violation'\r\n"
        url, options = arguments(way, fake.url)
        if fault == "no server":
            url = url.replace(str(fake.port), "1")
        if fault == "TLS":
            url = url.replace("nats://", "tls://")

        with pytest.raises(ConnectError) as caught:
            await jsclient.connect(url, connect_timeout=20.0, **options)
        connects = fake.find(lambda frame: frame.op == "CONNECT")
        # The control: it was there, and was sent only where it had to be.
        assert [CANARY in frame.args for frame in connects] == ([True] if fault == "refused" else [])
    assert [text for text in texts(caught.value) if CANARY in text] == []
    assert CANARY not in caplog.text


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("log", [True, False], ids=["logged", "to on_event"])
async def test_connection_shows_no_secret_in_life(
    way: str, log: bool, own_server: Any, proxy: Any, caplog: Any
) -> None:
    """X10: reprs, events, errors and logs at DEBUG, reconnects and refusals included."""
    caplog.set_level(logging.DEBUG)
    secret = {"token": CANARY} if "token" in way else {"users": [{"user": "ann", "password": CANARY}]}
    own = await own_server(config={"authorization": secret})
    tap = await proxy(own)
    url, options = arguments(way, tap.url)
    events: list[Any] = []
    shown: list[str] = []
    on_event = None if log else events.append
    async with jsclient.connect(url, on_event=on_event, timeout=20.0, **PATIENT, **options) as js:
        stream = await js.create_stream("S", subjects=["s.>"], storage="memory")
        sub = await js.subscribe("s.>")
        psub = await js.pull_subscribe("s.>")
        await js.publish("s.x", b"x")
        message = await sub.next(timeout=30)
        for actual in (js, js._connection, js._context, stream, sub, psub, message):
            shown += [repr(actual), str(actual)]
        # errors quote what was asked for, and must not quote the credentials
        for failing in (js.stream("none"), js.publish("none", b"", timeout=0.6), js.subscribe("none")):
            with pytest.raises(JetStreamError) as caught:
                await failing
            shown += texts(caught.value)
        tap.cut()
        await eventually(lambda: len(tap.links) > 1 and js.is_connected, what="the reconnect")
        links = len(tap.links)
        changed = {"token": "other"} if "token" in way else {"users": [{"user": "ann", "password": "other"}]}
        own.reload({"authorization": changed})
        await eventually(lambda: len(tap.links) > links + 1, what="attempts that are refused")
        with pytest.raises(JetStreamError) as caught:
            await js.publish("s.x", b"x", timeout=0.3)
        shown += texts(caught.value)
        own.reload({"authorization": secret})
        await eventually(lambda: js.is_connected, what="the reconnect")
        await js.ping()
    if log:
        assert "the connection was lost" in caplog.text
    else:
        assert of(Disconnected, events)
        assert of(Reconnected, events)
    shown += [repr(event) for event in events]
    shown += [text for event in events if hasattr(event, "error") for text in texts(event.error)]
    assert [text for text in shown if CANARY in text] == []
    assert CANARY not in caplog.text
    assert CANARY in str([frame.args for frame in tap.find(lambda frame: frame.op == "CONNECT")])


@pytest.mark.parametrize(
    "password",
    ["12,34{}", "12,34{},x", "1234/{}", "1234?{}", "1234#{}", "{},34", "a@12,34{}"],
)
async def test_odd_character_in_a_password_is_refused(password: str, caplog: Any) -> None:
    """A comma, or what ends the address of a URL: nothing is sent to any server, and nothing of it is shown."""
    caplog.set_level(logging.DEBUG)
    secret = password.format(CANARY)
    async with FakeServer() as fake:
        url = fake.url.replace("nats://", f"nats://ann:{secret}@")
        with pytest.raises(ConfigError) as caught:
            await jsclient.connect(url)
        assert fake.clients == []
    assert "percent-encode" in str(caught.value)
    shown = [*texts(caught.value), caplog.text]
    assert [text for text in shown if CANARY in text or "1234" in text or "12," in text] == []


CONTROLS = ["\t", "\n", "\r", "\r\n", "\0", "\x1f", "\x7f", "\x85"]


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
@pytest.mark.parametrize("user_info", ["ann:12{}34", "ann:{}34", "ann:34{}", "an{}n:34", "12{}34"])
async def test_control_character_in_user_info_is_refused(user_info: str, control: str, caplog: Any) -> None:
    """Otherwise the URL would lose it, and another password would be sent."""
    caplog.set_level(logging.DEBUG)
    async with FakeServer() as fake:
        url = fake.url.replace("nats://", f"nats://{user_info.format(control)}{CANARY}@")
        for servers in (url, [fake.url, url]):
            with pytest.raises(ConfigError, match="control character") as caught:
                await jsclient.connect(servers)
            shown = [*texts(caught.value), caplog.text]
            assert [text for text in shown if CANARY in text] == []
        assert fake.clients == []


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
async def test_encoded_control_character_arrives(control: str) -> None:
    async with FakeServer() as fake:
        url = fake.url.replace("nats://", f"nats://ann:12{quote(control)}{CANARY}@")
        async with jsclient.connect(
            f" {url}\n"
        ):  # space around a URL, as at the end of a line, is no part of it
            (connect,) = fake.find(lambda frame: frame.op == "CONNECT")
            assert json.loads(connect.args)["pass"] == f"12{control}{CANARY}"


async def test_comma_in_a_password_of_a_list() -> None:
    """In a list, a comma in user info separates nothing: the whole password is sent."""
    async with FakeServer() as fake:
        url = fake.url.replace("nats://", f"nats://ann:12,{CANARY}@")
        async with jsclient.connect([url]):
            (connect,) = fake.find(lambda frame: frame.op == "CONNECT")
            assert f'"pass": "12,{CANARY}"' in connect.args

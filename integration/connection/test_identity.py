"""Who we are: passwords, tokens, nkeys. Refused in one round trip, restored when they are (X2, X9)."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never
from integration.kit.network.match import is_ack
from integration.kit.servers.monitor import connections
from integration.kit.servers.nats_server import fits, read_info
from integration.kit.servers.ports import HOST, free_port
from jsclient import AuthenticationError, ConfigError, ConnectError, Disconnected, ErrorRaised, Reconnected

USER = {"user": "ann", "password": "secret-one"}


def users(*names: str) -> dict[str, Any]:
    return {"authorization": {"users": [{"user": name, "password": "secret-one"} for name in names]}}


async def refused(url: str, **options: Any) -> None:
    started = time.monotonic()
    with pytest.raises(AuthenticationError):
        await jsclient.connect(url, connect_timeout=20.0, **options)
    assert time.monotonic() - started < 10, "a refusal is not repeated"


async def test_user_and_password(own_server: Any, connect: Any) -> None:
    """X2: wrong credentials fail in one round trip. Nats-py was still trying after 20 s."""
    own = await own_server(config=users("ann"))
    assert await (await connect(own, **USER)).ping() < 5
    in_url = own.url.replace("nats://", "nats://ann:secret-one@")
    assert await (await connect(in_url)).ping() < 5
    await refused(own.url)
    await refused(own.url, user="ann", password="wrong")
    await refused(own.url, user="bob", password="secret-one")
    await refused(own.url, token="secret-one")
    await refused(own.url.replace("nats://", "nats://ann:wrong@"))


async def test_a_token(own_server: Any, connect: Any) -> None:
    """X2."""
    own = await own_server(config={"authorization": {"token": "secret-two"}})
    assert await (await connect(own, token="secret-two")).ping() < 5
    assert await (await connect(own.url.replace("nats://", "nats://secret-two@"))).ping() < 5
    await refused(own.url, token="wrong")
    await refused(own.url)


async def test_an_nkey(own_server: Any, connect: Any, tmp_path: Path) -> None:
    """X2: from text and from a file."""
    import nkeys

    own_seed, other_seed = (_seed(nkeys) for _ in range(2))
    public = nkeys.from_seed(bytearray(own_seed)).public_key.decode()
    own = await own_server(config={"authorization": {"users": [{"nkey": public}]}})
    assert await (await connect(own, nkeys_seed_str=own_seed.decode())).ping() < 5
    file = tmp_path / "seed.nk"
    file.write_bytes(own_seed)
    assert await (await connect(own, nkeys_seed=str(file))).ping() < 5
    await refused(own.url, nkeys_seed_str=other_seed.decode())


async def as_coroutine(*_: Any) -> bytes:
    raise AssertionError("called")


def raising(*_: Any) -> Any:
    raise KeyError("authorization of the vault")  # the word does not make it a refusal by the server


CALLBACKS = ("token", "signature_cb", "user_jwt_cb")


@pytest.mark.parametrize("name", CALLBACKS)
async def test_callbacks_checked_before_the_wire(name: str) -> None:
    nowhere = f"nats://{HOST}:1"
    for value, word in (
        (as_coroutine, "is a coroutine function"),
        (lambda one, two: b"", "is called with"),
        (b"secret-two", "is bytes"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} {word}") as caught:
            await jsclient.connect(nowhere, **{name: value})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raising, "raised KeyError('authorization of the vault')"),
        (lambda *_: as_coroutine(), "returned coroutine: "),
        (lambda *_: None, "returned NoneType: "),
    ],
)
async def test_callbacks_that_fail(own_server: Any, name: str, function: Any, says: str) -> None:
    """The attempt fails, and its error names the callback."""
    import nkeys

    public = nkeys.from_seed(bytearray(_seed(nkeys))).public_key.decode()
    with_token = {"authorization": {"token": "secret-two"}}
    with_nkey = {"authorization": {"users": [{"nkey": public}]}}
    own = await own_server(config=with_token if name == "token" else with_nkey)
    options = (
        {name: function} if name != "user_jwt_cb" else {name: function, "signature_cb": lambda _: b"c2ln"}
    )
    with pytest.raises(ConnectError) as caught:
        await jsclient.connect(own.url, connect_timeout=20.0, **options)
    assert not isinstance(caught.value, AuthenticationError)
    assert str(caught.value).startswith(f"cannot connect to {own.url}: {name} {says}")
    assert isinstance(caught.value.__cause__, KeyError if function is raising else type(None))
    with pytest.raises(ConnectError) as caught:
        await jsclient.connect(
            [own.url, own.url.replace("127.0.0.1", "localhost")], connect_timeout=20.0, **options
        )
    assert isinstance(caught.value.__cause__, KeyError if function is raising else type(None))


async def test_callback_at_each_connect(own_server: Any, connect: Any, events: list[Any]) -> None:
    """On the event loop. One that fails at a reconnect is reported once, and called again until it succeeds."""
    own = await own_server(config={"authorization": {"token": "secret-two"}})
    calls: list[threading.Thread] = []

    def token() -> str:
        calls.append(threading.current_thread())
        if 1 < len(calls) < 5:
            raise KeyError("vault")
        return "secret-two"

    js = await connect(own, token=token, **PATIENT)
    await own.kill()
    await own.start()
    await wait_for_event(Reconnected, events)
    assert await js.ping() < 5
    assert set(calls) == {threading.main_thread()}
    assert len(calls) == 5
    (reported,) = of(ErrorRaised, events)
    assert isinstance(reported.error, ConnectError)
    assert str(reported.error) == f"cannot connect to {own.url}: token raised KeyError('vault')"
    assert isinstance(reported.error.__cause__, KeyError)


@pytest.mark.parametrize("info", ["ann:s%40cret%2Fone", "tok%3Aen"], ids=["password", "token"])
async def test_discovered_servers_get_user(
    info: str, own_server: Any, connect: Any, events: list[Any]
) -> None:
    """User info in the URL, percent-encoded, is also used for servers that the cluster announces."""
    own = {"user": "ann", "password": "s@cret/one"} if ":" in info else {"token": "tok:en"}
    first, second = await pair(own_server, own)
    urls = [server.url.replace("nats://", f"nats://{info}@") for server in (first, second)]
    await (await connect(urls[1])).ping()
    js = await connect(urls[0], **PATIENT)
    assert await js.ping() < 5
    await first.kill()
    back = await wait_for_event(Reconnected, events)
    assert back.url == second.url
    assert await js.ping() < 5
    assert of(ErrorRaised, events) == []


async def pair(
    own_server: Any, authorization: dict[str, Any], config: dict[str, Any] | None = None
) -> list[Any]:
    """Two servers that announce each other."""
    routes = [free_port(), free_port()]
    servers = await asyncio.gather(
        *(
            own_server(
                jetstream=False,
                config={
                    **(config or {}),
                    "authorization": authorization,
                    "cluster": {
                        "name": "pair",
                        "listen": f"{HOST}:{port}",
                        "routes": [f"nats://{HOST}:{port}" for port in routes],
                    },
                },
            )
            for port in routes
        )
    )
    for server in servers:
        await eventually(lambda server=server: _announces(server), what="a server that knows the other")
    return servers


async def _announces(server: Any) -> bool:
    info = await asyncio.to_thread(read_info, server.url)
    return len(info.get("connect_urls") or ()) == 2


def _seed(nkeys: Any) -> bytes:
    """A user's seed: prefix bytes, 32 random bytes, a checksum, in base 32."""
    prefix = bytes(
        [nkeys.PREFIX_BYTE_SEED | (nkeys.PREFIX_BYTE_USER >> 5), (nkeys.PREFIX_BYTE_USER & 31) << 3]
    )
    raw = prefix + os.urandom(32)
    return base64.b32encode(raw + nkeys.crc16(bytearray(raw)).to_bytes(2, "little")).rstrip(b"=")


async def test_user_revoked_and_restored_goes_on(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """X2: told by name while it lasts, then as if nothing had been."""
    own = await own_server(config=users("ann", "judge"))
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:secret-one@"))
    stream = await OwnStream.create(oracle, "revoked", storage="file")
    js = await connect(own, **USER, **PATIENT)
    sub = await js.subscribe(stream.all, durable="d")
    await stream.publish(1)
    assert numbers(await take(sub, 1)) == [1]
    own.reload(users("judge"))
    await wait_for_event(Disconnected, events)
    error = await wait_for_event(
        ErrorRaised, events, lambda event: isinstance(event.error, AuthenticationError)
    )
    assert "secret-one" not in str(error)
    await never(lambda: js.is_connected, 0.5, "a connection without a right to it")
    own.reload(users("ann", "judge"))
    await wait_for_event(Reconnected, events)
    assert await js.ping() < 5
    if not fits(own.version, ">=2.11"):
        return  # a server of 2.10 shuts its JetStream down when it reloads its users
    await js.publish(stream.subject("x"), b"2", msg_id="2")
    assert numbers(await take(sub, 1)) == [2]


async def test_account_full_tried_again(own_server: Any, connect: Any, events: list[Any]) -> None:
    """X2, ADR-40: too many connections follows the reconnect logic. At the first connect it is an error."""
    own = await own_server(config={"max_connections": 1})
    # Whoever asked whether it runs counts too until the server has seen the end of that.
    await eventually(lambda: _empty(own), what="a server without connections")
    js = await connect(own, **PATIENT)
    with pytest.raises(ConnectError):
        await jsclient.connect(own.url)
    assert await js.ping() < 5
    assert of(Disconnected, events) == []


@pytest.mark.parametrize("option", [{"passwrd": "x"}, {"max_reconnect_attempts": 1}, {"error_cb": print}])
async def test_options_do_not_exist_refused(option: dict[str, Any], server: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        await jsclient.connect(server.url, **option)


async def _empty(own: Any) -> bool:
    return not await connections(own.monitor)


ACCOUNTS = {
    "accounts": {
        name: {"jetstream": "enabled", "users": [{"user": name, "password": "x"}]} for name in ("A", "B")
    }
}


async def test_acks_stay_in_account(own_server: Any, oracle_for: Any, connect: Any, proxy: Any) -> None:
    """X9: equal names in two accounts: A's acks move A's consumer, B's stays. Subjects are used unmodified."""
    own = await own_server(config=ACCOUNTS)
    tap = await proxy(own)
    streams = {}
    for name in "AB":
        oracle = await oracle_for(own.url.replace("nats://", f"nats://{name}:x@"))
        await oracle.create_stream("S", ["s.>"], storage="memory")
        streams[name] = OwnStream(oracle, "S", "s")
        await streams[name].publish(10)
    subs = {}
    for name in "AB":
        js = await connect(tap, user=name, password="x")
        subs[name] = await js.subscribe("s.>", durable="d", config=jsclient.ConsumerConfig(ack_wait=60))
    messages = {name: await take(sub, 10) for name, sub in subs.items()}
    for message in messages["A"]:
        await message.ack_sync()
    assert (await streams["A"].consumer_info("d"))["ack_floor"]["stream_seq"] == 10
    assert (await streams["B"].consumer_info("d"))["ack_floor"]["stream_seq"] == 0
    assert [frame.subject for frame in tap.find(is_ack)] == [message.reply for message in messages["A"]]
    hashes = {message.reply.split(".")[3] for found in messages.values() for message in found}
    if own.ack_v2:
        assert len(hashes) == 2


async def test_identities_do_not_mix(own_server: Any, connect: Any) -> None:
    own = await own_server(config=ACCOUNTS)
    first, second = await asyncio.gather(
        connect(own, user="A", password="x"), connect(own, user="B", password="x")
    )
    await first.create_stream("ONLY_A", subjects=["a"], storage="memory")
    assert [name async for name in first.stream_names()] == ["ONLY_A"]
    assert [name async for name in second.stream_names()] == []

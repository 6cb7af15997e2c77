"""What a hostile server does, and what a client must still do: end its calls, close, leave nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import jsclient
from integration.campaign.calls import Calls
from integration.campaign.fuzz import samples as s
from integration.campaign.fuzz.grammar import bytes_damaged, json_damaged
from integration.campaign.hostile.battery import LIMIT, TIMEOUT, run_all
from integration.campaign.hostile.liar import Liar, damaged, frame
from integration.campaign.options import Options
from integration.campaign.report import Outcome
from integration.kit.judge.background import Background
from integration.kit.judge.leaks import describe_task, running_tasks

CLOSE = 6.0  # seconds
PATIENCE = 8 << 20  # bytes that a client may read of something that never ends

Scenario = Callable[[Liar], Awaitable[None]]
"""Prepares the liar before the client connects; what it does later it does in tasks of the liar."""

OPTIONS = {
    "timeout": TIMEOUT,
    "connect_timeout": 1.0,
    "reconnect_time_wait": 0.05,
    "ping_interval": 0.5,
}


async def damaged_answers(liar: Liar) -> None:
    """Answers with other values, without some, with more."""
    liar.lie = damaged(liar.chance, 0.6)


async def wrong_acks(liar: Liar) -> None:
    """Acks of other streams, batches and sequences."""
    liar.lie = lambda body: liar.chance.choice((*s.PUB_ACKS, *s.INGEST, b"", b"+ACK", body))


async def forged_statuses(liar: Liar) -> None:
    """Messages and statuses on deliver subjects and pull inboxes that no server sends."""
    liar.delivers = liar.odd_deliveries


async def all_lies(liar: Liar) -> None:
    liar.lie = damaged(liar.chance, 0.3)
    liar.delivers = liar.odd_deliveries


async def empty_answers(liar: Liar) -> None:
    liar.lie = lambda body: b""


async def huge_answers(liar: Liar) -> None:
    """Answers of some MB."""
    big = json.dumps({"streams": [{"a": "x" * 1000}] * 3000, "total": 10**9}).encode()
    liar.lie = lambda body: big if liar.chance.random() < 0.3 else body


async def no_answers(liar: Liar) -> None:
    """The server answers only pings."""
    liar.answer(">", lambda _: None)


async def dead(liar: Liar) -> None:
    """It takes everything and says nothing after the greeting."""
    liar.answer(">", lambda _: None)

    async def die() -> None:
        await liar.wait_clients(1, 5)
        await asyncio.sleep(0.2)
        liar.answer_pings = False

    liar.later(die())


async def late_and_double(liar: Liar) -> None:
    """Every answer comes twice, and again after the client gave up."""
    ordinary = liar.reply_to

    def twice(request: Any) -> bytes | None:
        answer = ordinary(request)
        if answer is not None:
            client = liar.clients[request.connection]
            loop = asyncio.get_running_loop()
            loop.call_later(
                TIMEOUT * liar.chance.choice((0.5, 1.5)), lambda: client.up and client.write(answer)
            )
        return answer and (answer * 2 if liar.chance.random() < 0.7 else None)

    liar.answer(">", twice)


async def breaks_off(liar: Liar) -> None:
    """Each connection is cut inside an answer."""
    ordinary = liar.reply_to

    def cut(request: Any) -> bytes | None:
        answer = ordinary(request)
        if answer is None or liar.chance.random() > 0.2:
            return answer
        client = liar.clients[request.connection]
        client.write(answer[: liar.chance.randrange(len(answer))])
        client.close()
        return None

    liar.answer(">", cut)


async def not_protocol(liar: Liar) -> None:
    """Bytes that are not NATS between the answers."""
    ordinary = liar.reply_to
    noise = [
        b"MSG\r\n",
        b"\x00" * 50,
        b"HMSG a 1 9 5\r\n",
        b"PONG\r\n" * 50,
        b"+OK\r\n",
        b"-ERR 'x'\r\n",
        b"INFO {\r\n",
    ]

    def noisy(request: Any) -> bytes | None:
        answer = ordinary(request) or b""
        return answer + liar.chance.choice(noise) if liar.chance.random() < 0.3 else answer

    liar.answer(">", noisy)


async def to_others(liar: Liar) -> None:
    """Answers under ids of subscriptions that do not exist, or are others'."""
    ordinary = liar.reply_to

    def astray(request: Any) -> bytes | None:
        answer = ordinary(request)
        if answer is None or liar.chance.random() < 0.4:
            return answer
        sid = liar.chance.choice((b"0", b"1", b"2", b"3", b"99999", b"x"))
        return frame(request.reply or "", sid.decode(), b"$JS.API.STREAM.DELETE.S", b"", b"{}") + answer

    liar.answer(">", astray)


async def flood(liar: Liar) -> None:
    """Errors and pings without end."""

    async def pour() -> None:
        await liar.wait_clients(1, 5)
        while True:
            for client in liar.clients:
                if client.up and client.greeted and client.writable.is_set():
                    client.write(b"-ERR 'Permissions Violation for Publish to \"a.b\"'\r\nPING\r\n" * 20)
            await asyncio.sleep(0.01)

    liar.later(pour())


async def more_infos(liar: Liar) -> None:
    """The server sends one INFO after the other, and each differs."""
    sample = json.dumps(
        {"server_id": "X", "version": "2.15.1", "max_payload": 1048576, "headers": True}
    ).encode()

    async def tell() -> None:
        await liar.wait_clients(1, 5)
        while True:
            arguments = json_damaged(liar.chance, sample)
            urls = json.dumps([f"127.0.0.1:{liar.chance.randrange(1, 9)}" for _ in range(50)]).encode()
            for client in liar.clients:
                if client.up and client.greeted:
                    client.write(
                        b"INFO "
                        + arguments
                        + b"\r\n"
                        + b'INFO {"connect_urls":'
                        + json.dumps(urls).encode()
                        + b"}\r\n"
                    )
            await asyncio.sleep(0.05)

    liar.later(tell())


AFTER_CONNECT: dict[str, Scenario] = {
    "damaged answers": damaged_answers,
    "wrong acks": wrong_acks,
    "forged statuses": forged_statuses,
    "all lies": all_lies,
    "empty answers": empty_answers,
    "huge answers": huge_answers,
    "no answers": no_answers,
    "dead": dead,
    "late and double answers": late_and_double,
    "breaks off": breaks_off,
    "not protocol": not_protocol,
    "answers to others": to_others,
    "flood": flood,
    "more INFOs": more_infos,
}

INFO = json.dumps(
    {"server_id": "X", "version": "2.15.1", "proto": 1, "max_payload": 1048576, "headers": True}
).encode()


def greetings(chance: Random) -> dict[str, bytes]:
    """First lines that no server sends."""
    many = json.dumps([f"10.0.0.1:{port}" for port in range(1, 20_000)]).encode()
    return {
        "silence": b"",
        "no line end": b"INFO {",
        "not JSON": b"INFO {{{\r\n",
        "not an object": b"INFO [1]\r\n",
        "another protocol": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        "an INFO of 300 kB": b'INFO {"server_id":"' + b"x" * 300_000 + b'"}\r\n',
        "20,000 URLs": b'INFO {"connect_urls":' + many + b"}\r\n",
        "deep": b"INFO " + b"[" * 20_000 + b"\r\n",
        "an error": b"-ERR 'Authorization Violation'\r\n",
        "damaged": b"INFO " + json_damaged(chance, INFO) + b"\r\n",
        "bytes": bytes_damaged(chance, b"INFO " + INFO) + b"\r\n",
    }


async def run(options: Options) -> list[Outcome]:
    each = options.seconds / len(AFTER_CONNECT)
    outcomes = [await after_connect(name, AFTER_CONNECT[name], options.seed, each) for name in AFTER_CONNECT]
    chance = Random(options.seed)
    return [*outcomes, await at_connect(greetings(chance), options.seed), await endless(options.seed)]


async def after_connect(name: str, scenario: Scenario, seed: int, seconds: float = 0.0) -> Outcome:
    """One scenario, at least once and about for some seconds."""
    outcome, calls, background = Outcome("hostile", name, seed), Calls(), Background()
    asyncio.get_running_loop().set_exception_handler(background.handle)
    before = running_tasks()
    events: list[Any] = []
    chance, end = Random(f"{seed} {name}"), time.monotonic() + seconds
    rounds = 0
    while not rounds or time.monotonic() < end:
        rounds += 1
        async with Liar(chance) as liar:
            await scenario(liar)
            js = await calls.within(LIMIT, "connect", connect(liar, events))
            if isinstance(js, jsclient.JetStream):
                await run_all(js, calls)
                await calls.within(CLOSE, "close", js.close())
            liar.stop()
    await judge(outcome, calls, background, before)
    outcome.ran |= {"rounds": rounds, "events": len(events)}
    return outcome


async def connect(liar: Liar, events: list[Any]) -> Any:
    return await jsclient.connect(liar.url, on_event=events.append, **OPTIONS)


async def judge(outcome: Outcome, calls: Calls, background: Background, before: set[Any]) -> None:
    await asyncio.sleep(0.1)
    remaining = running_tasks() - before
    if remaining:
        await asyncio.wait(remaining, timeout=2)
    calls.judge(outcome)
    outcome.none_of("no task is left", [describe_task(task) for task in running_tasks() - before])
    outcome.none_of("no error in the background", [error[-300:] for error in background.unexpected])
    asyncio.get_running_loop().set_exception_handler(None)


async def at_connect(lines: dict[str, bytes], seed: int) -> Outcome:
    """`connect` ends, whatever it is greeted with."""
    outcome, calls, background = Outcome("hostile", "greetings", seed), Calls(), Background()
    asyncio.get_running_loop().set_exception_handler(background.handle)
    before = running_tasks()
    for name, line in lines.items():
        async with Liar(Random(seed), greeting=line) as liar:
            js = await calls.within(LIMIT, f"connect, greeted with {name}", connect(liar, []))
            if isinstance(js, jsclient.JetStream):
                await calls.within(CLOSE, f"close, greeted with {name}", js.close())
    await judge(outcome, calls, background, before)
    return outcome


async def endless(seed: int) -> Outcome:
    """A line, and a frame, that never end: the client leaves before it has read too much."""
    outcome = Outcome("hostile", "endless", seed)
    for name, start in {
        "line": b"MSG ",
        "frame": b"MSG a.b 1 4000000000\r\n",
        "header": b"HMSG a 1 9 99999999999\r\n",
    }.items():
        async with Liar(Random(seed)) as liar:
            js = await connect(liar, [])
            await liar.wait_clients(1)
            liar.send(start)
            started = time.monotonic()
            took = await asyncio.wait_for(liar.pour(b"x" * 65536, 64 << 20), 30)
            outcome.ran[name] = f"{took >> 20} MB in {time.monotonic() - started:.1f} s"
            outcome.check(f"an endless {name} is left", took <= PATIENCE, f"{took >> 10} kB were read")
            await asyncio.wait_for(js.close(), CLOSE)
    return outcome

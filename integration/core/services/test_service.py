"""A service: its start, its groups, its end. The answers to discovery are in `test_discovery.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.waiting import eventually
from jsclient import (
    ClosedError,
    ConfigError,
    InvalidNameError,
    NoRespondersError,
    Reconnected,
    RequestTimeoutError,
)

ROOT = Path(__file__).resolve().parents[3]


async def echo(request: Any) -> None:
    await request.respond(request.data)


async def test_endpoints_and_groups(core: Any, subject: str) -> None:
    async with core.add_service("orders", "1.2.3") as service:
        await service.add_endpoint("plain", echo, subject=subject)
        v1 = service.group(f"{subject}.v1")
        await v1.add_endpoint("bill", echo)
        await v1.group("eu", queue="eu").add_endpoint("ship", echo, subject="ship.*")
        await v1.add_endpoint("all", echo, queue="")
        for tail in ("", ".v1.bill", ".v1.eu.ship.42", ".v1.all"):
            assert (await core.request(f"{subject}{tail}", tail.encode())).data == tail.encode()
        shown = [(one.info.name, one.info.subject, one.info.queue_group) for one in service.endpoints]
        assert shown == [
            ("plain", subject, "q"),
            ("bill", f"{subject}.v1.bill", "q"),
            ("ship", f"{subject}.v1.eu.ship.*", "eu"),
            ("all", f"{subject}.v1.all", ""),
        ]
        assert (service.name, service.version, len(service.id)) == ("orders", "1.2.3", 22)
    with pytest.raises(NoRespondersError):
        await core.request(subject)
    with pytest.raises(ClosedError):
        await service.add_endpoint("late", echo)


async def test_instances_share_requests(js: Any, server: Any, connect: Any, subject: str) -> None:
    other = await connect(server)
    async with js.core.add_service("s", "1.0.0") as one, other.core.add_service("s", "1.0.0") as two:
        first, second = (
            await one.add_endpoint("e", echo, subject=subject),
            await two.add_endpoint("e", echo, subject=subject),
        )
        await other.core.flush()
        for _ in range(100):
            await js.core.request(subject)
        counts = [first.stats().num_requests, second.stats().num_requests]
    assert sum(counts) == 100
    assert min(counts) > 10


BAD_SERVICES = {
    "name": lambda core: core.add_service("a b", "1.0.0"),
    "version": lambda core: core.add_service("a", "1"),
    "metadata": lambda core: core.add_service("a", "1.0.0", metadata={"a": 1}),
    "queue": lambda core: core.add_service("a", "1.0.0", queue="a b"),
    "description": lambda core: core.add_service("a", "1.0.0", description=1),
    "reply_prefixes": lambda core: core.add_service("a", "1.0.0", reply_prefixes=["$SYS."]),
}


@pytest.mark.parametrize("name", BAD_SERVICES)
async def test_bad_services(js: Any, name: str) -> None:
    with pytest.raises(ConfigError):
        await BAD_SERVICES[name](js.core)


BAD_ENDPOINTS = {
    "name": ("a.b", echo, {}),
    "subject": ("a", echo, {"subject": "a b"}),
    "queue": ("a", echo, {"queue": "a b"}),
    "metadata": ("a", echo, {"metadata": {1: "a"}}),
    "handler": ("a", None, {}),
    "handler without an argument": ("a", lambda: None, {}),
    "concurrency": ("a", echo, {"concurrency": 0}),
    "max_pending": ("a", echo, {"max_pending": 0}),
}


@pytest.mark.parametrize("name", BAD_ENDPOINTS)
async def test_bad_endpoints(js: Any, name: str) -> None:
    endpoint, handler, options = BAD_ENDPOINTS[name]
    async with js.core.add_service("a", "1.0.0") as service:
        with pytest.raises(ConfigError):
            await service.add_endpoint(endpoint, handler, **options)
        assert service.endpoints == []
        with pytest.raises(InvalidNameError):
            service.group("a.>")


async def test_stop_answers_what_arrived(core: Any, subject: str) -> None:
    began = asyncio.Event()

    async def slow(request: Any) -> None:
        began.set()
        await asyncio.sleep(0.2)
        await request.respond(b"done")

    service = await core.add_service("s", "1.0.0")
    await service.add_endpoint("slow", slow, subject=subject, concurrency=2)
    requests = [asyncio.create_task(core.request(subject, timeout=30)) for _ in range(6)]
    await began.wait()
    await asyncio.gather(service.stop(), service.stop())
    assert [(await request).data for request in requests] == [b"done"] * 6
    assert service.is_closed
    with pytest.raises(NoRespondersError):
        await core.request(subject)


async def test_stop_too_late(js: Any, subject: str) -> None:
    cancelled = asyncio.Event()

    async def stuck(request: Any) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    service = await js.core.add_service("s", "1.0.0")
    endpoint = await service.add_endpoint("stuck", stuck, subject=subject)
    await js.core.publish(subject)
    await eventually(lambda: endpoint.pending == 0 and js.core is not None)
    await js.core.flush()
    with pytest.raises(RequestTimeoutError):
        await service.stop(timeout=0.1)
    assert cancelled.is_set()
    assert service.is_closed


async def test_stop_from_handler(js: Any, subject: str) -> None:
    async def last(request: Any) -> None:
        await service.stop()
        await request.respond(b"bye")

    service = await js.core.add_service("s", "1.0.0")
    await service.add_endpoint("last", last, subject=subject)
    assert (await js.core.request(subject)).data == b"bye"
    await eventually(lambda: service.is_closed)


async def test_ends_with_connection(server: Any, subject: str) -> None:
    async with jsclient.connect(server.url) as js:
        service = await js.core.add_service("s", "1.0.0")
        await service.add_endpoint("e", echo, subject=subject)
    assert service.is_closed


async def test_back_after_restart(own_server: Any, connect: Any, events: list[Any], subject: str) -> None:
    own = await own_server()
    js = await connect(own, **FAST)
    async with js.core.add_service("s", "1.0.0") as service:
        await service.add_endpoint("e", echo, subject=subject)
        await own.kill()
        await own.start()
        await wait_for_event(Reconnected, events)
        assert (await js.core.request(subject, b"x", timeout=30)).data == b"x"

        async def discovered() -> bool:
            return [one.id for one in await js.core.services("s")] == [service.id]

        await eventually(discovered, what="the instance")


async def test_instance_killed(server: Any, js: Any) -> None:
    """Ten instances in four processes, one killed: each request is answered once, or raises."""
    command = [sys.executable, "-m", "integration.core.services.kit", server.url]
    processes = [
        await asyncio.create_subprocess_exec(*command, str(count), stdout=asyncio.subprocess.PIPE, cwd=ROOT)
        for count in (3, 3, 2, 2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"

        async def answering(count: int) -> bool:
            """Whether so many instances answer. A question does not wait for a process that is late."""
            return len(await js.core.services("echo", timeout=3)) == count

        await eventually(lambda: answering(10), what="ten instances")
        outcomes: Counter[str] = Counter()
        instances: set[str] = set()
        replies: Counter[bytes] = Counter()

        async def client(first: int) -> None:
            for number in range(first, first + 200):
                data = b"%d" % number
                try:
                    reply = await js.core.request("echo", data, timeout=2)
                except (NoRespondersError, RequestTimeoutError) as error:
                    # The killed process had this request, or was not yet known to be gone.
                    outcomes[type(error).__name__] += 1
                else:
                    assert reply.data == data
                    replies[data] += 1
                    instances.add(reply.headers["Instance"])

        clients = [asyncio.create_task(client(1000 * number)) for number in range(20)]
        await eventually(lambda: sum(replies.values()) > 1000)
        os.kill(processes[0].pid, signal.SIGKILL)
        await asyncio.gather(*clients)
        assert sum(replies.values()) + sum(outcomes.values()) == 4000
        assert max(replies.values()) == 1
        assert sum(outcomes.values()) <= 3 * 64, "only what the killed instances had in hand"
        assert len(instances) == 10
        await eventually(lambda: answering(7), what="seven instances")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]  # its pipe is open otherwise

"""Services are discovered, by jsclient and by nats-py, and so are nats-py's."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import nats.micro
import pytest

from integration.kit.judge.waiting import eventually
from jsclient import InvalidNameError


async def echo(request: Any) -> None:
    await request.respond(request.data)


async def answers(ask: Callable[[], Awaitable[list[Any]]], count: int = 1) -> list[Any]:
    """The answers, once there are this many. A busy machine may need longer than a question waits, which is 1 s."""

    async def complete() -> list[Any] | None:
        results = await ask()
        return results if len(results) >= count else None

    results: list[Any] = await eventually(complete, what=f"{count} answers")
    return results


async def test_instances(core: Any, subject: str) -> None:
    options = {"description": "bills", "metadata": {"team": "a"}}
    async with (
        core.add_service(subject, "1.0.0", **options) as one,
        core.add_service(subject, "1.1.0") as two,
    ):
        await one.add_endpoint("e", echo, subject=subject, metadata={"format": "json"})
        await core.flush()
        infos = {info.id: info for info in await answers(lambda: core.services(subject), 2)}
        assert infos == {one.id: one.info(), two.id: two.info()}
        assert infos[one.id].metadata == {"team": "a"}
        (endpoint,) = infos[one.id].endpoints
        assert (endpoint.name, endpoint.subject, endpoint.metadata) == ("e", subject, {"format": "json"})

        async def among_all() -> bool:
            return {info.id for info in await core.services()} >= {one.id, two.id}

        await eventually(among_all, what="both among all services")
    assert await core.services(subject) == []


async def test_counters(core: Any, subject: str) -> None:
    async with core.add_service(subject, "1.0.0") as service:
        await service.add_endpoint("e", echo, subject=subject)
        service.add_stats_data(lambda stats: {"twice": 2 * stats.num_requests})
        await core.request(subject)
        await eventually(lambda: service.stats().endpoints[0].num_requests == 1)
        (stats,) = await answers(lambda: core.service_stats(subject))
        assert stats == service.stats()
        assert stats.endpoints[0].data == {"twice": 2}


async def test_own_subjects(js: Any, subject: str) -> None:
    async with js.core.add_service(subject, "1.0.0") as service:
        for verb, kind in (("PING", "ping"), ("INFO", "info"), ("STATS", "stats")):
            for tail in (f"{subject}", f"{subject}.{service.id}"):
                fields = json.loads((await js.core.request(f"$SRV.{verb}.{tail}")).data)
                assert fields["type"] == f"io.nats.micro.v1.{kind}_response"
                assert (fields["name"], fields["id"]) == (subject, service.id)


ODD = [
    b"",
    b"{}",
    b"null",
    b"[]",
    b"{",
    b"[" * 100_000,
    b"\xff\xfe",
    b'{"name": 1}',
    b'{"name": "s"}',
    b'{"id": "a"}',
    b'{"name": "a b", "id": "a"}',
    b'{"name": "another", "id": "a", "version": "1.0.0"}',
    b'{"name": "s", "id": "a", "endpoints": [null]}',
    b'{"name": "s", "id": "a", "endpoints": [{"name": 1}]}',
    b'{"name": "s", "id": "a", "metadata": {"a": 1}}',
    b'{"name": "s", "id": "a", "type": "io.nats.micro.v1.ping_response"}',
    b'{"name": "s", "id": "\\ud800"}',
]


async def test_odd_answers_passed_over(js: Any) -> None:
    """A client that may subscribe to $SRV may answer anything."""

    async def answer(request: Any) -> None:
        for data in ODD:
            await request.respond(data)

    async with (
        js.core.subscribe("$SRV.*.>", callback=answer),
        js.core.add_service("s", "1.0.0") as service,
    ):
        await js.core.flush()
        assert [info.id for info in await answers(lambda: js.core.services("s"))] == [service.id]
        assert [stats.id for stats in await answers(lambda: js.core.service_stats("s"))] == [service.id]


@pytest.mark.full
async def test_thousand_instances_answer(js: Any) -> None:
    """Each is returned once, also if it answers twice."""

    async def answer(request: Any) -> None:
        for number in range(2000):
            await request.respond(b'{"name": "s", "id": "%d", "version": "1.0.0"}' % (number % 1000))

    async with js.core.subscribe("$SRV.INFO.s", callback=answer):
        await js.core.flush()
        found = await js.core.services("s", timeout=30)
        assert [info.id for info in found] == [str(number) for number in range(1000)]


async def test_bad_name(js: Any) -> None:
    with pytest.raises(InvalidNameError):
        await js.core.services("a.b")


async def test_service_of_nats_py(js: Any, oracle: Any, subject: str) -> None:
    config = nats.micro.service.ServiceConfig(name=subject, version="1.0.0", metadata={"a": "b"})
    async with nats.micro.service.Service(oracle.nc, config) as service:

        async def refuse(request: Any) -> None:
            raise nats.micro.request.ServiceError("404", "none")

        await service.add_endpoint(name="e", subject=subject, handler=refuse)
        await oracle.nc.flush()
        (info,) = await answers(lambda: js.core.services(subject))
        assert (info.id, info.metadata, info.endpoints[0].subject) == (service.id, {"a": "b"}, subject)
        reply = await js.core.request(subject)
        assert (reply.error.code, reply.error.description) == (404, "none")
        (stats,) = await answers(lambda: js.core.service_stats(subject))
        assert (stats.endpoints[0].num_requests, stats.endpoints[0].num_errors) == (1, 1)


async def test_read_by_nats_py(js: Any, oracle: Any, subject: str) -> None:
    async with js.core.add_service(subject, "1.0.0", metadata={"a": "b"}) as service:
        await service.add_endpoint("e", echo, subject=subject)
        service.add_stats_data(lambda stats: None)
        await js.core.flush()
        info = json.loads((await oracle.nc.request(f"$SRV.INFO.{subject}")).data)
        theirs = nats.micro.service.ServiceInfo.from_dict(info)
        assert (theirs.id, theirs.endpoints[0].subject) == (service.id, subject)
        ping = json.loads((await oracle.nc.request(f"$SRV.PING.{subject}")).data)
        assert nats.micro.service.ServicePing.from_dict(ping).version == "1.0.0"
        assert (await oracle.nc.request(subject, b"x")).data == b"x"

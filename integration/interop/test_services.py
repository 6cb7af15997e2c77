"""Other clients discover and call the services of jsclient, and jsclient calls the services of other clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.interop.nats_py import nats_py
from integration.interop.other_client import SERVICE_CLIENTS, Answer, ClientNamed, Instance, OtherClient
from integration.kit.judge.waiting import eventually
from jsclient import CoreMessage, ServiceError

# The services of nats-py 2.16 take their start time from a function that Python 3.12 deprecates.
pytestmark = pytest.mark.filterwarnings(
    "ignore:datetime.datetime.utcnow:DeprecationWarning:nats.micro.service"
)


@pytest.fixture(params=SERVICE_CLIENTS)
async def theirs(request: pytest.FixtureRequest, client_named: ClientNamed) -> AsyncIterator[OtherClient]:
    async with client_named(request.param) as client:
        yield client


async def echo(request: CoreMessage) -> None:
    if not request.data:
        raise ServiceError(404, "nothing to answer")
    await request.respond(request.data)


@pytest.mark.covers("I20")
async def test_ours(js: Any, theirs: Any, name: str) -> None:
    """They find the service, its texts and counters, and read its answers and errors."""
    options = {"description": "an echo", "metadata": {"team": "a"}}
    async with js.core.add_service(name, "1.2.3", **options) as service:
        await service.add_endpoint("echo", echo, subject=f"{name}.echo")
        await js.core.flush()
        assert await theirs.services(name) == [
            Instance(name, service.id, "1.2.3", {"team": "a"}, [f"{name}.echo"])
        ]
        assert await theirs.request(f"{name}.echo", b"1") == Answer(b"1")
        assert await theirs.request(f"{name}.echo", b"") == Answer(b"", 404, "nothing to answer")
        await eventually(lambda: service.stats().endpoints[0].num_requests == 2)
        assert await theirs.counters(name) == [(2, 1)]


@pytest.mark.covers("I20")
async def test_theirs(js: Any, theirs: Any, name: str) -> None:
    """jsclient finds their service, its texts and counters, and reads its answers and errors."""
    instance = await theirs.add_service(name, f"{name}.echo", {"team": "a"})
    (info,) = await js.core.services(name)
    assert (info.name, info.id, info.version, info.description, info.metadata) == (
        name, instance, "1.2.3", "an echo", {"team": "a"},
    )  # fmt: skip
    (endpoint,) = info.endpoints
    assert (endpoint.name, endpoint.subject, endpoint.queue_group) == ("echo", f"{name}.echo", "q")
    assert endpoint.metadata == {"format": "bytes"}
    assert (await js.core.request(f"{name}.echo", b"1")).data == b"1"
    reply = await js.core.request(f"{name}.echo", b"")
    assert (reply.error.code, reply.error.description) == (404, "nothing to answer")

    async def counted() -> Any:
        (stats,) = await js.core.service_stats(name)
        return (stats.id, stats.endpoints[0].num_requests) == (instance, 2)

    await eventually(counted)
    await theirs.stop_service(instance)
    assert await js.core.services(name) == []


@pytest.mark.covers("I20")
async def test_instances_of_both(js: Any, javascript: Any, server: Any, name: str) -> None:
    """Three clients run one service: each discovery finds the three instances, and they share the requests."""
    async with nats_py(server) as python, js.core.add_service(name, "1.2.3") as ours:
        await ours.add_endpoint("echo", echo, subject=f"{name}.echo")
        await js.core.flush()
        ids = {ours.id} | {
            await other.add_service(name, f"{name}.echo", {"team": "a"}) for other in (javascript, python)
        }
        assert {info.id for info in await js.core.services(name)} == ids
        assert {one.id for one in await javascript.services(name)} == ids
        for _ in range(60):
            assert (await js.core.request(f"{name}.echo", b"1")).data == b"1"
        stats = await js.core.service_stats(name)
        counts = [one.endpoints[0].num_requests for one in stats]
        assert sum(counts) == 60
        assert min(counts) > 0

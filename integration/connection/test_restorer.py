"""A lost connection is restored after any error, and says meanwhile why there is none."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.waiting import eventually, within
from jsclient import Disconnected, ErrorRaised, Reconnected
from jsclient._runtime.connection.restorer import Restorer

REFUSED = "Connect call failed|Connection refused"  # asyncio, uvloop


async def test_error_that_no_server_causes_does_not_end_the_attempts(
    connect: Any, proxy: Any, events: list[Any], background: Any
) -> None:
    """A subscription that cannot be written fails each attempt. It is reported, and the attempts continue."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    subscriptions = js._connection.subscriptions
    odd = subscriptions.add("\ud800", "")
    tap.cut()
    event = await wait_for_event(ErrorRaised, events)
    assert "UnicodeEncodeError" in str(event)
    assert not js.is_connected
    subscriptions.remove(odd)
    await wait_for_event(Reconnected, events)
    await js.account_info()
    assert len(of(Disconnected, events)) == 1


async def test_reason_names_the_loss_and_the_newest_attempt(connect: Any, proxy: Any) -> None:
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    restorer = js._connection._restorer
    assert isinstance(restorer, Restorer)
    assert str(restorer) == ""
    tap.refuse()
    tap.cut()
    await eventually(lambda: re.search(REFUSED, str(restorer)), what="an attempt that failed")
    assert str(restorer).startswith("the connection was lost (")
    with pytest.raises(Exception, match=REFUSED):
        await js.core.publish("a", b"")
    await tap.accept()
    await eventually(lambda: js.is_connected, what="the connection")


async def test_clients_that_lose_their_server_together_return_one_after_another(
    connect: Any, proxy: Any, background: Any
) -> None:
    """The first attempts are spread over `reconnect_time_wait`, and none is made before its time."""
    tap = await proxy()
    clients = [await connect(tap, reconnect_time_wait=1.0) for _ in range(12)]
    tap.cut()
    returns: dict[int, float] = {}

    def all_back() -> bool:
        for number, js in enumerate(clients):
            if js.is_connected and js.stats().reconnects and number not in returns:
                returns[number] = asyncio.get_running_loop().time()
        return len(returns) == len(clients)

    await eventually(all_back, what="all clients")
    times = [js._connection._connector.pool._not_before for js in clients]
    assert max(times) - min(times) > 0.3
    assert all(returns[number] >= time for number, time in enumerate(times))


async def test_reconnect_waits_for_nothing(connect: Any, server: Any) -> None:
    js = await connect(server, reconnect_time_wait=600.0)
    for _ in range(4):
        await within(30, js.reconnect(), "a reconnect")

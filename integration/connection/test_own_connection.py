"""The connection from the socket up: what it carries through reconnects, and what it leaves when it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

from integration.kit.clients.readers import PATIENT
from integration.kit.judge.leaks import describe_task, running_tasks
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient import Disconnected, Reconnected
from jsclient._runtime.connection.tcp_transport import TcpTransport


async def test_everything_works_end_to_end(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """Publish, push, pull, ordered, headers, reconnect, drain, close."""
    tap = await proxy()
    js = await connect(tap, **PATIENT, name="own")
    push = await js.subscribe(stream.all, durable="push")
    ordered = await js.subscribe(stream.all, ordered=True)
    psub = await js.pull_subscribe(stream.all, durable="pull")
    reader = psub.messages(max_messages=10)
    for round_ in range(3):
        for number in range(1, 11):
            data = str(round_ * 10 + number).encode()
            ack = await js.publish(stream.subject("x"), data, headers={"A": "b"}, msg_id=data.decode())
            assert (ack.stream, ack.seq) == (stream.name, round_ * 10 + number)
        expected = list(range(round_ * 10 + 1, round_ * 10 + 11))
        for source in (push, ordered, reader):
            messages = await take(source, 10)
            assert numbers(messages) == expected
            assert {message.headers["A"] for message in messages} == {"b"}
            if source is not ordered:
                for message in messages:
                    await message.ack_sync()
        tap.cut()
        await eventually(lambda: len(of(Reconnected, events)) == round_ + 1, what="the reconnect")  # noqa: B023
    assert len(of(Disconnected, events)) == 3
    await reader.stop()
    await push.drain()
    await ordered.drain()
    await psub.unsubscribe()
    assert await stream.consumer_names() == []
    await js.close()
    assert js.is_closed


async def test_lost_cancellation_ends(proxy: Any, connect: Any, monkeypatch: Any, events: list[Any]) -> None:
    """R12: `asyncio.wait_for` of Python 3.11 gives a result that comes together with a cancellation."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    tries: list[int] = []

    async def stubborn(*_: Any) -> None:
        tries.append(1)
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass
        raise OSError("no way")

    monkeypatch.setattr(TcpTransport, "connect", stubborn)
    tap.cut()
    await wait_for_event(Disconnected, events)
    await eventually(lambda: len(tries) > 1, what="attempts")
    await js.close()
    created = len(tries)
    await asyncio.sleep(0.3)
    assert len(tries) <= created + 1


async def test_connection_lost_after_handshake(
    proxy: Any, connect: Any, monkeypatch: Any, events: list[Any]
) -> None:
    """The server ends it before it has confirmed the subscriptions, three times. None of them counts as restored."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    sub = await js.core.subscribe("lost.after")
    deliver, lost = TcpTransport.deliver_to, []

    def lose(transport: TcpTransport, *arguments: Any) -> None:
        if len(lost) < 3:
            lost.append(1)
            transport.abort()
        deliver(transport, *arguments)

    monkeypatch.setattr(TcpTransport, "deliver_to", lose)
    tap.cut()
    await wait_for_event(Reconnected, events)
    assert (len(lost), len(of(Reconnected, events)), len(of(Disconnected, events))) == (3, 1, 1)
    await js.core.publish("lost.after", b"x")
    assert (await sub.next(timeout=5)).data == b"x"
    assert [describe_task(task) for task in running_tasks() if "reconnect" in task.get_name()] == []


def test_import_loads_no_nats_py() -> None:
    """It is needed for `JetStream(nc)` only."""
    script = (
        "import sys, jsclient; jsclient.connect; print(*[name for name in sys.modules if name[:4] == 'nats'])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []

"""A stream that is restored from an older copy and has grown past a reader's position again is read from its start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_CLIENT, Frame

QUICK = jsclient.ConsumerConfig(idle_heartbeat=0.25)


class Scene:
    """A reader that has read 20 messages, of ten of which there is a copy."""

    def __init__(self, server: Any, stream: OwnStream, tap: Proxy, files: Path, reader: Any) -> None:
        self.server, self.stream, self.tap, self.reader = server, stream, tap, reader
        self._files = files

    async def restore(self, more: int) -> None:
        """Put the copy back, and store ``more`` messages before the reader returns."""
        self.tap.refuse()

        def put_back() -> None:
            shutil.rmtree(self._files)
            shutil.copytree(self._files.with_name("copy"), self._files)

        await stopped(self.server, put_back)
        await self.stream.publish(more, first=101)
        await self.tap.accept()

    async def read(self, last: int) -> list[int]:
        """Read the numbers up to the last."""
        results: list[int] = []
        while not results or results[-1] != last:
            message = await within(30, self.reader.next(timeout=30), f"message {last} after {results}")
            results.append(int(message.data))
        return results


async def stopped(server: Any, work: Callable[[], object]) -> None:
    await server.stop()
    work()
    await server.start()


@pytest.fixture(params=["push", "pull"])
async def scene(
    request: Any, own_server: Any, oracle_for: Any, proxy: Any, connect: Any, tmp_path: Path
) -> Scene:
    files = tmp_path / "files"
    server = await own_server(store_dir=files)
    stream = await OwnStream.create(await oracle_for(server), "restored", storage="file")
    await stream.publish(10)
    await stopped(server, lambda: shutil.copytree(files, files.with_name("copy")))
    await stream.publish(10, first=11)
    tap = await proxy(server)
    js = await connect(tap, **FAST)
    reader = (
        await js.subscribe(stream.all, ordered=True, config=QUICK)
        if request.param == "push"
        else await js.ordered_consumer(stream.name)
    )
    created = Scene(server, stream, tap, files, reader)
    assert await created.read(20) == [*range(1, 21)]
    return created


NEW = [*range(1, 11), *range(101, 116)]


async def test_grown_before_reader_is_back(scene: Scene, events: list[Any]) -> None:
    """Nothing in the stream's state shows it: its end is after the position."""
    await scene.restore(more=15)
    reset = await wait_for_event(jsclient.StreamReset, events, timeout=20)
    assert reset.stream_seq == 25
    actual = await scene.read(115)
    while len(actual) < len(NEW):
        actual += await scene.read(115)
    assert actual[-len(NEW) :] == NEW
    assert len(of(jsclient.StreamReset, events)) == 1


@pytest.mark.core_cases(1)
async def test_grown_while_in_doubt(scene: Scene, events: list[Any]) -> None:
    """Its end is before the position at first, which may be the answer of a former leader."""

    def with_replicas(frame: Frame) -> bytes:
        answer = json.loads(frame.payload)
        answer["config"]["num_replicas"] = 3
        return frame.but(payload=json.dumps(answer).encode()).raw

    requests = scene.tap.modify_frames(
        lambda frame: frame.direction == TO_CLIENT and b"stream_info_response" in frame.payload, with_replicas
    )
    await scene.restore(more=0)
    await eventually(lambda: requests.count >= 2, 20, "the end of the stream is asked again")
    assert not of(jsclient.StreamReset, events)
    await scene.stream.publish(15, first=101)
    await wait_for_event(jsclient.StreamReset, events, timeout=20)
    actual = await scene.read(115)
    while len(actual) < len(NEW):
        actual += await scene.read(115)
    assert actual[-len(NEW) :] == NEW


async def test_same_stream_read_on(scene: Scene, events: list[Any]) -> None:
    """The server was only restarted, so no message is read twice."""
    scene.tap.refuse()
    await stopped(scene.server, lambda: None)
    await scene.stream.publish(5, first=21)
    await scene.tap.accept()
    assert await scene.read(25) == [21, 22, 23, 24, 25]
    await scene.tap.wait_for(lambda frame: "STREAM.MSG.GET" in (frame.subject or ""), 10)
    await scene.stream.publish(1, first=26)
    assert await scene.read(26) == [26]
    assert not of(jsclient.StreamReset, events)

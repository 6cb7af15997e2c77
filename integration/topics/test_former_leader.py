"""A leader that was cut off answers with what it had until it hears of its successor: no reader goes back in time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from integration.kit.judge.waiting import eventually, within
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_CLIENT, Frame


def answer_type(frame: Frame) -> str:
    if frame.direction != TO_CLIENT or not frame.payload.startswith(b"{"):
        return ""
    try:
        return str(json.loads(frame.payload).get("type", "")).rpartition(".")[2]
    except ValueError:
        return ""


def about(answer: bytes) -> str:
    return str(json.loads(answer).get("message", {}).get("subject"))


class FormerLeader:
    """Answers requests for stored messages with the state of an earlier moment, for a stream that seems replicated."""

    def __init__(self, proxy: Proxy) -> None:
        self.old: bytes | None = None
        self.given = 0
        proxy.modify_frames(lambda frame: answer_type(frame) == "stream_info_response", self._replicated)
        proxy.modify_frames(lambda frame: answer_type(frame) == "stream_msg_get_response", self._stale)

    @staticmethod
    def _replicated(frame: Frame) -> bytes:
        answer = json.loads(frame.payload)
        answer["config"]["num_replicas"] = 3
        return frame.but(payload=json.dumps(answer).encode()).raw

    def _stale(self, frame: Frame) -> bytes:
        if self.old is None or about(self.old) != about(frame.payload):
            return frame.raw
        self.given += 1
        return frame.but(payload=self.old).raw


async def message_answer(oracle: Any, stream: str, subject: str) -> bytes:
    """The answer about the newest message of a subject, as it is now."""
    answer = await oracle.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    return json.dumps({**answer, "type": "io.nats.jetstream.api.v1.stream_msg_get_response"}).encode()


async def test_latest_never_goes_back(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream()
    between = await proxy()
    former = FormerLeader(between)
    js = await connect(between.url)
    subject = stream.subject("a")
    await js.publish(subject, b"1")
    old = await message_answer(oracle, stream.name, subject)
    await js.publish(subject, b"2")
    reader = js.topic(subject).latest(quiet=0.5)
    assert (await within(10, reader.next(), "the newest record")).data == b"2"
    former.old = old
    current = asyncio.create_task(reader.current())
    await eventually(lambda: former.given >= 3, 10, "the former leader is asked again")
    assert not current.done()
    former.old = None
    assert (await within(10, current, "the successor's answer")).data == b"2"
    await oracle.delete_message(stream.name, 2)
    assert (await within(20, reader.current(), "the record before the one that was deleted")).data == b"1"
    await reader.close()


async def test_table_never_goes_back(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream()
    between = await proxy()
    former = FormerLeader(between)
    js = await connect(between.url)
    subject = stream.subject("a")
    await js.publish(subject, b"1")
    old = await message_answer(oracle, stream.name, subject)
    for data in (b"2", b"3"):
        await js.publish(subject, data)
    await js.publish(stream.subject("b"), b"newest of all")
    async with js.topic(stream.all).table(check=0.2) as table:
        assert table[subject].data == b"3"
        changes = table.changes()
        former.old = old
        await oracle.delete_message(stream.name, 3)  # so that the table is compared
        await eventually(lambda: former.given, 10, "the former leader is asked about the subject")
        assert table[subject].data == b"3"
        former.old = None
        change = await within(20, changes.next(), "the successor's answer")
        assert (change.record.data, table[subject].data) == (b"2", b"2")

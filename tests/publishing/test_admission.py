"""Who may publish next while the window is full."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jsclient import ConfigError, PublishesFailedError
from jsclient._runtime.publish import header_of_ids
from jsclient.errors import (
    ClosedError,
    JetStreamError,
)
from jsclient.protocol.wire.headers import encode_headers, publish_headers
from jsclient.publishing.admission import Gate
from tests.publishing.kit import add_outbox, answer, published, refuse
from tests.support.fake import connected
from tests.support.virtual import settle, virtual


@virtual
async def test_gate_admits_in_order():
    limit = 2
    in_flight: list[str] = []
    gate = Gate(lambda count, _: len(in_flight) + count <= limit)

    async def enter(name: str) -> None:
        waiter = await gate.enter(name, 1, 1e9, 1e9)
        in_flight.append(name)
        gate.leave(waiter)
        gate.admit()

    tasks = [asyncio.ensure_future(enter(name)) for name in "abcdef"]
    await settle()
    assert in_flight == ["a", "b"]
    tasks[3].cancel()
    limit = 4
    gate.admit()
    await settle()
    assert in_flight == ["a", "b", "c", "e"]
    assert (gate.busy, gate.waiting) == (True, 1)
    gate.refuse(lambda waiter: ClosedError(waiter.subject))
    await settle()
    assert [type(task.exception()) for task in tasks if not task.cancelled()] == [type(None)] * 4 + [
        ClosedError
    ]
    assert not gate.busy


@virtual
async def test_admitted_keeps_turn():
    open_ = True
    through: list[str] = []
    gate = Gate(lambda count, _: open_ and count <= 3)

    async def enter(name: str) -> None:
        waiter = await gate.enter(name, 1, 1e9, 1e9)
        through.append(name)
        gate.admit()
        gate.leave(waiter)

    open_ = False
    tasks = [asyncio.ensure_future(enter(name)) for name in "abcd"]
    await settle()
    open_ = True
    gate.admit()  # a, b and c are let in
    open_ = False  # but before they run the connection is lost
    late = asyncio.ensure_future(enter("e"))
    await settle()
    assert through == []
    open_ = True
    gate.admit()
    await asyncio.gather(*tasks, late)
    assert through == ["a", "b", "c", "d", "e"]


@virtual
async def test_failed_future_freed():
    """Its error refers to no frame that refers to it, so no object waits for the garbage collector."""
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            futures = [weakref.ref(await pub.publish("a")) for _ in range(3)]
            await settle()
            first, second, third = published(connection)
            gc.disable()
            try:
                refuse(connection, first)
                answer(connection, second, b"nonsense")
                answer(connection, third)
                assert [ref() is None for ref in futures] == [False, False, True]
                with pytest.raises(PublishesFailedError):
                    await pub.flush()
                assert [ref() is None for ref in futures] == [True, True, True]
            finally:
                gc.enable()


def test_error_for_each_and_one_for_all():
    error = PublishesFailedError([(f"s.{n}", JetStreamError(f"e{n}")) for n in range(5)], 2)
    assert str(PublishesFailedError([], 2)) == "2 publishes failed, which PublishFailed events have reported"
    assert str(error) == (
        "7 publishes failed: 's.0': e0; 's.1': e1; 's.2': e2; and 2 more; "
        "2 earlier ones were reported as PublishFailed events"
    )


@given(st.text(), st.none() | st.text())
@example("a b", "c:1")
@example("a\r\nX: 1", None)
@example("a", "b\r\n")
@example("a", "")
@example(" a", "b ")
def test_fast_id_headers_equal(msg_id: str, after: str | None):
    def result_of(make):
        try:
            return make()
        except ConfigError as error:
            return str(error)

    long = result_of(lambda: encode_headers(publish_headers(msg_id=msg_id, expected_last_msg_id=after)))
    assert result_of(lambda: header_of_ids(msg_id, after)) == long

"""Mistakes with an open connection: each error names what was meant, and what to do."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import jsclient
from integration.connection.test_mistakes import refusal, says
from integration.kit.judge.streams import OwnStream


@pytest.mark.parametrize("direct", [False, True])
async def test_missing_message_named(js: Any, stream: OwnStream, direct: bool) -> None:
    await js.publish(stream.subject("a"))
    handle = await js.ensure_stream(stream.name, [stream.all], on_drift="update", allow_direct=True)
    where = f"stream '{stream.name}': no message found"
    error = await refusal(handle.get_message(99, direct=direct))
    assert isinstance(error, jsclient.MessageNotFoundError)
    assert (error.stream, error.err_code) == (stream.name, 10037)
    says(error, f"{where} with sequence 99", "Stream.info")
    subject = stream.subject("b")
    error = await refusal(handle.get_last_message(subject, direct=direct))
    says(error, f"{where} on subject '{subject}' (code", "check the subject", "Stream.subjects")
    error = await refusal(handle.get_next_message(stream.subject("a"), 2, direct=direct))
    says(error, f"{where} on subject '{stream.subject('a')}' from sequence 2 on")


async def test_wrong_expectation_says_what_to_do(js: Any, stream: OwnStream) -> None:
    subject = stream.subject("a")
    await js.publish(subject)
    for expected in ({"expected_last_seq": 7}, {"expected_last_subject_seq": 7}):
        error = await refusal(js.publish(subject, **expected))
        assert isinstance(error, jsclient.WrongLastSequenceError)
        says(
            error,
            "wrong last sequence: 1",
            f"publish to '{subject}'",
            "nothing was stored",
            "read the newest one",
            "expect its sequence",
        )


async def test_timeout_of_a_push_reader_checked(js: Any, stream: OwnStream) -> None:
    reader = await js.subscribe(stream.all)
    for value in ("3", True, float("nan")):
        error = await refusal(reader.next(timeout=value))
        assert isinstance(error, jsclient.ConfigError)
        says(error, f"timeout is {value!r}: a number of seconds or None is needed")


async def test_milliseconds_logged(js: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if "looks like milliseconds" in one.getMessage()]

    config = jsclient.ConsumerConfig(ack_wait=30_000)
    await js.pull_subscribe(stream.all, durable="w", delete_on_close=False, config=config)
    assert len(lines()) == 1
    assert lines()[0].endswith(f"(consumer 'w' of stream '{stream.name}')")
    handle = await js.stream(stream.name)
    await handle.create_consumer(durable_name="v", ack_wait=30_000)
    assert len(lines()) == 2
    await handle.create_consumer(durable_name="u", ack_wait=30)
    assert len(lines()) == 2


async def test_nak_without_effect_logged_once(
    js: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        await js.publish(stream.subject("a"))
    readers = [
        await js.subscribe(stream.all, ordered=True),
        await js.subscribe(stream.all, config=jsclient.ConsumerConfig(ack_policy="none")),
        await (await js.stream(stream.name)).create_consumer(name="n", ack_policy="none"),
    ]
    for reader in readers:
        caplog.clear()
        for number in range(3):
            message = await reader.next(timeout=10)
            await message.ack()
            if number:
                await message.nak()
        [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert "nak of <Message" in record.getMessage()
        assert 'ack_policy="explicit"' in record.getMessage()


async def test_handler_that_was_called(js: Any, stream: OwnStream) -> None:
    async def handle(message: jsclient.Message) -> None:
        await message.ack()

    reader = await js.pull_subscribe(stream.all)
    called = handle(None)  # type: ignore[arg-type]
    with pytest.raises(jsclient.ConfigError) as caught:
        reader.run(called)  # type: ignore[arg-type]
    called.close()
    says(caught.value, "handler is coroutine", "it was called: give the function itself, without ()")


async def test_too_large_says_what_to_do(js: Any, stream: OwnStream) -> None:
    error = await refusal(js.publish(stream.subject("a"), bytes(2_000_000)))
    assert isinstance(error, jsclient.MaxPayloadError)
    says(error, "2000000 bytes", "at most 1048576", "send less", "raise max_payload of the server")

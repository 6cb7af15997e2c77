"""A newcomer's mistakes: each error says what was wrong, with its name, and what to do, without chained noise."""

from __future__ import annotations

import asyncio
import copy
import pickle
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient import ConsumerConfig, StreamConfig
from jsclient.models import StreamSource

Attempt = Callable[[Any, OwnStream], Awaitable[Any]]


async def refusal(attempt: Awaitable[Any]) -> BaseException:
    """The error. No other output appears with it."""
    with pytest.raises((jsclient.JetStreamError, TypeError)) as caught:
        await attempt
    error: BaseException = caught.value
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    assert not getattr(error, "__notes__", [])
    return error


def says(error: BaseException, *words: str) -> None:
    text = str(error)
    assert [word for word in words if word not in text] == [], text


# --- names of streams and consumers --------------------------------------------------------------------------


async def test_missing_stream_named(js: Any) -> None:
    for attempt in (js.stream("NOPE"), js.delete_stream("NOPE"), js.update_stream("NOPE", ["nope"])):
        error = await refusal(attempt)
        assert isinstance(error, jsclient.StreamNotFoundError)
        says(error, "stream 'NOPE' not found")


async def test_missing_consumer_named(js: Any, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    error = await refusal(handle.consumer("w"))
    assert isinstance(error, jsclient.ConsumerNotFoundError)
    says(error, f"consumer 'w' of stream '{stream.name}' not found")


async def test_missing_message_names_stream(js: Any, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    says(await refusal(handle.get_message(99)), f"stream '{stream.name}': no message found")


async def test_deleted_consumer_named(js: Any, stream: OwnStream) -> None:
    reader = await js.pull_subscribe(stream=stream.name, durable="w")
    reading = asyncio.ensure_future(reader.next(timeout=30))
    await stream.until_asked("w")
    await (await js.stream(stream.name)).delete_consumer("w")
    error = await refusal(reading)
    assert isinstance(error, jsclient.ConsumerDeletedError)
    says(error, f"consumer 'w' of stream '{stream.name}' was deleted", "create it again")


async def test_existing_stream_says_what_differs(js: Any, stream: OwnStream) -> None:
    error = await refusal(js.create_stream(stream.name, ["other.subject"], max_age=60))
    assert isinstance(error, jsclient.StreamExistsError)
    says(error, stream.name, "subjects: wanted ['other.subject'], found", "max_age", "ensure_stream")


async def test_overlap_names_other_stream(
    js: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsclient._runtime.refusals._TIMEOUT", 30.0)  # of the question that finds the name
    subject = stream.all
    says(await refusal(js.create_stream("OVERLAP", [subject])), stream.name, repr(subject), "overlap")


async def test_other_filter_of_durable(js: Any, stream: OwnStream) -> None:
    await js.pull_subscribe(stream.subject("a"), durable="w")
    error = await refusal(js.pull_subscribe(stream.subject("b"), durable="w"))
    assert isinstance(error, jsclient.SubjectMismatchError)
    says(error, "subject mismatch", "leave out the subject", "another durable name")


async def test_drift_says_how_to_update(js: Any, stream: OwnStream) -> None:
    error = await refusal(js.ensure_stream(stream.name, max_msgs=11))
    says(error, 'update the stream with ensure_stream(..., on_drift="update")')
    handle = await js.stream(stream.name)
    await handle.create_consumer(durable_name="w")
    error = await refusal(handle.ensure_consumer(durable_name="w", max_deliver=7))
    says(error, 'update the consumer with ensure_consumer(..., on_drift="update")')


async def test_missing_dead_letter_stream(js: Any, stream: OwnStream) -> None:
    reader = await js.pull_subscribe(stream.all)
    error = await refusal(reader.run(print, dead_letter="no.stream.has.this"))
    assert isinstance(error, jsclient.NoMatchingStreamError)
    says(error, "dead_letter is 'no.stream.has.this'", "no stream has this subject", "create one")


async def test_publish_from_a_plain_handler(js: Any, stream: OwnStream) -> None:
    """It runs in a thread with a separate event loop."""
    with pytest.raises(jsclient.WrongLoopError) as caught:
        await asyncio.to_thread(lambda: asyncio.run(later_publish(js, stream.subject("x"))))
    says(caught.value, "another event loop", "asyncio.run_coroutine_threadsafe")


async def later_publish(js: Any, subject: str) -> None:
    await js.publish(subject, b"")


async def test_publish_without_a_server(own_server: Any) -> None:
    own = await own_server(config={})
    async with jsclient.connect(own.url, timeout=0.5) as js:
        await own.stop()
        await eventually(lambda: not js.is_connected, what="the loss")
        for options in ({}, {"msg_id": "1"}):
            error = await refusal(js.publish("x", b"", **options))
            assert isinstance(error, jsclient.RequestTimeoutError)
            says(error, "publish: nothing was sent: not connected to a server within 0.5 s")


# --- arguments ----------------------------------------------------------------------------------------------


async def test_field_with_wrong_name(js: Any, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    attempts: dict[str, Callable[[], Awaitable[Any]]] = {
        "StreamConfig has no field 'subject'; did you mean 'subjects'?": lambda: js.create_stream(
            "X", subject="x"
        ),
        "ConsumerConfig has no field 'durable'; did you mean 'durable_name'?": lambda: handle.create_consumer(
            durable="w"
        ),
        "StreamConfig has no field 'wholly_else'": lambda: js.ensure_stream("X", wholly_else=1),
        "StreamConfig has no field 'subjcts'; did you mean 'subjects'?": lambda: later(
            StreamConfig, subjcts=["x"]
        ),
        "StreamSource has no field 'nam'; did you mean 'name'?": lambda: later(StreamSource, nam="x"),
        "ConsumerConfig has no field 'ackwait'; did you mean 'ack_wait'?": lambda: later(
            js.topic("a").work, "g", ackwait=1
        ),
    }
    for text, attempt in attempts.items():
        with pytest.raises(TypeError) as caught:
            await attempt()
        says(caught.value, text)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def later(call: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    return call(*args, **fields)


async def test_names_of_nats_py(js: Any, server: Any) -> None:
    for wrong, right in {"cb": "callback", "durable_name": "durable", "manual_ack": "auto_ack"}.items():
        with pytest.raises(TypeError) as caught:
            await js.subscribe("x", **{wrong: print})
        says(caught.value, repr(wrong), f"{right}=")
    for wrong, right in {
        "error_cb": "on_event",
        "reconnected_cb": "on_event",
        "max_reconnect_attempts": "without limit",
        "usr": "user",
        "server": "did you mean 'servers'?",
    }.items():
        error = await refusal(jsclient.connect(server.url, **{wrong: 1}))
        assert isinstance(error, jsclient.ConfigError)
        says(error, repr(wrong), right)


async def test_unknown_argument_names_the_method(js: Any, stream: OwnStream) -> None:
    """It named a function of the library, of which the user knows nothing."""
    reader = await js.pull_subscribe(stream=stream.name, durable="w")
    push = await js.subscribe(stream.all)
    consumer = await (await js.stream(stream.name)).consumer("w")
    attempts: dict[str, Callable[[], Any]] = {
        "run() has no argument 'max_retries'; did you mean 'max_deliver'?": lambda: reader.run(
            print, max_retries=3
        ),
        "run() has no argument 'concurency'; did you mean 'concurrency'?": lambda: push.run(
            print, concurency=3
        ),
        "fetch() has no argument 'expire'; did you mean 'expires'?": lambda: reader.fetch(1, expire=1),
        "next() has no argument 'expires'": lambda: consumer.next(expires=1),
        "next() has no argument 'timeot'; did you mean 'timeout'?": lambda: reader.next(timeot=1),
        "messages() has no argument 'max_message'; did you mean 'max_messages'?": lambda: later(
            reader.messages, max_message=1
        ),
        "messages() has no argument 'priorty'; did you mean 'priority'?": lambda: later(
            consumer.messages, priorty=1
        ),
    }
    for text, attempt in attempts.items():
        with pytest.raises(TypeError) as caught:
            await attempt()
        says(caught.value, text)
    await push.unsubscribe()


async def test_signals_that_are_not_a_list(js: Any, stream: OwnStream) -> None:
    reader = await js.pull_subscribe(stream=stream.name, durable="w")
    for wrong in (signal.SIGTERM, ["SIGTERM"], "SIGTERM", None, [True]):
        with pytest.raises(jsclient.ConfigError) as caught:
            reader.run(print, stop_signals=wrong)
        says(caught.value, f"stop_signals is {wrong!r}", "[signal.SIGTERM]")


async def test_payloads_that_are_one_payload(js: Any, stream: OwnStream) -> None:
    for wrong in (b"abc", "abc", 7):
        error = await refusal(js.publish_many(stream.subject("x"), wrong))
        assert isinstance(error, jsclient.ConfigError)
        says(error, f"payloads is {type(wrong).__name__}", "an iterable of payloads is needed", "list")
    assert (await (await js.stream(stream.name)).info()).state.messages == 0


async def test_payload_that_is_not_bytes(js: Any) -> None:
    says(await refusal(js.publish("x", {"a": 1})), "dict", "json.dumps(x).encode()")
    says(await refusal(js.publish("x", "text")), "str", ".encode()")


async def test_seconds(js: Any) -> None:
    says(await refusal(js.publish("x", b"", timeout="5")), "timeout is '5'", "a number of seconds is needed")
    says(await refusal(js.publish("x", b"", timeout=0)), "timeout is 0 s: it must be over 0")
    with pytest.raises(jsclient.ConfigError) as caught:
        ConsumerConfig(ack_wait="5")  # type: ignore[arg-type]
    says(caught.value, "ConsumerConfig.ack_wait: a number of seconds or a timedelta is needed, not str")


async def test_nothing_to_read(js: Any, stream: OwnStream) -> None:
    reader = await js.subscribe(stream=stream.name)
    assert str(await refusal(reader.next(timeout=0.2))) == "no message within 0.2 s"
    await reader.unsubscribe()


# --- what is not switched on ---------------------------------------------------------------------------------


async def batch(js: Any, subject: str) -> None:
    async with js.batch() as batch:
        await batch.publish(subject, b"1")


async def ingest(js: Any, subject: str) -> None:
    async with js.fast_ingest() as ingest:
        await ingest.publish(subject, b"1")


FEATURES: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
    "allow_msg_ttl=True": lambda js, subject: js.publish(subject, b"", ttl=5),
    "allow_atomic=True": batch,
    "allow_batched=True": ingest,
    "allow_msg_schedules=True": lambda js, subject: js.schedule(
        f"{subject}.s", f"{subject}.t", b"", at=datetime.now(UTC) + timedelta(seconds=60)
    ),
}


async def test_rollup_not_permitted(js: Any, stream: OwnStream) -> None:
    attempt = js.publish(stream.subject("x"), b"", rollup="sub")
    says(
        await refusal(attempt),
        "rollup not permitted",
        "create or update the stream with allow_rollup_hdrs=True",
    )


async def test_deletes_not_permitted(js: Any, oracle: Any, make_stream: Any) -> None:
    stream: OwnStream = await make_stream(deny_delete=True, deny_purge=True)
    await stream.publish(1)
    handle = await js.stream(stream.name)
    says(await refusal(handle.delete_message(1)), "not permitted", "deny_delete=True")
    says(await refusal(handle.purge()), "not permitted", "deny_purge=True")


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("field", FEATURES)
async def test_feature_not_enabled(js: Any, stream: OwnStream, field: str) -> None:
    attempt = FEATURES[field](js, stream.subject("x"))
    says(await refusal(attempt), "is disabled", f"create the stream with {field}")


async def test_jetstream_off(own_server: Any) -> None:
    own = await own_server(jetstream=False, config={})
    async with jsclient.connect(own.url) as js:
        for attempt in (js.create_stream("A", ["a"]), js.stream("A"), js.subscribe("a")):
            error = await refusal(attempt)
            assert isinstance(error, jsclient.NoRespondersError)
            says(error, "JetStream is not enabled", "domain=")
        says(
            await refusal(js.publish("a", b"")), "create a stream", "JetStream is not enabled on this server"
        )


async def test_publish_without_stream(js: Any) -> None:
    error = await refusal(js.publish("nowhere.x", b""))
    assert isinstance(error, jsclient.NoRespondersError)
    says(error, "no stream", "'nowhere.x'", "create")


# --- connecting ---------------------------------------------------------------------------------------------


async def test_connect_to_wrong_scheme(server: Any) -> None:
    error = await refusal(jsclient.connect(server.url.replace("nats://", "http://")))
    assert isinstance(error, jsclient.ConfigError)
    says(error, "scheme 'http'", "nats://", "tls://", "ws://")


async def test_connect_to_nothing() -> None:
    error = await refusal(jsclient.connect("nats://127.0.0.1:1"))
    assert isinstance(error, jsclient.ConnectError)
    says(error, "no server could be reached at nats://127.0.0.1:1", "wait=")
    error = await refusal(jsclient.connect(["nats://127.0.0.1:1", "nats://127.0.0.1:2"]))
    says(error, "no server could be reached: nats://127.0.0.1:", "wait=")


async def test_connect_without_credentials(own_server: Any) -> None:
    own = await own_server(config={"authorization": {"user": "a", "password": "b"}})
    url = f"nats://127.0.0.1:{own.port}"
    error = await refusal(jsclient.connect(url))
    assert isinstance(error, jsclient.AuthenticationError)
    says(error, "no credentials were given", "give user= and password=", "user_credentials=")
    says(await refusal(jsclient.connect(url, user="a", password="wrong")), "refused the credentials")


async def test_connect_without_nkeys(monkeypatch: pytest.MonkeyPatch, own_server: Any, tmp_path: Any) -> None:
    user = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    own = await own_server(config={"authorization": {"users": [{"nkey": user}]}})
    seed = tmp_path / "seed"
    seed.write_text("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY")
    monkeypatch.setitem(sys.modules, "nkeys", None)
    error = await refusal(jsclient.connect(f"nats://127.0.0.1:{own.port}", nkeys_seed=str(seed)))
    says(error, 'pip install "jsclient[nkeys]"')


# --- not awaited --------------------------------------------------------------------------------------------


async def test_not_awaited(js: Any, server: Any, stream: OwnStream) -> None:
    for opening in (jsclient.connect(server.url), js.subscribe(stream.all), js.pull_subscribe(stream.all)):
        with pytest.raises(AttributeError, match=r"was not awaited, and has no 'fetch': 'async with"):
            opening.fetch  # noqa: B018  the access is the point
    with pytest.warns(RuntimeWarning, match=r"subscribe\(\) was never awaited"):
        js.subscribe(stream.all)
    topic = js.topic(stream.subject("x"))
    handles = {
        "each": topic.each(),
        "publisher": topic.publisher(),
        "work": topic.work("w"),
        "ordered_consumer": js.ordered_consumer(stream.name),
    }
    for name, opening in handles.items():
        with pytest.raises(AttributeError, match=rf"^{name}\(\) was not awaited, and has no 'fetch'"):
            opening.fetch  # noqa: B018  the access is the point
    assert await stream.consumer_names() == []


async def test_async_was_forgotten(js: Any, server: Any, stream: OwnStream) -> None:
    """``for`` and ``with`` said "'Opening' object is not iterable"."""
    not_with, not_for = (
        "'with' cannot open it: 'async with ",
        "'for' cannot read it: .*'async with .*'async for'",
    )
    for opening in (jsclient.connect(server.url), js.pull_subscribe(stream.all), js.topic("x").each()):
        with pytest.raises(TypeError, match=rf"\(\) was not awaited, and {not_with}"), opening:
            pass
        with pytest.raises(TypeError, match=rf"\(\) was not awaited, and {not_for}"):
            list(opening)
    asking = js.stream(stream.name)
    with pytest.raises(TypeError, match=r"^stream\(\) was not awaited.*'await' sends the request"), asking:
        pass
    with pytest.raises(TypeError, match=r"^streams\(\) is read with 'async for'"), js.streams():
        pass
    assert await stream.consumer_names() == []


async def test_questions_not_awaited(js: Any, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    for asking in (js.stream(stream.name), handle.consumer("w"), js.counter(stream.name)):
        with pytest.raises(AttributeError, match=r"\(\) was not awaited, and has no 'info': 'await' sends"):
            asking.info  # noqa: B018  the access is the point
    with pytest.warns(RuntimeWarning, match=r"stream\(\) was never awaited: 'await' sends"):
        js.stream(stream.name)
    assert (await asyncio.create_task(js.stream(stream.name))).name == stream.name


async def test_lists_are_for_async_for(js: Any, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    await stream.create_consumer("w")
    lists = {
        "streams": js.streams,
        "stream_names": js.stream_names,
        "subjects": handle.subjects,
        "consumers": handle.consumers,
    }
    for name, call in lists.items():
        with pytest.raises(TypeError, match=rf"^{name}\(\) is read with 'async for'"):
            await call()
        with pytest.raises(TypeError, match=rf"^{name}\(\) is read with 'async for'"):
            list(call())
    assert stream.name in [name async for name in js.stream_names()]
    assert [info.name async for info in handle.consumers()] == ["w"]
    assert (await anext(handle.consumers())).name == "w"


async def test_nak_after_ack_is_logged(js: Any, stream: OwnStream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "jsclient")
    await stream.publish(1)
    async with js.pull_subscribe(stream.all) as reader:
        message = await reader.next(timeout=5)
        await message.ack()
        await message.ack()
        assert [one for one in caplog.records if one.name == "jsclient.message"] == []
        await message.nak()
    (record,) = [one for one in caplog.records if one.name == "jsclient.message"]
    assert record.levelname == "DEBUG"
    assert record.getMessage().startswith("nak of <Message ")
    assert record.getMessage().endswith("ignored: it was acked, nak'ed or terminated before")


async def test_subscriptions_as_contexts(js: Any, stream: OwnStream) -> None:
    await stream.publish(1)
    async with js.subscribe(stream.all) as push, js.pull_subscribe(stream.all) as pull:
        assert (await push.next(timeout=5)).data == (await pull.next(timeout=5)).data
        assert len(await stream.consumer_names()) == 2
    assert push.is_closed
    assert pull.is_closed
    assert await stream.consumer_names() == []


async def test_pickled(js: Any, stream: OwnStream) -> None:
    """As if for a process pool: the error says what to do, and not which object Python cannot pickle."""
    handle = await js.stream(stream.name)
    pull = await js.pull_subscribe(stream.all)
    worker = pull.run(print)
    objects = [
        js,
        handle,
        await handle.create_consumer(durable_name="w"),
        pull,
        worker,
        await js.subscribe(stream.all),
        await js.subscribe(stream.all, ordered=True),
        await js.ordered_consumer(stream.name),
        js.publisher(),
        js.topic(stream.subject("x")),
    ]
    for one in objects:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                TypeError, match=r"cannot be pickled or copied: .* connect in the other process"
            ):
                attempt(one)
    worker.stop()
    await worker


async def test_stream_without_subjects(js: Any, caplog: pytest.LogCaptureFixture) -> None:
    try:
        for _ in range(2):
            await js.ensure_stream("ALONE")
        await js.create_stream("GIVEN", ["given"])
        await js.create_stream("MIRROR", mirror={"name": "GIVEN"})
    finally:
        for name in ("ALONE", "MIRROR", "GIVEN"):
            with suppress(jsclient.StreamNotFoundError):
                await js.delete_stream(name)
    (record,) = [one for one in caplog.records if one.name == "jsclient.stream"]
    assert record.getMessage() == (
        "stream 'ALONE' was created without subjects, so it stores the subject 'ALONE' alone: give subjects=[...]"
    )


FORGETS = """
import asyncio, sys, jsclient

async def main():
    js = await jsclient.connect(sys.argv[1])
    publisher = js.publisher(timeout=30)  # a slow machine has received the refusal by then
    future = await publisher.publish("nowhere", b"")
    if sys.argv[2] == "failed":
        await asyncio.wait([future])
    if sys.argv[2] == "closed":
        await asyncio.wait([future])
        await js.close()
    if sys.argv[2] == "awaited":
        try:
            await future
        except jsclient.JetStreamError:
            pass

asyncio.run(main())
"""


@pytest.mark.core_cases(1)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("at once", ["1 message waits for its ack, the first on 'nowhere'"]),
        ("failed", ["1 publish failed, the first on 'nowhere': no stream took the message"]),
        ("closed", ["failed", "'nowhere'"]),
        ("awaited", []),
    ],
)
async def test_program_ends_with_a_failed_publish(server: Any, how: str, words: list[str]) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORGETS, server.url, how, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(program.communicate(), 60)
    text = errors.decode()
    assert [word for word in words if word not in text] == []
    if how in {"at once", "failed"}:
        assert text.count("a publisher was not closed: ") == 1
        assert "'async with js.publisher() as publisher'" in text
    if how == "awaited":
        assert text == ""

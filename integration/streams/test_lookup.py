"""Finding the stream that has a subject. Source: ADR-15 §Stream name."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from integration.kit.network.asking import answers_to, api_requests, body
from integration.kit.network.proxy import Proxy

KINDS = pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


@KINDS
@pytest.mark.covers("J15", "J16")
async def test_stream_found_by_subject(tap: Proxy, js: Any, stream: OwnStream, kind: str) -> None:
    sub = await getattr(js, kind)(stream.subject("a", "*"))
    (lookup,) = tap.sent("$JS.API.STREAM.>")
    assert lookup.subject == "$JS.API.STREAM.NAMES"
    assert body(lookup) == {"subject": stream.subject("a", "*")}
    assert sub.stream == stream.name


@KINDS
@pytest.mark.covers("J20")
async def test_no_lookup_sent_where_stream_given(tap: Proxy, js: Any, stream: OwnStream, kind: str) -> None:
    sub = await getattr(js, kind)(stream.subject("a"), stream=stream.name)
    assert api_requests(tap, "STREAM.NAMES") == []
    # Nothing matches yet: the consumer exists, and whether its filter can match anything is asked afterwards.
    kinds = [request.partition(".")[0] for request in api_requests(tap)]
    assert kinds == ["CONSUMER", "STREAM"]
    assert (await sub.consumer_info()).config.filter_subject == stream.subject("a")


@KINDS
@pytest.mark.covers("J17")
@pytest.mark.parametrize("streams", [b"[]", b"null", None])
async def test_no_stream_in_answer_error(
    tap: Proxy, js: Any, stream: OwnStream, kind: str, streams: bytes | None
) -> None:
    """Servers have answered with an empty list, a null, and without the field."""
    remainder = b"" if streams is None else b',"streams":' + streams
    answer = (
        b'{"type":"io.nats.jetstream.api.v1.stream_names_response","total":0,"offset":0,"limit":1024'
        + remainder
    )
    tap.modify_frames(answers_to(tap, "STREAM.NAMES"), lambda frame: frame.but(payload=answer + b"}").raw)
    with pytest.raises(jsclient.NoMatchingStreamError, match="no matching stream") as caught:
        await getattr(js, kind)(stream.all)
    assert caught.value.subject == stream.all
    assert api_requests(tap) == ["STREAM.NAMES"]


@KINDS
@pytest.mark.covers("J17", "J18", "J14")
async def test_none_or_several_streams(
    tap: Proxy, js: Any, oracle: Oracle, make_stream: Any, kind: str
) -> None:
    """P15: nats-py takes the first of several, and any stream for an empty subject. §4.1-24."""
    first, second = await make_stream(), await make_stream()
    await oracle.update_stream(second.name, subjects=[f"{first.prefix}x.b"])
    await oracle.update_stream(first.name, subjects=[f"{first.prefix}x.a"])
    several = f"{first.prefix}x.*"
    with pytest.raises(jsclient.NoMatchingStreamError) as caught:
        await getattr(js, kind)(several)
    assert set(caught.value.streams) == {first.name, second.name}
    assert first.name in str(caught.value)
    with pytest.raises(jsclient.NoMatchingStreamError) as caught:
        await getattr(js, kind)(f"{first.prefix}x.c")
    assert caught.value.streams == ()
    assert api_requests(tap) == ["STREAM.NAMES"] * 2
    with pytest.raises(jsclient.ConfigError):
        await getattr(js, kind)("")
    assert sorted([name async for name in js.stream_names(several)]) == sorted([first.name, second.name])
    assert set(await js.stream_name_by_subject(several)) == {first.name, second.name}


@KINDS
@pytest.mark.covers("J19")
async def test_error_in_answer_raised(tap: Proxy, js: Any, stream: OwnStream, kind: str) -> None:
    answer = (
        b'{"type":"io.nats.jetstream.api.v1.stream_names_response",'
        b'"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}'
    )
    tap.modify_frames(answers_to(tap, "STREAM.NAMES"), lambda frame: frame.but(payload=answer).raw)
    with pytest.raises(jsclient.ApiError) as caught:
        await getattr(js, kind)(stream.all)
    assert (caught.value.code, caught.value.err_code) == (503, 10008)
    assert api_requests(tap) == ["STREAM.NAMES"]


@KINDS
@pytest.mark.covers("J19")
@pytest.mark.parametrize(
    "answer", [b"", b"no JSON", b"[]", b'{"streams":7}', b'{"streams":[7]}', b'{"error":7}']
)
async def test_answer_makes_no_sense_error_of_ours(
    tap: Proxy, js: Any, stream: OwnStream, kind: str, answer: bytes
) -> None:
    tap.modify_frames(answers_to(tap, "STREAM.NAMES"), lambda frame: frame.but(payload=answer).raw)
    with pytest.raises(jsclient.JetStreamError):
        await within(10, getattr(js, kind)(stream.all), "the subscribe call")
    assert api_requests(tap) == ["STREAM.NAMES"]


@pytest.mark.covers("J15", "J50", "J51", "J108")
async def test_domain_in_subjects(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any
) -> None:
    """§4.1-27."""
    own = await own_server(config="jetstream { domain: hub }")
    oracle = await oracle_for(own)
    stream = await make_stream(oracle=oracle)
    tap = await proxy(own)
    js = await connect(tap, domain="hub")
    ack = await js.publish(stream.subject("x"), b"1")
    assert ack.domain == "hub"
    names = []
    for arguments in ({}, {"durable": "d"}):
        sub = await js.subscribe(stream.all, **arguments)
        (message,) = await take(sub, 1)
        assert message.metadata.domain == ("hub" if own.ack_v2 else None)
        await sub.unsubscribe()
        names.append(sub.consumer)
    sent = [(frame.subject or "").removeprefix("$JS.hub.API.") for frame in tap.sent("$JS.*.API.>")]
    # The info is asked for again while an ack may not have been counted, or the end of the reader not been noticed.
    assert [subject for subject, _ in groupby(sent)] == [
        "STREAM.NAMES",
        f"CONSUMER.CREATE.{stream.name}",
        f"CONSUMER.DELETE.{stream.name}.{names[0]}",
        "STREAM.NAMES",
        f"CONSUMER.INFO.{stream.name}.d",
        f"CONSUMER.DURABLE.CREATE.{stream.name}.d",
        f"CONSUMER.INFO.{stream.name}.d",  # what is left in it
        f"CONSUMER.DELETE.{stream.name}.d",
    ]
    assert api_requests(tap) == []
    assert (await js.account_info()).domain == "hub"


PREFIXED = """
accounts {
  JS: {
    jetstream: enabled
    users: [{user: judge, password: judge}]
    exports: [{service: "$JS.API.>", response: stream}, {service: "$JS.ACK.>", response: stream}, {stream: "to.>"}]
  }
  USER: {
    users: [{user: user, password: user}]
    imports: [
      {service: {account: JS, subject: "$JS.API.>"}, to: "team.a.>"}
      {service: {account: JS, subject: "$JS.ACK.>"}}
      {stream: {account: JS, subject: "to.>"}}
    ]
  }
}
"""


@pytest.mark.covers("J15", "J50", "J108")
@pytest.mark.parametrize("prefix", ["team.a", "team.a."])
async def test_prefix_to_other_account(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any, prefix: str
) -> None:
    own = await own_server(config=PREFIXED)
    oracle = await oracle_for(own, user="judge", password="judge")
    stream = await make_stream(oracle=oracle)
    await stream.publish(2)
    tap = await proxy(own)
    js = await connect(tap, user="user", password="user", prefix=prefix)
    config = jsclient.ConsumerConfig(deliver_subject="to.user")
    sub = await js.subscribe(stream.all, durable="d", config=config)
    for message in await take(sub, 2):
        await message.ack_sync()
    await sub.unsubscribe()
    # The info is asked for twice if the server has not noticed yet that the reader left.
    assert [subject for subject, _ in groupby(frame.subject for frame in tap.sent("team.>"))] == [
        "team.a.STREAM.NAMES",
        f"team.a.CONSUMER.INFO.{stream.name}.d",
        f"team.a.CONSUMER.DURABLE.CREATE.{stream.name}.d",
        f"team.a.CONSUMER.INFO.{stream.name}.d",
        f"team.a.CONSUMER.DELETE.{stream.name}.d",
    ]
    assert api_requests(tap) == []
    assert await stream.consumer_names() == []

"""The subjects of flow control that real servers send: domains, leaf nodes, imports with prefixes. Source: ADR-15."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import numbers, of, take
from integration.kit.judge.waiting import eventually
from integration.kit.network import match
from integration.kit.servers.ports import HOST, free_port

both_forms = pytest.mark.parametrize(
    "ack_v2", [False, pytest.param(True, marks=pytest.mark.server(">=2.14"))]
)  # of ack subjects
CONFIG = jsclient.ConsumerConfig(flow_control=True, idle_heartbeat=5.0, ack_policy="none")
COUNT, SIZE = 1200, 10_000

ACCOUNTS = """
accounts {
  JS: {
    jetstream: enabled
    users: [{user: judge, password: judge}]
    exports: [
      {service: "$JS.API.>", response: stream}
      {service: "$JS.ACK.>", response: stream}
      {service: "$JS.FC.>"}
      {stream: "to.>"}
    ]
  }
  USER: {
    users: [{user: user, password: user}]
    imports: [
      {service: {account: JS, subject: "$JS.API.>"}, to: "team.a.>"}
      {service: {account: JS, subject: "$JS.ACK.>"}}
      {service: {account: JS, subject: "$JS.FC.>"}}
      {stream: {account: JS, subject: "to.>"}, PLACE}
    ]
  }
}
"""


async def check(tap: Any, events: list[Any], stream: Any, js: Any, **arguments: Any) -> set[str]:
    """Read all by flow control. Returns the starts of the subjects that were answered."""
    config = CONFIG.replace(**arguments)
    await stream.publish(COUNT, size=SIZE)
    sub = await js.subscribe(stream.all, stream=stream.name, config=config)
    assert numbers(await take(sub, COUNT)) == list(range(1, COUNT + 1))
    await js.ping()
    requests, answers = tap.find(match.is_flow_control), tap.find(lambda f: f.op == "PUB" and not f.payload)
    questions = [frame.reply for frame in requests]
    assert len(questions) >= 3
    assert set(questions) <= {frame.subject for frame in answers}
    assert of(jsclient.events.FlowControlRefused, events) == []
    assert of(jsclient.events.FlowControlStalled, events) == []
    await sub.unsubscribe()
    return {".".join(subject.split(".")[:2]) for subject in questions}


@pytest.mark.covers("J98")
@both_forms
async def test_domain(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any, events: list[Any],
    tmp_path: Any, ack_v2: bool,
) -> None:  # fmt: skip
    config = {"jetstream": {"domain": "hub", "store_dir": str(tmp_path / "hub")}}
    own = await own_server(jetstream=False, ack_v2=ack_v2, config=config)
    stream = await make_stream(oracle=await oracle_for(own))
    tap = await proxy(own)
    assert await check(tap, events, stream, await connect(tap, domain="hub")) == {"$JS.FC"}


@pytest.mark.covers("J98")
@both_forms
async def test_leaf_node(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any, events: list[Any],
    tmp_path: Any, ack_v2: bool,
) -> None:  # fmt: skip
    """The stream is on the leaf node, the reader on the hub."""
    port = free_port()
    hub = await own_server(jetstream=False, config={
        "server_name": "hub",
        "jetstream": {"domain": "hub", "store_dir": str(tmp_path / "hub")},
        "leafnodes": {"listen": f"{HOST}:{port}"},
    })  # fmt: skip
    leaf = await own_server(jetstream=False, ack_v2=ack_v2, config={
        "server_name": "leaf",
        "jetstream": {"domain": "leaf", "store_dir": str(tmp_path / "leaf")},
        "leafnodes": {"remotes": [{"url": f"nats://{HOST}:{port}"}]},
    })  # fmt: skip
    stream = await make_stream(oracle=await oracle_for(leaf))
    tap = await proxy(hub)
    assert await check(tap, events, stream, await connect(tap, domain="leaf", timeout=10)) == {"$JS.FC"}


@pytest.mark.covers("J98")
@both_forms
async def test_other_account(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any, events: list[Any],
    ack_v2: bool,
) -> None:  # fmt: skip
    own = await own_server(config=ACCOUNTS.replace("PLACE", ""), ack_v2=ack_v2)
    stream = await make_stream(oracle=await oracle_for(own, user="judge", password="judge"))
    tap = await proxy(own)
    js = await connect(tap, user="user", password="user", prefix="team.a")
    assert await check(tap, events, stream, js, deliver_subject="to.x") == {"$JS.FC"}


@pytest.mark.core_cases(2)
@pytest.mark.covers("J98")
@both_forms
@pytest.mark.parametrize(
    ("connected_to", "subject"), [('prefix: "from.js"', "from.js.to.x"), ('to: "moved.>"', "moved.x")]
)
async def test_renamed_imports(
    own_server: Any, oracle_for: Any, make_stream: Any, connected_to: str, subject: str, ack_v2: bool
) -> None:
    """The deliveries get another subject on import. Their replies do not."""
    own = await own_server(config=ACCOUNTS.replace("PLACE", connected_to), ack_v2=ack_v2)
    stream = await make_stream(oracle=await oracle_for(own, user="judge", password="judge"))
    reader = await oracle_for(own, user="user", password="user")
    await stream.publish(COUNT, size=SIZE)
    config = {"flow_control": True, "idle_heartbeat": 500_000_000, "ack_policy": "none"}
    async with reader.listen(subject) as received:
        await stream.create_consumer("c", deliver_subject="to.x", **config)

        def requested_subjects() -> list[str]:
            statuses = [message for message in received if message.headers and not message.data]
            stalled = [message.headers.get("Nats-Consumer-Stalled") for message in statuses]
            return [text for text in (*stalled, *(message.reply for message in statuses)) if text]

        await eventually(
            lambda: len(requested_subjects()) >= 2, what="a request, and the heartbeat that repeats it"
        )
        assert {text[:7] for text in requested_subjects()} == {"$JS.FC."}

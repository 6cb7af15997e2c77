"""``jsclient doctor`` and `jsclient.doctor.examine` against a real server: each finding, made so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.servers.nats_server import ServerUnderTest


@pytest.fixture
def doctor(server: ServerUnderTest, capsys: Any) -> Callable[..., Awaitable[tuple[int, str]]]:
    """Run the command. Returns its exit code and output."""

    async def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(_main, ["doctor", "--server", server.url, *arguments])
        return code, capsys.readouterr().out

    return run


def _main(arguments: list[str]) -> int:
    # `main` sets a signal handler, which only the main thread may do.
    from jsclient.cli import _parser
    from jsclient.cli.doctor import run

    return run(_parser().parse_args(arguments))


def codes(findings: list[Any]) -> list[str]:
    return [finding.code for finding in findings if finding.level != "ok"]


@pytest.mark.smoke
async def test_healthy_consumer_exits_with_0(doctor: Any, stream: OwnStream) -> None:
    await stream.create_consumer("c")
    code, out = await doctor(stream.name, "c")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith(f"jsclient {jsclient.__version__}")
    assert lines[1].startswith("reader: ")
    assert lines[2].startswith("[ok] nats-server 2.")
    assert "[ok] JetStream is on" in lines
    assert f"[ok] stream {stream.name!r} has 0 messages" in lines
    assert "[ok] consumer 'c' is pulled from, and nothing shows why it should stand still" in lines
    assert "what to do" not in out


@pytest.mark.server(">=2.11")
async def test_paused_consumer_exits_with_1(doctor: Any, js: Any, stream: OwnStream) -> None:
    await stream.create_consumer("c")
    await (await (await js.stream(stream.name)).consumer("c")).pause(600)
    await stream.publish(3)
    code, out = await doctor(stream.name, "c")
    assert code == 1
    assert "[warning] the consumer is paused until 20" in out
    assert "3 messages wait" in out
    assert "what to do: call resume()" in out


async def test_json_has_an_object_a_line(doctor: Any, stream: OwnStream) -> None:
    code, out = await doctor(stream.name, "nobody", "--json")
    assert code == 1
    answer = [json.loads(line) for line in out.splitlines()]
    assert [one["code"] for one in answer] == ["server", "jetstream", "stream", "deleted"]
    assert set(answer[0]) == {"code", "level", "what", "evidence", "fix"}


async def test_reasons_of_a_stand_still(js: Any, stream: OwnStream) -> None:
    async def finding_codes(name: str) -> list[str]:
        return codes(await jsclient.doctor.examine(js, stream.name, name))

    await stream.create_consumer("full", max_ack_pending=2)
    await stream.create_consumer("idle")
    await stream.create_consumer("push", deliver_subject=f"{stream.prefix}-to")
    await stream.create_consumer("odd", filter_subject="nowhere.at.all")
    await stream.publish(5)
    assert len(await (await js.pull_subscribe(stream=stream.name, consumer="full")).fetch(2)) == 2
    assert await finding_codes("full") == ["max_ack_pending"]
    assert await finding_codes("idle") == ["no_request"]
    assert await finding_codes("push") == ["no_interest"]
    assert await finding_codes("odd") == ["filter"]
    assert await finding_codes("none") == ["deleted"]


async def test_limits_that_are_near(js: Any, oracle: Any, make_stream: Any) -> None:
    full = await make_stream(oracle=oracle, max_msgs=10, max_consumers=1)
    await full.create_consumer("c")
    await full.publish(9)
    findings = await jsclient.doctor.examine(js, full.name)
    assert codes(findings) == ["consumer_limit", "stream_limit"]
    assert [finding.evidence for finding in findings if finding.level == "warning"] == ["1 of 1", "9 of 10"]
    assert all(finding.fix for finding in findings if finding.level == "warning")


@pytest.mark.server(">=2.15")
async def test_default_limit_of_consumers_that_is_near(js: Any, stream: OwnStream) -> None:
    """The server refuses the 1,001st, although the stream sets no limit."""

    async def limits() -> list[Any]:
        return [one for one in await jsclient.doctor.examine(js, stream.name) if one.code == "consumer_limit"]

    async def create(first: int, last: int) -> None:
        for begin in range(first, last + 1, 50):  # a request of nats-py has one timeout with all before it
            numbers = range(begin, min(begin + 50, last + 1))
            await asyncio.gather(*(stream.create_consumer(f"c{one}", mem_storage=True) for one in numbers))

    await create(1, 899)
    assert await limits() == []
    await create(900, 900)
    (finding,) = await limits()
    assert finding.what.startswith(
        f"stream {stream.name!r} is near its limit of consumers (the server's default"
    )
    assert (finding.level, finding.evidence) == ("warning", "900 of 1,000")
    assert "default_max_consumers" in finding.fix
    await create(901, 1000)
    assert "has reached" in (await limits())[0].what
    with pytest.raises(jsclient.ConsumerLimitError):
        await js.pull_subscribe(stream.all)


async def test_missing_stream(js: Any) -> None:
    assert codes(await jsclient.doctor.examine(js, "not-there", "c")) == ["stream_deleted"]


async def test_context_names_server(
    server: ServerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "prod.json").write_text(json.dumps({"url": server.url}))
    assert await asyncio.to_thread(_main, ["doctor", "--context", "prod"]) == 0
    assert "[ok] nats-server 2." in capsys.readouterr().out
    assert await asyncio.to_thread(_main, ["doctor", "--context", "dev"]) == 2
    assert "the only context is prod" in capsys.readouterr().err


async def test_server_without_jetstream(
    own_server: Callable[..., Awaitable[Any]], connect: Callable[..., Awaitable[Any]]
) -> None:
    server = await own_server(jetstream=False)
    js = await connect(server)
    assert codes(await jsclient.doctor.examine(js, "S", "c")) == ["no_jetstream"]


async def test_consumer_without_stream_refused(js: Any) -> None:
    with pytest.raises(ValueError, match="without its stream"):
        await jsclient.doctor.examine(js, consumer="c")

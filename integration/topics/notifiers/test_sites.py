"""Several processes: one produces, others consume what was shared as JSON. Producers that die, and two of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration.kit.clients.kits import Kits
from integration.kit.judge.waiting import eventually, within
from jsclient import (
    ClosedError,
    IterationFailed,
    ProducerFencedError,
    PublishFailed,
    make_notifier_kit,
    make_subscription_kit,
    observe_iteration,
)
from tests.topics.notifiers.test_iteration import Bob, alice

ROOT = Path(__file__).resolve().parents[3]


class Child:
    """A process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(json.loads(line))

    def all(self, what: str) -> list[Any]:
        return [one[what] for one in self.said if what in one]

    async def until(self, what: str, count: int = 1) -> list[Any]:
        await eventually(
            lambda: len(self.all(what)) >= count, 40, f"{what} of a process; it said {self.said}"
        )
        return self.all(what)


@pytest.fixture
async def child(server: Any) -> AsyncIterator[Any]:
    started: list[Child] = []

    async def start(*arguments: str, url: str = server.url) -> Child:
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-m", "integration.kit.clients.kit_process", url, *arguments,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        one = Child(process)
        started.append(one)
        await one.until("ready")
        return one

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.process.kill()
        await one.process.wait()
        await one.reading


@pytest.fixture
async def kits(server: Any, connect: Any) -> AsyncIterator[Kits]:
    kits = Kits(await connect(server))
    yield kits
    await kits.clear()


@pytest.mark.covers("A65", "A69", "A71", "A72", "A77")
@pytest.mark.parametrize("fails", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_remote_consumers_read(kits: Kits, child: Any, fails: bool) -> None:
    """They continue when the process that shared it has ended."""
    updater, notifier = await kits.notifier_kit("first")
    publication, subscription = await kits.subscription_kit()
    await publication.update_state(-1)
    newest = json.dumps(await notifier.get_sharable_notifier_internals())
    every = json.dumps(await subscription.get_sharable_subscription_internals())
    del notifier, subscription
    first, second, third = await asyncio.gather(
        child("newest", newest), child("every", every), child("every", every)
    )
    await first.until("value")
    for number in range(100):
        await updater.update_state(number)
        await publication.update_state(number)
    await eventually(lambda: first.all("value")[-1] == 99, 30, "the newest value")
    # the process that shared them is the producer here, and its references are gone
    for producer in (updater, publication):
        await (producer.fail({"why": 1}) if fails else producer.finish("done"))
    end, reports = ("failed", {"why": 1}) if fails else ("finished", "done")
    for one in (first, second, third):
        assert await one.until(end) == [reports]
    seen = first.all("value")
    assert seen[0] == "first"
    assert seen[1:] == sorted(set(seen[1:]))
    assert second.all("value") == third.all("value") == [-1, *range(100)]


@pytest.mark.covers("A70", "A73", "A75", "A76")
async def test_shared_again_and_promised(kits: Kits, connect: Any, server: Any) -> None:
    there, beyond = await connect(server), await connect(server)
    updater, notifier = await kits.notifier_kit("a")
    publication, subscription = await kits.subscription_kit()
    await publication.update_state("a")
    promised = there.make_notifier(notifier.get_sharable_notifier_internals())
    again = beyond.make_notifier(promised.get_sharable_notifier_internals())
    promised_log = there.make_subscription(subscription.get_sharable_subscription_internals())
    log_again = beyond.make_subscription(promised_log.get_sharable_subscription_internals())
    assert (await again.get_update_since()).value == "a"

    async def soon() -> Any:
        return log_again

    local, mirror = make_subscription_kit()
    local_newest, newest_mirror = make_notifier_kit()
    bob = Bob()
    observing = [
        asyncio.create_task(observe_iteration(soon(), local)),
        asyncio.create_task(observe_iteration(log_again, local_newest)),
        asyncio.create_task(observe_iteration(again, bob)),
    ]
    await publication.update_state("b")
    await publication.finish("done")
    await updater.fail("why")
    await asyncio.gather(*observing)
    assert await alice(mirror) == [("value", "a"), ("value", "b"), ("finished",)]
    assert await newest_mirror.completion() == "done"
    assert bob.log[-1] == ("failed", "why")


@pytest.mark.covers("A74")
async def test_loop_needs_iterable_here(kits: Kits) -> None:
    _, subscription = await kits.subscription_kit()
    promise = subscription.get_sharable_subscription_internals()
    with pytest.raises(TypeError):
        async for _ in promise:
            pass
    await promise


# --- producers -------------------------------------------------------------------------------------------


@pytest.mark.covers("A50")
@pytest.mark.parametrize("end", ["finish", pytest.param("fail", marks=pytest.mark.full)])
async def test_ended_for_all_processes(kits: Kits, child: Any, end: str) -> None:
    subject = kits.subject()
    updater, notifier = await kits.notifier_kit("a", subject=subject)
    rival, _ = await kits.here.notifier_kit(subject)  # it existed before the end
    await getattr(updater, end)("over")
    late = await child("produce", subject, "0")
    assert await late.until("refused") == ["ClosedError"]
    what_to_do = f"'{subject}' has ended: no value can follow; create a kit on another subject"
    for method in ("update_state", "finish", "fail"):
        with pytest.raises(ClosedError, match=what_to_do):
            await getattr(rival, method)("more")
    with pytest.raises(ClosedError):
        await kits.here.notifier_kit(subject, initial="more")
    if end == "finish":
        assert await notifier.completion() == "over"
    else:
        with pytest.raises(IterationFailed, match="over"):
            await notifier.completion()


@pytest.mark.covers("A50", "A66")
@pytest.mark.parametrize("kind", ["notifier_kit", "subscription_kit"])
async def test_of_two_producers_one_refused(kits: Kits, kind: str) -> None:
    subject = kits.subject()
    one, iterable = await getattr(kits, kind)(subject=subject)
    other, _ = await getattr(kits.here, kind)(subject)
    seq = await one.update_state("one")
    with pytest.raises(ProducerFencedError) as caught:
        await other.update_state("other")
    assert (caught.value.subject, caught.value.expected, caught.value.found) == (subject, 0, seq)
    with pytest.raises(ProducerFencedError):
        await other.finish("other")
    await one.finish("done")
    bob = Bob()
    await observe_iteration(iterable, bob)
    assert bob.log[-1] == ("finished", "done")
    assert ("value", "other") not in bob.log


@pytest.mark.covers("A66")
@pytest.mark.full
async def test_takeover_refuses_former(kits: Kits, child: Any) -> None:
    """The first producer is suspended, not dead. When it resumes, it must not continue."""
    subject = kits.subject()
    first = await child("produce", subject, "0")
    await first.until("stored", 3)
    first.process.send_signal(19)  # SIGSTOP
    updater, notifier = await kits.notifier_kit("taken over", subject=subject)
    first.process.send_signal(18)  # SIGCONT
    assert (await first.until("refused")) == ["ProducerFencedError"]
    assert (await notifier.get_update_since()).value == "taken over"
    await updater.finish("done")


@pytest.mark.covers("A19", "A66")
@pytest.mark.full
async def test_killed_producer_replaced(kits: Kits, child: Any) -> None:
    subject = kits.subject()
    first = await child("produce", subject, "0")
    updater, notifier = await kits.notifier_kit(subject=subject)
    seen = []

    async def watch() -> None:
        async for value in notifier:
            seen.append(value)  # noqa: PERF401  looked at meanwhile

    watching = asyncio.create_task(watch())
    await first.until("stored", 20)
    first.process.kill()
    await first.process.wait()
    await first.reading
    second = await child("produce", subject, "1000000")
    await second.until("stored", 20)
    second.process.kill()
    await second.process.wait()
    last, _ = await kits.here.notifier_kit(subject)
    await last.finish("done")
    await within(5, watching, "the end")
    assert seen == sorted(set(seen))
    assert seen[0] < 1000000 <= seen[-1]
    with pytest.raises(ClosedError):
        await updater.update_state("late")


async def test_unawaited_failure_reported(kits: Kits, events: list[Any], oracle: Any) -> None:
    subject = kits.subject()
    updater, _ = await kits.notifier_kit("a", subject=subject)
    await oracle.publish(subject, b'"foreign"', headers={"Nats-Msg-Id": "jsc-other:1"})
    updater.update_state("b")
    updater.update_state("c")
    reports = await eventually(
        lambda: [one for one in events if isinstance(one, PublishFailed)], what="an event"
    )
    assert [(one.subject, one.count, type(one.error)) for one in reports] == [
        (subject, 2, ProducerFencedError)
    ]
    with pytest.raises(ProducerFencedError):
        updater.update_state("d")
    awaited = updater.update_state("e")
    with pytest.raises(ProducerFencedError):
        await awaited
    await kits.settle()
    assert len([one for one in events if isinstance(one, PublishFailed)]) == 1, "who awaits is told by that"

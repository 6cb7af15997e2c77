"""The leaks of a piece of code: tasks, connections, subscriptions, consumers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.kit.judge.oracle import CONNECTION_NAME, Oracle, OracleError
from integration.kit.servers.monitor import connections

_POLL = 0.02
_LOOKS = 25  # at least, because a machine that stood still leaves no time between two of them


@dataclass
class _Seen:
    """The tasks, connections, subscriptions and consumers that exist at one moment."""

    tasks: set[asyncio.Task[object]] = field(default_factory=set)
    consumers: dict[str, set[str]] = field(default_factory=dict)
    connections: dict[int, tuple[str, Counter[str]]] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def no_leaks(
    *,
    oracle: Oracle | None = None,
    streams: Iterable[str] = (),
    monitor: str | None = None,
    ignore_tasks: Iterable[str] = (),
    settle: float = 5.0,
) -> AsyncIterator[None]:
    """Fail when the block leaves anything that did not exist before it.

    Looks at the tasks of the loop, at the consumers of `streams` (through `oracle`) and, with the `monitor` URL of the
    server, at its connections and their subscriptions. They may end up to `settle` seconds after the block, and while
    fewer than 25 looks were taken.
    One inbox with a wildcard is allowed on a connection that had none: clients make it at their first request and keep
    it. `ignore_tasks` are the qualified names of coroutines that may remain, such as the coroutine of nats-py for that
    inbox (`Subscription._wait_for_msgs`). Better is a first request before the block.

    Raises:
        AssertionError: names what leaked. Not when the block itself raised.
    """
    streams, ignored = list(streams), set(ignore_tasks)
    if streams and oracle is None:
        raise ValueError("consumers are looked up through an oracle: give one")
    before = await _look(oracle, streams, monitor)
    yield
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settle
    for looks in itertools.count(1):
        leaked = _compare(before, await _look(oracle, streams, monitor), ignored)
        if not leaked:
            return
        if looks >= _LOOKS and loop.time() >= deadline:
            raise AssertionError(f"left behind after {settle} s:\n  " + "\n  ".join(leaked))
        await asyncio.sleep(_POLL)


async def _look(oracle: Oracle | None, streams: list[str], monitor: str | None) -> _Seen:
    seen = _Seen(tasks=running_tasks())
    if oracle is not None:
        for stream in streams:
            seen.consumers[stream] = await _consumers(oracle, stream)
    if monitor is not None:
        seen.connections = await connections(monitor)
    return seen


async def _consumers(oracle: Oracle, stream: str) -> set[str]:
    try:
        return set(await oracle.consumer_names(stream))
    except OracleError as error:
        if error.code != 404:
            raise
        return set()  # a stream that is gone has taken its consumers along


def _compare(before: _Seen, after: _Seen, ignored: set[str]) -> list[str]:
    new_tasks = after.tasks - before.tasks
    leaked = [f"task {describe_task(task)}" for task in new_tasks if _name(task) not in ignored]
    for stream, names in after.consumers.items():
        leaked += [f"consumer {name} of stream {stream}" for name in sorted(names - before.consumers[stream])]
    for cid, (name, subjects) in after.connections.items():
        if name == CONNECTION_NAME:
            continue
        if cid not in before.connections:
            leaked.append(f"connection {cid} {name!r} with subscriptions {sorted(subjects)}")
            continue
        extra = subjects - before.connections[cid][1]
        _allow_first_inbox(before.connections[cid][1], extra)
        leaked += [
            f"subscription {subject} of connection {cid} {name!r}" for subject in sorted(extra.elements())
        ]
    return leaked


def _allow_first_inbox(had: Counter[str], extra: Counter[str]) -> None:
    inboxes = [subject for subject in extra if _is_shared_inbox(subject)]
    if inboxes and not any(_is_shared_inbox(subject) for subject in had):
        extra[inboxes[0]] -= 1


def _is_shared_inbox(subject: str) -> bool:
    return subject.startswith("_INBOX") and subject.endswith(".*")


def running_tasks() -> set[asyncio.Task[object]]:
    """The loop's tasks that are not done, without the current task."""
    current = asyncio.current_task()
    return {task for task in asyncio.all_tasks() if task is not current and not task.done()}


def describe_task(task: asyncio.Task[object]) -> str:
    """A task by the name of its coroutine, and its waiting point: each coroutine down to the innermost."""
    positions: list[str] = []
    # The task itself knows its outermost coroutine only.
    inner: Any = task.get_coro()
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        positions.append(f"{inner.__name__} {Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        inner = inner.cr_await
    return f"{_name(task)} ({task.get_name()}) in {' > '.join(positions)}"


def _name(task: asyncio.Task[object]) -> str:
    coroutine = task.get_coro()
    return str(getattr(coroutine, "__qualname__", coroutine))

"""The start of an ordered subscription, also when its consumer is lost before the first message. Source: ADR-17."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never
from integration.kit.network import match

QUICK = jsclient.ConsumerConfig(idle_heartbeat=0.5)


async def between(stream: OwnStream, first: int, second: int) -> datetime:
    """Store `first` messages, then `second` more. A time between the two."""
    await stream.publish(first)
    answer = await stream.oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": first})
    before = datetime.fromisoformat(answer["message"]["time"][:19]).replace(tzinfo=UTC)
    # The server's clock counts, so wait until its time stamps are a second later.
    await asyncio.sleep(1.1)
    await stream.publish(second, first=first + 1)
    return before + timedelta(seconds=1)


@pytest.mark.row(98)
@pytest.mark.covers("J93")
async def test_p4_start_time_not_repeated(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """P4: after a reset the server refused "optional start time is also set", for ever."""
    moment = await between(stream, 2, 3)
    config = QUICK.replace(deliver_policy="by_start_time", opt_start_time=moment)
    sub = await js.subscribe(stream.all, ordered=True, config=config)
    assert numbers(await take(sub, 3)) == [3, 4, 5]
    await stream.delete_consumer(sub.consumer)
    await wait_for_event(jsclient.ConsumerReset, events)
    await stream.publish(1, first=6)
    assert numbers(await take(sub, 1)) == [6]
    assert of(jsclient.ErrorRaised, events) == []
    await sub.unsubscribe()


@pytest.mark.row(97, 98)
@pytest.mark.covers("J93")
async def test_p5_new_survives_early_reset(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """P5: all 50 old messages were replayed."""
    await stream.publish(50)
    config = QUICK.replace(deliver_policy="new")
    sub = await js.subscribe(stream.all, ordered=True, config=config)
    await stream.delete_consumer(sub.consumer)
    # Stored before the consumer exists, and still new.
    await stream.publish(2, first=51)
    await wait_for_event(jsclient.ConsumerReset, events)
    assert numbers(await take(sub, 2)) == [51, 52]
    await stream.publish(1, first=53)
    assert numbers(await take(sub, 1)) == [53]
    await sub.unsubscribe()


@pytest.mark.core_cases(5)
@pytest.mark.row(97, 98)
@pytest.mark.covers("J93")
@pytest.mark.parametrize("loss", ["none", "first message", "consumer before the first message"])
@pytest.mark.parametrize("policy", ["all", "last", "by_start_sequence", "by_start_time", "last_per_subject"])
async def test_start_policy_survives_loss(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any], policy: str, loss: str
) -> None:
    config = QUICK.replace(deliver_policy=policy)
    if policy == "by_start_time":
        config = config.replace(opt_start_time=await between(stream, 4, 6))
        expected = [5, 6, 7, 8, 9, 10]
    else:
        for number in range(1, 11):
            await stream.publish(1, f"s{number % 3}", first=number)
        expected = {"all": list(range(1, 11)), "last": [10], "last_per_subject": [8, 9, 10]}.get(
            policy, [7, 8, 9, 10]
        )
    if policy == "by_start_sequence":
        config = config.replace(opt_start_seq=7)
    tap = await proxy()
    js = await connect(tap)
    if loss == "first message":
        tap.drop_frames(match.is_message(expected[0]), count=1)
    elif loss != "none":
        rule = tap.drop_frames(match.is_data)
    sub = await js.subscribe(stream.all, ordered=True, config=config)
    if loss.startswith("consumer"):
        await rule.wait(len(expected))
        await stream.delete_consumer(sub.consumer)
        rule.remove()
    assert numbers(await take(sub, len(expected))) == expected
    await stream.publish(1, first=11)
    assert numbers(await take(sub, 1)) == [11]
    assert bool(of(jsclient.ConsumerReset, events)) == (loss != "none")
    assert of(jsclient.ErrorRaised, events) == []
    await sub.unsubscribe()


@pytest.mark.row(107)
@pytest.mark.covers("J93")
async def test_start_past_deleted_messages_no_gap(js: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.publish(10)
    for seq in (1, 2, 5, 9):
        await stream.oracle.delete_message(stream.name, seq)
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK)
    assert numbers(await take(sub, 6)) == [3, 4, 6, 7, 8, 10]
    await stream.purge()
    await stream.publish(2, first=11)
    assert numbers(await take(sub, 2)) == [11, 12]
    await never(lambda: alarms(events), 4 * 0.5, "an alarm")
    await sub.unsubscribe()


@pytest.mark.covers("J93")
async def test_several_filters_kept_by_reset(js: Any, stream: OwnStream, events: list[Any]) -> None:
    filters = [stream.subject("a"), stream.subject("b")]
    config = QUICK.replace(filter_subjects=filters)
    sub = await js.subscribe(stream=stream.name, ordered=True, config=config)
    for number, name in enumerate("abcabc", start=1):
        await stream.publish(1, name, first=number)
    assert numbers(await take(sub, 4)) == [1, 2, 4, 5]
    await stream.delete_consumer(sub.consumer)
    await wait_for_event(jsclient.ConsumerReset, events)
    for number, name in enumerate("cab", start=7):
        await stream.publish(1, name, first=number)
    assert numbers(await take(sub, 2)) == [8, 9]
    await eventually(lambda: sub.pending == 0, what="nothing else")
    await sub.unsubscribe()

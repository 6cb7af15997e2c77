"""Which errors are retried, and until when, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient._runtime.retry import PATIENT, READING, Retry, RetryPolicy, is_transient, varied
from jsclient.errors import (
    AnswerLostError,
    ApiError,
    ConsumerNotFoundError,
    HeartbeatError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from tests.support.virtual import virtual


async def tried(errors: list[JetStreamError], policy: RetryPolicy = READING) -> tuple[int, float]:
    """How many of these are tried again before the first that is not, and the seconds that took."""
    loop, tries = asyncio.get_running_loop(), Retry(policy)
    start = loop.time()
    for count, error in enumerate(errors):
        if not await tries.again(error):
            return count, round(loop.time() - start, 2)
    return len(errors), round(loop.time() - start, 2)


@virtual
async def test_readers_retry_while_server_away():
    away = [RequestTimeoutError("x", 1.0), NoRespondersError()] * 50
    assert await tried(away) == (100, 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 95)


@virtual
async def test_refusals_are_final():
    assert await tried([PermissionDeniedError("publish", "x")]) == (0, 0.0)


@virtual
async def test_stream_missing_five_seconds():
    missing = StreamNotFoundError(404, 10059, "stream not found")
    count, seconds = await tried([missing] * 20)
    assert count < 20
    assert 5.0 <= seconds < 6.0
    assert (await tried([missing, missing, missing, NoRespondersError()] * 5))[0] == 20, (
        "from the last time it was there on"
    )


@virtual
async def test_twenty_lost_answers_final():
    lost = AnswerLostError("messages were lost on the way")
    assert (await tried([lost] * 100))[0] == 19
    assert (await tried([*[lost] * 19, NoRespondersError()] * 5))[0] == 100


@virtual
async def test_retries_end():
    count, seconds = await tried([NoRespondersError()] * 500, PATIENT)
    assert (count, seconds) == (120, 30.0)
    assert await tried([StreamNotFoundError(404, 10059, "stream not found")], PATIENT) == (0, 0.0)


@virtual
async def test_missing_consumer_for_readers():
    missing = ConsumerNotFoundError(404, 10014, "consumer not found")
    assert (await tried([missing] * 3))[0] == 3
    assert (await tried([missing] * 3, PATIENT))[0] == 0


def test_is_transient():
    assert is_transient(ApiError(503, 10008, "JetStream system temporarily unavailable"))
    assert is_transient(ApiError(500, 10012, "consumer closed"))
    assert not is_transient(ApiError(500, 10012, "deliver policy can not be updated"))
    assert not is_transient(ApiError(400, 10025, "bad request"))


@virtual
async def test_run_returns_or_raises():
    errors: list[JetStreamError] = [RequestTimeoutError("x", 1.0), NoRespondersError()]

    async def work() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert await Retry(PATIENT).run(work) == "done"
    errors.append(PermissionDeniedError("publish", "x"))
    with pytest.raises(PermissionDeniedError):
        await Retry(PATIENT).run(work)


@virtual
async def test_policy_can_add_transient_errors():
    silent = HeartbeatError(15.0)
    assert await tried([silent]) == (0, 0.0)
    assert await tried([silent], RetryPolicy(0.25, 0.25, also=(HeartbeatError,))) == (1, 0.25)


def test_pauses_leave_the_random_numbers_of_the_program_alone():
    """They are drawn in threads of the library too, and a program that has seeded its generator expects its own."""
    before = random.getstate()
    pauses = {varied(1.0) for _ in range(20)}
    assert random.getstate() == before
    assert len(pauses) > 1
    assert all(0.75 <= pause <= 1.25 for pause in pauses)

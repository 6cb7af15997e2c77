"""What is tried again, and until when, in virtual time."""

from __future__ import annotations

import asyncio

from jsclient._runtime.retry import Tries
from jsclient.errors import (
    AnswerLostError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from tests.support.virtual import virtual


async def tried(errors: list[JetStreamError]) -> tuple[int, float]:
    """How many of these are tried again before the first that is not, and the seconds that took."""
    loop, tries = asyncio.get_running_loop(), Tries()
    start = loop.time()
    for count, error in enumerate(errors):
        if not await tries.again(error):
            return count, round(loop.time() - start, 2)
    return len(errors), round(loop.time() - start, 2)


@virtual
async def test_a_server_that_is_away_is_asked_for_as_long_as_it_takes():
    away = [RequestTimeoutError("x", 1.0), NoRespondersError()] * 50
    assert await tried(away) == (100, 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 95)


@virtual
async def test_what_is_refused_is_not_asked_again():
    assert await tried([PermissionDeniedError("publish", "x")]) == (0, 0.0)


@virtual
async def test_a_stream_may_be_gone_for_five_seconds():
    gone = StreamNotFoundError(404, 10059, "stream not found")
    count, seconds = await tried([gone] * 20)
    assert count < 20
    assert 5.0 <= seconds < 6.0
    assert (await tried([gone, gone, gone, NoRespondersError()] * 5))[0] == 20, (
        "from the last time it was there on"
    )


@virtual
async def test_answers_that_are_always_lost_are_no_accident():
    lost = AnswerLostError("messages were lost on the way")
    assert (await tried([lost] * 100))[0] == 19
    assert (await tried([*[lost] * 19, NoRespondersError()] * 5))[0] == 100

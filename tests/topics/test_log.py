"""A log of any kind: subjects, and positions that are checked before they are used."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from jsclient.errors import (
    ConfigError,
    DisconnectedError,
    PositionInvalidError,
)
from jsclient.protocol.topics.position import Extent, Position
from jsclient.topics.log_reader import start_position
from jsclient.topics.memory_log import MemoryLog
from tests.support.virtual import virtual
from tests.topics.test_memory_log import filled


@pytest.mark.parametrize("subject", ["b", "a.b", "", "a b", "*"])
@virtual
async def test_subject_not_own_refused(subject):
    with pytest.raises(ConfigError):
        await MemoryLog("a").append(b"", subject=subject)


@virtual
async def test_subject_required():
    with pytest.raises(ConfigError):
        await MemoryLog("a.*").append(b"")


@virtual
async def test_positions_checked_before_they_used():
    log, other = await filled(3), await filled(3)
    at = (await log.extent()).end
    assert await start_position(log, at) == at
    assert (await start_position(log, "first")).seq == 0
    assert (await start_position(log, "now")).seq == 3
    for wrong in ((await other.extent()).end, at.at(4)):
        with pytest.raises(PositionInvalidError):
            await start_position(log, wrong)
    for wrong in ("last", None, 7, datetime(2026, 1, 1)):  # noqa: DTZ001  without a time zone
        with pytest.raises(ConfigError):
            await start_position(log, wrong)


class Replicated(MemoryLog):
    """A log whose leader gives each of these ends in turn, and repeats the last. An error is raised."""

    def __init__(self, *ends: int | Exception, connects: list[int] | None = None) -> None:
        super().__init__("a")
        self.ends = [*ends]
        self.connects = connects or [1]
        self.request_times: list[float] = []

    async def extent(self) -> Extent:
        self.request_times.append(asyncio.get_running_loop().time())
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        connects = self.connects.pop(0) if len(self.connects) > 1 else self.connects[0]
        if isinstance(end, Exception):
            raise end
        return Extent("memory", "1", 1, end, replicas=3, connects=connects)


@virtual
async def test_old_leader_keeps_position():
    at = Position("memory", "1", 70)
    for log in (Replicated(50, 50, 70), Replicated(*[50] * 10, DisconnectedError("gone"), 50, 71)):
        assert await start_position(log, at) == at
        async with asyncio.timeout(1):
            assert (await start_position(log, "now")).seq >= 70


@virtual
async def test_late_position_invalid_later():
    at, now = Position("memory", "1", 70), asyncio.get_running_loop().time
    for log, least in (
        (Replicated(50), 10),
        (Replicated(*[50] * 10, DisconnectedError("gone"), 50), 14),
        (Replicated(50, connects=[1] * 10 + [2]), 15),
    ):
        began = now()
        with pytest.raises(PositionInvalidError, match="position 70 is after the end of stream 'memory', 50"):
            await start_position(log, at)
        assert least <= now() - began < least + 3
    for created in ("2", ""):
        began = now()
        with pytest.raises(PositionInvalidError, match="recreated"):
            await start_position(log, Position("memory", created, 70))
        assert now() == began, "of another incarnation it is invalid at once"


@virtual
async def test_first_question_fails_raised():
    with pytest.raises(DisconnectedError):
        await start_position(Replicated(DisconnectedError("gone"), 50), Position("memory", "1", 70))

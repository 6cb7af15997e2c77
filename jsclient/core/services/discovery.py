"""Discovers the running instances of services. Source: ADR-32."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...errors import NoRespondersError, ProtocolError
from ...protocol.core.services import ServiceInfo, ServiceStats, check_service_name, read_info, read_stats

if TYPE_CHECKING:
    from ..api import Core

__all__ = ["counters", "instances"]

T = TypeVar("T", ServiceInfo, ServiceStats)

_TIMEOUT = 1.0  # default timeout for all responses together, in seconds


async def instances(core: Core, name: str | None, timeout: float | None) -> list[ServiceInfo]:
    """See `Core.services`."""
    return await _answers(core, "INFO", name, timeout, read_info)


async def counters(core: Core, name: str | None, timeout: float | None) -> list[ServiceStats]:
    """See `Core.service_stats`."""
    return await _answers(core, "STATS", name, timeout, read_stats)


async def _answers(
    core: Core, verb: str, name: str | None, timeout: float | None, read: Callable[[bytes], T]
) -> list[T]:
    subject = f"$SRV.{verb}" if name is None else f"$SRV.{verb}.{check_service_name(name)}"
    seconds = _TIMEOUT if timeout is None else timeout
    answers: dict[tuple[str, str], T] = {}  # one for each instance, even if it responds twice
    async with core.request_many(subject, timeout=seconds, stall=seconds / 3) as replies:
        try:
            async for reply in replies:
                try:
                    answer = read(reply.data)
                except ProtocolError:
                    # Ignore malformed responses. Anyone who may answer on $SRV could otherwise make discovery fail.
                    continue
                if name is None or answer.name == name:
                    answers.setdefault((answer.name, answer.id), answer)
        except NoRespondersError:
            pass  # no service is running, so the result is empty
    return list(answers.values())

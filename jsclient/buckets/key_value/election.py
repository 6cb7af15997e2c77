"""One of many clients does some work: `KeyValue.elect`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import LeaseLostError
from .lock import KeyValueLock

if TYPE_CHECKING:
    from .key_value import KeyValue

__all__ = ["elect"]

T = TypeVar("T")


async def elect(
    kv: KeyValue[Any], key: str, work: Callable[[KeyValueLock[Any]], Awaitable[T]], *, ttl: float, value: Any
) -> T:
    """Call ``work`` each time the lock of a key is acquired, until it returns. See `KeyValue.elect`."""
    while True:
        lock = await kv.lock(key, ttl=ttl, value=value)
        try:
            async with lock:
                return await work(lock)
        except LeaseLostError as error:
            if (error.bucket, error.key, error.token) != (kv.bucket, key, lock.token):
                raise  # the error belongs to another lock
            kv._context.report(error)  # noqa: SLF001  one room

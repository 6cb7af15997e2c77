"""Leader election, which makes sure that only one client does some work: `KeyValue.elect`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..._runtime.connection.connection import CLOSED
from ..._runtime.handlers import check_handler, is_coroutine_function
from ...errors import ClosedError, ConfigError, LeaseLostError
from .lock import CONNECTION_CLOSED, KeyValueLock

if TYPE_CHECKING:
    from .key_value import KeyValue

__all__ = ["elect"]

T = TypeVar("T")


async def elect(
    kv: KeyValue[Any], key: str, work: Callable[[KeyValueLock[Any]], Awaitable[T]], *, ttl: float, value: Any
) -> T:
    """Call ``work`` each time the lock of a key has been acquired, until it returns. See `KeyValue.elect`."""
    check_handler("work", work, "lock")
    if not is_coroutine_function(work):
        raise ConfigError(
            "work is a plain function, which could not be cancelled when the lock is lost: give a coroutine function "
            "(async def), or functools.partial of one"
        )
    while True:
        lock = await kv.lock(key, ttl=ttl, value=value)
        try:
            async with lock:
                return await work(lock)
        except LeaseLostError as error:
            if (error.bucket, error.key, error.token) != (kv.bucket, key, lock.token):
                raise  # the error is about a different lock
            kv._context.report(error)  # noqa: SLF001  same package
            if error.reason == CONNECTION_CLOSED:
                raise ClosedError(CLOSED) from error

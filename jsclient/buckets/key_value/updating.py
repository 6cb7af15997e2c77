"""Replaces a value with the result of a function: `KeyValue.update_with`."""

from __future__ import annotations

import random
from asyncio import sleep
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..._runtime.handlers import check_handler, check_plain
from ...errors import KeyNotFoundError, RevisionMismatchError
from ...protocol.wire.checks import check_count
from .storing import store_after

if TYPE_CHECKING:
    from .key_value import KeyValue

__all__ = ["update_with"]

_PAUSE: Final = 0.002  # seconds. The maximum pause between attempts grows by this amount with each attempt


async def update_with(kv: KeyValue[Any], key: str, function: Callable[[Any], Any], attempts: int) -> int:
    """Replace the value of a key with the result of a function. See `KeyValue.update_with`."""
    check_handler("function", function, "value")
    check_plain("function", function)
    kv._keys.check_writable()  # noqa: SLF001  same package
    subject, tries = kv._keys.subject(key), check_count("attempts", attempts)  # noqa: SLF001
    while True:
        # Ask the leader, because a lagging replica may not have the revision that another client has stored.
        message = await kv._stored({"last_by_subj": subject})  # noqa: SLF001
        entry = None if message is None else kv._entry(key, message)  # noqa: SLF001
        before = None if entry is None or entry.is_deleted else entry.value
        value = function(before)
        if value is None:
            # Don't check ``before``, because a codec may decode a value to None.
            if entry is None or entry.is_deleted:
                raise KeyNotFoundError(kv.bucket, key, entry)
            return entry.revision
        try:
            data = kv._keys.encoded(key, value)  # noqa: SLF001
            return await store_after(kv, key, data, 0 if entry is None else entry.revision)
        except RevisionMismatchError:
            tries -= 1
            if not tries:
                raise
            await sleep(random.uniform(0, _PAUSE * min(attempts - tries, 50)))  # noqa: S311  not for secrets

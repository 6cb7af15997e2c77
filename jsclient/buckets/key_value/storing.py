"""Conditional writes, which require that a key has no value or an expected revision: `KeyValue.create`, `update`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...errors import KeyExistsError, RevisionMismatchError, WrongLastSequenceError

if TYPE_CHECKING:
    from ...protocol.models.message import StoredMessage
    from .key_value import KeyValue

__all__ = ["has_value", "store_after", "store_new", "store_past"]

_RACES: Final = 5  # maximum number of attempts to store a value while other clients store stray messages

_ExpectedT = TypeVar("_ExpectedT")


def has_value(kv: KeyValue[Any], message: StoredMessage | None) -> bool:
    """Return whether the newest message of a key is a value."""
    return message is not None and kv._keys.operation(message.headers) == "PUT"  # noqa: SLF001  same package


async def store_new(kv: KeyValue[Any], key: str, value: bytes, **options: Any) -> int:
    """Create a key, and return its revision. See `KeyValue.create`."""
    try:
        return await kv._write(key, value, expected=0, **options)  # noqa: SLF001  same package
    except WrongLastSequenceError:
        message = await kv._stored({"last_by_subj": kv._keys.subject(key)})  # noqa: SLF001
    if message is None:  # the message that caused the refusal has been removed since
        revision = 0
    elif not kv._entry(key, message).is_deleted:  # noqa: SLF001
        raise KeyExistsError(kv.bucket, key, message.seq)
    else:
        revision = message.seq
    try:
        return await kv._write(key, value, expected=revision, **options)  # noqa: SLF001
    except WrongLastSequenceError:
        raise KeyExistsError(kv.bucket, key) from None


async def store_after(kv: KeyValue[Any], key: str, value: bytes, last: int | None, **options: Any) -> int:
    """Store a value or a deletion if the key still has revision ``last``. See `KeyValue.update`."""

    async def write(expected: int | None) -> int:
        return await kv._write(key, value, expected=expected, **options)  # noqa: SLF001  same package

    async def past_stray() -> int | None:
        if not kv._keys.own:  # noqa: SLF001
            return None
        message = await kv._stored({"last_by_subj": kv._keys.subject(key)})  # noqa: SLF001
        if message is None or not kv._keys.is_stray(message.headers):  # noqa: SLF001
            return None
        kv._entry(key, message)  # noqa: SLF001  reports the stray message
        return message.seq

    revision = await store_past(write, last, past_stray)
    if revision is None:
        raise RevisionMismatchError(kv.bucket, key, last or 0)
    return revision


async def store_past(
    write: Callable[[_ExpectedT], Awaitable[int]],
    expected: _ExpectedT,
    newer: Callable[[], Awaitable[_ExpectedT | None]],
) -> int | None:
    """Store something if an expected revision still applies. Stray messages of other clients don't prevent that.

    If the server refuses the write, ``newer`` is called. It returns the revision to expect next, or None if the newest
    message of the key isn't stray. Return the new revision, or None if nothing was stored.
    """
    for _ in range(_RACES):
        try:
            return await write(expected)
        except WrongLastSequenceError:
            pass
        following = await newer()
        if following is None:
            break
        expected = following
    return None

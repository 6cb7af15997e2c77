"""Removes the entries of deleted keys: `KeyValue.purge_deletes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...protocol.wire.checks import check_seconds

if TYPE_CHECKING:
    from .key_value import KeyValue

__all__ = ["purge_deletes"]


async def purge_deletes(kv: KeyValue[Any], older_than: float) -> int:
    """Remove the entries of deleted keys, and return how many keys were removed. See `KeyValue.purge_deletes`."""
    if older_than:
        check_seconds("older_than", older_than)
    kv._keys.check_writable()  # noqa: SLF001  same package
    removed = 0
    # Read the keys in their stored form, because a key that the codec can't decode would end the iteration.
    stored = msgspec.structs.replace(kv._keys, key_codec=None, codec=None)  # noqa: SLF001
    reader = kv._reader((), headers_only=True, keys=stored)  # noqa: SLF001
    deleted = [entry async for entry in reader.initial() if entry.is_deleted]
    info = await kv._renewed()  # noqa: SLF001
    now = None if info.ts is None else info.ts.timestamp()
    for entry in deleted:
        is_old = not older_than or now is None or now - entry.created_ns / 1e9 >= older_than
        # Never remove messages above the deletion, because another client may have stored a new value.
        below = entry.revision + 1 if is_old else entry.revision
        if below > 1:  # otherwise the server would remove all messages of the key
            await kv._purge(stored.reads + entry.key, "purge deletions", below=below)  # noqa: SLF001
        removed += is_old
    return removed

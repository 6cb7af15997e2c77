"""Sets many values with many publishes in flight: `KeyValue.put_many`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from ..._runtime.context import Context
from ..._runtime.publish import check_payload
from ...errors import ConfigError
from ...protocol.buckets.entry import OWN
from ...protocol.buckets.keys import KeySpace
from ...protocol.wire.headers import encode_headers
from ...publishing.publish_many import Columns, publish_columns

__all__ = ["put_many"]

_CHUNK: Final = 1000  # number of values that are checked together, before the first of them is sent


async def put_many(
    context: Context,
    keys: KeySpace,
    values: Mapping[str, Any] | Iterable[tuple[str, Any]],
    max_in_flight: int,
) -> int:
    """See `KeyValue.put_many`."""
    keys.check_writable()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(
            f"values is {type(values).__name__}: a mapping is needed, or pairs of a key and a value"
        )
    pairs = values.items() if isinstance(values, Mapping) else values
    stored = await publish_columns(
        context,
        _columns_of(keys, iter(pairs)),
        max_in_flight=max_in_flight,
        timeout=context.timeout,
        repeatable=False,
    )
    return stored.last_seq


def _columns_of(keys: KeySpace, pairs: Iterator[tuple[str, Any]]) -> Iterator[Columns]:
    block = encode_headers({OWN: "1"}) if keys.own else b""
    while chunk := list(islice(pairs, _CHUNK)):
        subjects, payloads = list[bytes](), list[bytes]()
        for pair in chunk:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ConfigError(f"values has {pair!r:.60}: pairs of a key and a value are needed")
            key, value = pair
            subjects.append(keys.target(key).encode())
            payloads.append(check_payload(keys.encoded(key, value)))
        yield subjects, [block] * len(chunk), payloads

"""Damaged input: bytes cut, doubled and replaced. Tokens of a subject, lines of a block, values of a JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

LARGE = 20_000  # bytes of an inflated input

Mutator = Callable[[Random, bytes], bytes]

PIECES = [
    b"", b"\r\n", b"\r", b"\n", b"\x00", b" ", b".", b"..", b":", b": ", b"\xff\xfe", b"\xd9\xa3", b"-1", b"+1",
    b"1_0", b"00", b"9" * 20, b"9" * 400, b"9" * 5000, b"18446744073709551615", b"18446744073709551616", b"null",
    b"[]", b"{}", b'"', b"\\ud800", b"\\u0000", b"1e999", b"-0", b"NaN", b"true", b"NATS/1.0", b"NATS/1.0 503",
    b"0x1", b"$JS.ACK.", b"$JS.API.", b"$JS.FC.", b"$SYS.", b"*", b">", b"\xed\xa0\x80", b"[" * 300, b"[" * 3000,
    b'{"a":' * 50, b"MSG ", b"HMSG ", b"INFO ", b"\xe2\x80\xa8", b"A" * 300,
]  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "+1", "1_0", "01", "1.0", "1e3", " 1", "1 ", "", "x", "0x10", "٣", "²",
    "9" * 19, "9" * 20, "18446744073709551615", "18446744073709551616", "9" * 400, "9" * 5000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**30, 1.5, -0.0, 1e308, "", "x", "0", "\ud800",
    "\x00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "2026-02-30T00:00:00Z", "a" * 300, [], {},
    [None], [[]], {"a": None}, {"": {}}, [1, "a", None, {}],
]  # fmt: skip


def deep(chance: Random) -> Any:
    """A value in many lists or objects."""
    value: Any = 1
    for _ in range(chance.choice([3, 60, 400])):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


def bytes_damaged(chance: Random, sample: bytes) -> bytes:
    """Some bytes cut, doubled, changed or replaced by a piece of the dictionary."""
    out = bytearray(sample)
    for _ in range(chance.randrange(4)):
        start = chance.randrange(len(out) + 1)
        end = min(len(out), start + chance.choice((0, 1, 1, 2, 8, 60)))
        kind = chance.randrange(5)
        if kind == 0:
            out[start:end] = chance.choice(PIECES)
        elif kind == 1:
            del out[start:end]
        elif kind == 2:
            out[start:start] = out[start:end]
        # change one byte
        elif kind == 3 and start < len(out):
            out[start] = chance.randrange(256)
        else:
            out[start:end] = chance.randbytes(end - start)
    return bytes(out)


def tokens_damaged(separator: bytes) -> Mutator:
    """Parts between separators replaced, dropped, doubled and exchanged."""

    def damage(chance: Random, sample: bytes) -> bytes:
        parts = sample.split(separator)
        for _ in range(chance.choice((1, 1, 2, 3))):
            index = chance.randrange(len(parts)) if parts else 0
            kind = chance.randrange(6)
            if not parts or kind == 0:
                parts.insert(index, chance.choice(PIECES))
            elif kind == 1:
                del parts[index]
            elif kind == 2:
                parts[index] = chance.choice(NUMBERS).encode()
            elif kind == 3:
                parts.insert(index, parts[index])
            # exchange two parts
            elif kind == 4:
                other = chance.randrange(len(parts))
                parts[index], parts[other] = parts[other], parts[index]
            else:
                parts[index] = bytes_damaged(chance, parts[index])
        return separator.join(parts)

    return damage


def json_damaged(chance: Random, sample: bytes) -> bytes:
    """One or two places of a JSON document with another value, without one, or with one more."""
    try:
        document = json.loads(sample)
    except ValueError:
        return bytes_damaged(chance, sample)
    for _ in range(chance.choice((1, 1, 2))):
        document = _changed(chance, document)
    return json.dumps(document).encode()


def _changed(chance: Random, node: Any) -> Any:
    if isinstance(node, dict) and node and chance.random() < 0.9:
        key = chance.choice(list(node))
        kind = chance.randrange(8)
        if kind == 0:
            del node[key]
        elif kind == 1:
            node[chance.choice(["", "x", "error", "config", key.upper()])] = _value(chance)
        elif kind == 2:
            node[key] = _value(chance)
        else:
            node[key] = _changed(chance, node[key])
        return node
    # an object without keys, and a list without items, is replaced as a whole
    if isinstance(node, list) and node and chance.random() < 0.8:
        index = chance.randrange(len(node))
        kind = chance.randrange(4)
        if kind == 0:
            node.insert(index, _value(chance))
        elif kind == 1:
            node += node[: chance.choice((1, 5))]
        else:
            node[index] = _changed(chance, node[index])
        return node
    return _value(chance)


def _value(chance: Random) -> Any:
    if chance.random() < 0.05:
        return deep(chance)
    if chance.random() < 0.1:
        return chance.choice(NUMBERS)
    return json.loads(json.dumps(chance.choice(VALUES)))  # a copy, which may be changed


def inflated(chance: Random, sample: bytes) -> bytes:
    """The sample with one part of it repeated up to 20 kB, damaged as bytes or not."""
    if not sample:
        return chance.randbytes(LARGE)
    start = chance.randrange(len(sample))
    length = chance.choice((1, 2, 3, 10, 40, len(sample)))
    part = chance.choice([sample[start : start + length], *PIECES[1:]])
    times = max(1, (LARGE - len(sample)) // len(part))
    large = sample[:start] + part * times + sample[start:]
    return (bytes_damaged(chance, large) if chance.random() < 0.5 else large)[:LARGE]


SUBJECT = (tokens_damaged(b"."), bytes_damaged)
BLOCK = (tokens_damaged(b"\r\n"), tokens_damaged(b": "), bytes_damaged)
WIRE = (tokens_damaged(b"\r\n"), tokens_damaged(b" "), bytes_damaged)
JSON = (json_damaged, json_damaged, bytes_damaged)
TEXT = (bytes_damaged, tokens_damaged(b" "))

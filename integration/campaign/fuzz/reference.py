"""Slow implementations from the specifications, to be compared with the implementations of the library."""

from __future__ import annotations

import re

MAX = 2**64 - 1

Place = tuple[str, str, int, int, int, int, int, str | None]


def jsack(reply: bytes) -> Place | None:
    """A JSAck by ADR-15: 9 tokens, or 11 and more, none empty. Five numbers of 64 bits in digits, sequences from 1."""
    tokens = reply.split(b".")
    if tokens[:2] != [b"$JS", b"ACK"] or len(tokens) < 9 or len(tokens) == 10 or b"" in tokens:
        return None
    body = tokens[2:9] if len(tokens) == 9 else tokens[4:11]
    numbers = []
    for token in body[2:]:
        if not re.fullmatch(rb"[0-9]{1,20}", token) or int(token) > MAX:
            return None
        numbers.append(int(token))
    domain = None if len(tokens) == 9 or tokens[2] == b"_" else _text(tokens[2])
    delivered, stream_seq, consumer_seq, timestamp, pending = numbers
    if not stream_seq or not consumer_seq:
        return None
    return _text(body[0]), _text(body[1]), delivered, stream_seq, consumer_seq, timestamp, pending, domain


def headers(block: bytes) -> tuple[int, list[tuple[str, str]]]:
    """The inline status of a block, or 0, and its headers in order, names grouped at their first place."""
    if not block.startswith(b"NATS/1.0"):
        return 0, []
    first, *lines = block.split(b"\r\n")
    results: dict[str, list[str]] = {}
    for line in lines:
        # an empty line ends the block
        if not line:
            break
        name, colon, value = line.partition(b":")
        if colon and name:
            results.setdefault(name.decode(errors="replace"), []).append(
                value.decode(errors="replace").strip(" \t")
            )
    status = re.fullmatch(rb"NATS/1\.0 ([1-9][0-9][0-9])(?: .*)?", first, re.DOTALL)
    pairs = [(name, value) for name, values in results.items() for value in values]
    return int(status[1]) if status else 0, pairs


def frames(data: bytes) -> list[tuple[bytes, bytes, bytes, bytes, bytes]] | None:
    """The messages in a stream of bytes as ``(sid, subject, reply, headers, payload)``. None: it is malformed.

    What is left incomplete at the end is ignored.
    """
    results = []
    while data:
        line, end, remainder = data.partition(b"\r")
        if not end or not remainder:
            return results
        if not remainder.startswith(b"\n"):
            return None
        remainder = remainder[1:]
        op, *arguments = line.split(b" ")
        if op not in (b"MSG", b"HMSG"):
            data = remainder
            continue
        sizes = 1 if op == b"MSG" else 2
        names, numbers = arguments[:-sizes], arguments[-sizes:]
        if len(names) not in (2, 3) or not all(re.fullmatch(rb"[0-9]+", number) for number in numbers):
            return None
        # a number that long is no size of a message
        if len(numbers[-1]) > 12 or len(numbers[0]) > len(numbers[-1]):
            return None
        total, head = int(numbers[-1]), int(numbers[0]) if sizes == 2 else 0
        if head > total:
            return None
        if len(remainder) < total + 2:
            return results
        if remainder[total : total + 2] != b"\r\n":
            return None
        reply = names[2] if len(names) == 3 else b""
        results.append((names[1], names[0], reply, remainder[:head], remainder[head:total]))
        data = remainder[total + 2 :]
    return results


def _text(token: bytes) -> str:
    return token.decode("utf-8", "surrogateescape")

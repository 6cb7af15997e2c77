"""The commands of publishes, compared with commands written one by one."""

from __future__ import annotations

from random import Random

import pytest

from jsclient.protocol.wire.commands import PublishLines, burst_commands, large_command, publish_command


def one_by_one(subjects, replies, headers, payloads) -> bytes:
    """Each command as the protocol's documentation writes it."""
    text = b""
    for subject, reply, header, payload in zip(subjects, replies, headers, payloads, strict=True):
        size = str(len(header + payload)).encode()
        if header:
            text += b"HPUB " + subject + b" " + reply + b" " + str(len(header)).encode() + b" " + size
        else:
            text += b"PUB " + subject + b" " + reply + b" " + size
        text += b"\r\n" + header + payload + b"\r\n"
    return text


def some(random: Random, count: int, headers: str) -> tuple[list[bytes], ...]:
    """Columns of messages, all, none or some of which have headers."""
    lots = {"all": 1.0, "none": 0.0, "some": 0.5}[headers]
    return (
        [random.choice([b"orders.new", b"s", b"a.b.c"]) for _ in range(count)],
        [b"_INBOX.x.%d" % number for number in range(count)],
        [
            b"NATS/1.0\r\nA: %d\r\n\r\n" % random.randrange(10**6) if random.random() < lots else b""
            for _ in range(count)
        ],
        [random.randbytes(random.choice([0, 1, 9, 10, 100, 2000])) for _ in range(count)],
    )


@pytest.mark.parametrize("headers", ["all", "none", "some"])
def test_burst(headers):
    for seed in range(50):
        columns = some(Random(seed), 1 + seed % 20, headers)
        heads = list(map(len, columns[2]))
        sizes = [head + len(payload) for head, payload in zip(heads, columns[3], strict=True)]
        assert burst_commands(*columns, heads, sizes) == one_by_one(*columns)


def test_single_message():
    for seed in range(50):
        for subject, _, header, payload in zip(*some(Random(seed), 5, "some"), strict=True):
            reply, command = publish_command(subject, b"_INBOX.x.", seed, header, payload)
            assert reply == b"_INBOX.x.%d" % seed
            assert command == one_by_one([subject], [reply], [header], [payload])
            parts = large_command(subject, reply, header, payload)
            assert b"".join(parts) == command
            assert parts[1] is payload


def test_lines_begin_commands_and_are_bounded():
    lines = PublishLines(b"orders.new")
    for size in [0, 1, 10, *range(1000), 10]:
        assert lines[size] + b"x" * size + b"\r\n" == b"PUB orders.new %d\r\n%b\r\n" % (size, b"x" * size)
        assert len(lines) <= lines.CAPACITY

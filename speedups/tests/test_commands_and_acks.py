"""Commands and acks of publishes are the same as in Python, which is the specification."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from jsclient_speedups import burst_commands, join_acks, publish_command

from jsclient._runtime.connection.speedups import chosen
from jsclient.protocol.models.publish import PubAck, quick_pub_acks, read_pub_ack
from jsclient.protocol.wire import commands
from tests.support import acks

TEXTS = [b"", b"a", b"orders.new", b"x" * 99, b"\x00\xff\r\n", b"\xc3\xa4.b"]
BYTES = b'0123456789{}[]",:\\ \x00\x1f\x7f\xffaestrmquc'


def texts(random: Random, count: int) -> list[bytes]:
    return [random.choice(TEXTS) for _ in range(count)]


def ack(random: Random) -> bytes:
    text = b'{"stream":"%b",%b' % (
        random.choice([b"S", b"ORDERS", b"a}b{", b"A B"]),
        random.choice([b" ", b""]),
    )
    if random.random() < 0.2:
        text += b'"domain":"hub",' + random.choice([b" ", b""])
    text += b'"seq":%d' % random.choice(
        [1, 7, 10**18, 10**19 - 1, 10**19, 2**64 - 1, random.randrange(1, 10**6)]
    )
    if random.random() < 0.2:
        text += random.choice([b',"duplicate": true', b',"duplicate":true', b',"val":"5"'])
    return text + b"}"


def damaged(random: Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(random.randrange(1, 3)):
        at = random.randrange(len(changed))
        match random.randrange(3):
            case 0:
                changed[at] = random.choice(BYTES)
            case 1:
                del changed[at]
            case _:
                changed.insert(at, random.choice(BYTES))
    return bytes(changed)


def test_they_are_in_use():
    assert chosen().publish_command is publish_command
    assert chosen().burst_commands is burst_commands
    assert chosen().join_acks is join_acks


def test_single_commands(block):
    first, count = block
    for seed in range(first, first + count):
        random = Random(seed)
        subject, prefix, header, data = texts(random, 4)
        number = random.choice([0, 9, 10, 2**63, 2**64 - 1, random.randrange(10**6)])
        assert publish_command(subject, prefix, number, header, data) == commands.publish_command(
            subject, prefix, number, header, data
        )


def test_bursts(block):
    first, count = block
    for seed in range(first, first + count // 10):
        random = Random(seed)
        size = random.randrange(1, 9)
        columns = [texts(random, size) for _ in range(4)]
        if random.random() < 0.5:
            columns[2] = [b""] * size
        heads = [len(header) for header in columns[2]]
        sizes = [head + len(payload) for head, payload in zip(heads, columns[3], strict=True)]
        assert burst_commands(*columns) == commands.burst_commands(*columns, heads, sizes)


def test_acks(block):
    first, count = block
    ordinary = 0
    for seed in range(first, first + count):
        random = Random(seed)
        size = random.randrange(4)
        frames = [(b"r.%d" % number, b"", b"", ack(random)) for number in range(size)]
        if frames and random.random() < 0.5:
            at = random.randrange(size)
            frames[at] = (*frames[at][:3], damaged(random, frames[at][3]))
        start, stop, offset = random.randrange(-1, 3), random.randrange(-1, 5), random.randrange(3)
        replies = [b"r.%d" % (number + start - offset) for number in range(offset + size)]
        if replies and random.random() < 0.3:
            replies[random.randrange(len(replies))] = random.choice([b"r.1", b"", b"r.10"])
        for these in (None, replies):
            arguments = frames, start, stop, these, offset
            joined = join_acks(*arguments)
            assert joined == acks.join_acks(*arguments), arguments
            if joined:
                # Acks that are read together are the same as acks that are read one by one.
                assert quick_pub_acks(joined) == [read_pub_ack(frame[3]) for frame in frames[start:stop]]
                ordinary += 1
    assert ordinary > count // 20


def test_every_cut_of_an_ack():
    whole = b'{"stream":"ORDERS", "domain":"hub", "seq":12,"duplicate": true}'
    expected = PubAck(stream="ORDERS", domain="hub", seq=12, duplicate=True)
    assert msgspec.json.decode(join_acks([(b"r", b"", b"", whole)], 0, 1), type=list[PubAck]) == [expected]
    for end in range(len(whole)):
        for text in (whole[:end], whole + whole[:end], whole[:end] + whole[end + 1 :]):
            arguments = [(b"r", b"", b"", text)], 0, 1
            assert join_acks(*arguments) == acks.join_acks(*arguments), text


def test_columns_of_different_lengths():
    for index in range(4):
        columns = [[b"a"], [b"a"], [b"a"], [b"a"]]
        columns[index] = [b"a", b"a"]
        with pytest.raises(ValueError, match="lengths"):
            burst_commands(*columns)
    assert burst_commands([], [], [], []) == b""


@pytest.mark.parametrize("wrong", [None, "text", 5, bytearray(b"a")], ids=repr)
def test_other_types_are_errors(wrong):
    for index in range(4):
        parts = [b"a"] * 4
        parts[index] = wrong
        with pytest.raises(TypeError):
            publish_command(*parts[:2], 1, *parts[2:])
        with pytest.raises(TypeError):
            burst_commands(*([part] for part in parts))
    with pytest.raises((TypeError, SystemError)):
        join_acks([wrong], 0, 1)
    with pytest.raises(TypeError):
        join_acks([(b"r", b"", b"", wrong)], 0, 1)
    with pytest.raises(OverflowError):
        publish_command(b"a", b"b", -1, b"", b"")

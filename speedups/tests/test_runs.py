"""Messages that have arrived together are read like in Python, which is the specification."""

from __future__ import annotations

from random import Random

import pytest
from jsclient_speedups import jsack_numbers, last_of_whole_run, total_size

from jsclient._runtime.connection.speedups import chosen
from jsclient.protocol.consumers.ack import Runs
from jsclient.protocol.wire import frames as wire_frames

RUN = b"$JS.ACK.ORDERS.new.1"
PYTHON = Runs()
BYTES = b"0123456789. +-_a\xff"


def frames(count: int, seq: int, number: int) -> list[tuple[bytes, bytes, bytes, bytes]]:
    return [
        (
            b"orders",
            b"%b.%d.%d.1750000000000000000.%d" % (RUN, seq + one, number + one, count - one),
            b"",
            b"x" * one,
        )
        for one in range(count)
    ]


def damaged(random: Random, reply: bytes) -> bytes:
    changed = bytearray(reply)
    for _ in range(random.randrange(1, 3)):
        place = random.randrange(len(changed))
        match random.randrange(3):
            case 0:
                changed[place] = random.choice(BYTES)
            case 1:
                del changed[place]
            case _:
                changed.insert(place, random.choice(BYTES))
    return bytes(changed)


def test_they_are_in_use():
    assert chosen().runs == Runs(last_of_whole_run, total_size)


def test_same_answers_as_python(block):
    first, count = block
    runs = 0
    for seed in range(first, first + count):
        random = Random(seed)
        number = random.choice([1, 998, random.randrange(1, 10**6), 10**19 - 5])
        some = frames(
            random.randrange(12), random.choice([1, 996, 10**18, random.randrange(1, 10**7)]), number
        )
        if some and random.random() < 0.4:
            at = random.randrange(len(some))
            some[at] = (some[at][0], damaged(random, some[at][1]), b"NATS/1.0\r\n\r\n", b"")
        run = random.choice([RUN, RUN, RUN, RUN, RUN, b"", RUN[:-1], RUN + b".1"])
        due = random.choice([number, number, number, number, None, number + 1, 0, -1, 10**19, 2**70])
        last = PYTHON.last_of_whole_run(some, run, due)
        assert last_of_whole_run(some, run, due) == last, (some, run, due)
        assert total_size(some) == wire_frames.total_size(some)
        runs += last > 0
    assert runs > count // 20


def test_every_cut_of_a_reply():
    (whole,) = frames(1, 5, 7)
    for end in range(len(whole[1]) + 1):
        cut = [(whole[0], whole[1][:end], whole[2], whole[3])]
        assert last_of_whole_run(cut, RUN, 7) == PYTHON.last_of_whole_run(cut, RUN, 7), end


def test_no_frames_are_no_run():
    assert last_of_whole_run([], RUN, 1) == 0
    assert total_size([]) == 0


@pytest.mark.parametrize("wrong", [(), None, [1], [(b"a",)], [(b"a", "b", b"c", b"d")]], ids=repr)
def test_other_types_are_errors(wrong):
    with pytest.raises((TypeError, IndexError, SystemError)):
        last_of_whole_run(wrong, RUN, 1)
    with pytest.raises((TypeError, IndexError, SystemError)):
        total_size(wrong)


def numbers_of(some) -> list[list[int]]:
    """Return the columns of numbers. They begin with the fifth of nine tokens, or with the seventh of more tokens."""
    tokens = [reply.split(b".") for _, reply, _, _ in some]
    rows = [[int(text) for text in (one[4:9] if len(one) == 9 else one[6:11])] for one in tokens]
    return [list(column) for column in zip(*rows, strict=True)]


def reply_of(random: Random) -> bytes:
    number = random.choice([0, 1, 2**63 - 1, 2**63, 10**19, random.randrange(10**6)])
    begin = random.choice([b"ORDERS.new", b"_.hash.ORDERS.new", b"hub.hash.ORDERS.new"])
    end = random.choice([b"", b"", b".token", b".0", b"."])
    return b"$JS.ACK.%b.1.%d.7.1750000000000000000.%d%b" % (begin, random.randrange(1, 10**9), number, end)


def test_numbers_of_replies(block):
    first, count = block
    ordinary = 0
    for seed in range(first, first + count // 20):
        random = Random(seed)
        some = [(b"orders", reply_of(random), b"", b"")] * random.randrange(1, 3)
        if random.random() < 0.3:
            some.append((b"orders", damaged(random, some[0][1]), b"", b""))
        arrays = memoryview(jsack_numbers(some)).cast("q").tolist()
        if arrays:
            parts = [arrays[at : at + len(some)] for at in range(0, len(arrays), len(some))]
            assert parts == numbers_of(some), some
            ordinary += 1
    assert ordinary > count // 100


def test_numbers_of_ordinary_replies():
    some = frames(3000, 7, 9)
    arrays = memoryview(jsack_numbers(some)).cast("q").tolist()
    assert arrays == [number for numbers in numbers_of(some) for number in numbers]
    assert jsack_numbers([]) == b""
    for part in (b"", b"$JS.ACK", b"$JS.ACK.", b"." * 8, b"." * 11, b"$JS.ACK.S.C.1.2.3.4.5x"):
        assert jsack_numbers([(b"orders", part, b"", b"")]) == b""

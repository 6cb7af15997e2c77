"""Messages that have arrived together are read as with Python, which is the specification."""

from __future__ import annotations

from random import Random

import pytest
from jsclient_speedups import last_of_whole_run, total_size

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

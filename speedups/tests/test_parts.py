"""Single headers and JSAcks are read like in Python, which is the specification."""

from __future__ import annotations

from random import Random

import pytest
from jsclient_speedups import find_header, is_ordinary_jsack, split_jsack

from jsclient._runtime.connection.speedups import chosen
from jsclient.protocol.consumers import ack
from jsclient.protocol.wire import headers

NAMES = ["A", "Ab", "Trace-Id", "A b", "\t", "a", "A\0", "~"]
PIECES = [
    b"\r\n",
    b"\r",
    b"\n",
    b":",
    b": ",
    b" ",
    b"\t",
    b"A",
    b"Ab",
    b"Trace-Id",
    b"a",
    b"\0",
    b"~",
    b"\xff",
]
PIECES += [
    b"\r\nA:",
    b"\r\nTrace-Id: 1",
    b"\r\n\r\n",
    b"NATS/1.0",
    b" 100 Idle",
    "é".encode(),
    b"\xc3",
    b"x" * 40,
]
ODD_NAMES = ["", ":", "A:", "\r", "\n", "A\r\nAb", "é", "\ufffd", "\ud800", 1, None, b"A"]


def test_they_are_in_use():
    assert chosen().find_header is find_header
    assert chosen().match_jsack is is_ordinary_jsack


def test_same_values_as_python(block):
    first, count = block
    found = 0
    for seed in range(first, first + count):
        random = Random(seed)
        text = b"".join(random.choices(PIECES, k=random.randrange(12)))
        wire = text if random.random() < 0.1 else b"NATS/1.0" + text
        name = random.choice(NAMES)
        value = headers.find_header(wire, name)
        assert find_header(wire, name) == value, (wire, name)
        found += value is not None
    assert found > count // 100


def test_every_cut_of_a_block():
    wire = b"NATS/1.0 503 No\r\nA: 1\r\nb:\r\nTrace-Id: \t x y\t \r\nA: 2\r\n\r\nb: 3\r\n\r\n"
    for end in range(len(wire) + 1):
        for name in ("A", "b", "Trace-Id", "N", "NATS/1.0"):
            assert find_header(wire[:end], name) == headers.find_header(wire[:end], name), (end, name)


@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
def test_odd_names_are_left_to_python(name):
    with pytest.raises(ValueError):  # noqa: PT011  its subclass UnicodeEncodeError, too
        find_header(b"NATS/1.0\r\nA: 1\r\n\r\n", name)


ORDINARY = b"$JS.ACK.ORDERS.new.1.70.8.1750000000000000000.0"
OF_NO_DOMAIN = b"$JS.ACK._.hash.ORDERS.new.1.70.8.1750000000000000000.0"
WHOLE = b"$JS.ACK.hub.hash.ORDERS.new.1.70.8.1750000000000000000.0"
TOKENS = [
    b"",
    b"0",
    b"1",
    b"007",
    b"9" * 19,
    b"9" * 20,
    b"1" * 18,
    b"x",
    b"+1",
    b"1_0",
    b"\n",
    b"1\n",
    b"\xff",
]


def check_split(reply: bytes, *, ordinary: bool) -> None:
    parts = split_jsack(reply)
    assert (parts is not None) == ordinary, reply
    if parts is not None:
        assert ack.Metadata(*parts) == ack.read_jsack(reply), reply


def test_same_jsacks_as_python(block):
    first, count = block
    matched = 0
    for seed in range(first, first + count):
        random = Random(seed)
        tokens = random.choice((ORDINARY, WHOLE, OF_NO_DOMAIN)).split(b".")
        for _ in range(random.randrange(3)):
            place = random.randrange(len(tokens) + 1)
            tokens[place : place + random.randrange(2)] = random.choices(TOKENS, k=random.randrange(2))
        reply = b".".join(tokens)
        expected = ack.match_jsack(reply) is not None
        assert is_ordinary_jsack(reply) is expected, reply
        check_split(reply, ordinary=expected)
        matched += expected
    assert count // 10 < matched < count


@pytest.mark.parametrize("reply", [ORDINARY, WHOLE, OF_NO_DOMAIN])
def test_every_byte_of_a_jsack_changed(reply):
    for at in range(len(reply)):
        for byte in range(256):
            for changed in (
                reply[:at] + bytes([byte]) + reply[at + 1 :],
                reply[:at],
                reply[:at] + reply[at + 1 :],
            ):
                ordinary = ack.match_jsack(changed) is not None
                assert is_ordinary_jsack(changed) == ordinary, changed
                check_split(changed, ordinary=ordinary)


@pytest.mark.parametrize("wrong", [None, "text", bytearray(ORDINARY)], ids=lambda wrong: type(wrong).__name__)
def test_only_bytes(wrong):
    with pytest.raises(TypeError):
        is_ordinary_jsack(wrong)
    with pytest.raises(TypeError):
        split_jsack(wrong)
    with pytest.raises(TypeError):
        find_header(wrong, "A")

"""Compiled header blocks are the same as those of Python, which is the specification."""

from __future__ import annotations

from random import Random

import pytest
from jsclient_speedups import ordinary_block

from jsclient._runtime.connection.speedups import chosen
from jsclient.protocol.wire import headers

TEXTS = [*map(chr, range(0x200)), "\u2028", "\ud800", "\uffff", "\U0001f600", "Trace-Id", "x" * 300]
ODD = [None, 1, b"A", ["x", "y"], ("x",)]


class Text(str):
    """A subclass of str."""

    __slots__ = ()


def test_it_is_in_use():
    assert chosen().ordinary_block is ordinary_block


def test_same_blocks_as_python(block):
    first, count = block
    written = 0
    for seed in range(first, first + count):
        random = Random(seed)
        # Most texts are ASCII, so that most blocks are ordinary.
        texts = TEXTS if random.random() < 0.1 else TEXTS[33:127]
        given = {
            "".join(random.choices(texts, k=random.randrange(1, 4))): "".join(
                random.choices(TEXTS[31:128] if random.random() < 0.1 else texts, k=random.randrange(5))
            )
            for _ in range(random.randrange(4))
        }
        if random.random() < 0.05:
            given[random.choice(["A", ""])] = random.choice(ODD)
        expected = headers.ordinary_block(given)
        assert ordinary_block(given) == expected, given
        written += expected is not None
    assert count // 20 < written < count


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_every_character(text):
    for given in ({text: "1"}, {"A": text}, {"A" + text: "1", "B": text + "2"}):
        assert ordinary_block(given) == headers.ordinary_block(given)


@pytest.mark.parametrize("odd", [*ODD, Text("A")], ids=repr)
def test_only_exact_str(odd):
    assert ordinary_block({"A": odd}) is None
    if not isinstance(odd, list):
        assert ordinary_block({odd: "A"}) is None


@pytest.mark.parametrize("given", [None, [], "A", headers.Headers({"A": "1"})], ids=repr)
def test_only_dict(given):
    with pytest.raises(TypeError):
        ordinary_block(given)

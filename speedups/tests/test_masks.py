"""Payloads are masked like in Python, which is the specification."""

from __future__ import annotations

from random import Random

import pytest
from jsclient_speedups import masked

from jsclient._runtime.connection.speedups import chosen
from jsclient.protocol.connection import websocket


def test_it_is_in_use():
    assert chosen().masked is masked


@pytest.mark.parametrize("size", [*range(40), 125, 4095, 4096, 4097, 8192, 12_345, 1_000_003])
def test_same_bytes_as_python(size):
    random = Random(size)
    payload, mask = random.randbytes(size), random.randbytes(4)
    result = masked(payload, mask)
    assert result == websocket.masked(payload, mask)
    assert masked(result, mask) == payload


@pytest.mark.parametrize("mask", [b"", b"abc", b"abcde"])
def test_mask_of_another_size(mask):
    with pytest.raises(ValueError, match="4 bytes"):
        masked(b"x", mask)


@pytest.mark.parametrize("wrong", [None, "text", bytearray(b"1234")], ids=lambda wrong: type(wrong).__name__)
def test_only_bytes(wrong):
    with pytest.raises(TypeError):
        masked(wrong, b"1234")
    with pytest.raises(TypeError):
        masked(b"1234", wrong)

"""The headers of many messages as an Arrow column, compared with what `parse_headers` reads of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.wire.headers import parse_headers
from jsclient.tables.header_column import HEADERS, header_column

BLOCKS = [
    b"",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nB: two words\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA:3\r\nA: \t 4 \r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n: no name\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nA: 1\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\n\r\nB: after the end\r\n\r\n",
    b"NATS/1.0\r\nA: \xff\xc3\xa4\r\nA: \xff\r\n\r\n",
    b"HTTP/1.0\r\nA: 1\r\n\r\n",
    b"NATS/1.0\r\nA:\r\n\r\n",
]


def pairs_of(block: bytes):
    """What `parse_headers` reads, as rows of Arrow have it."""
    headers = parse_headers(block)[1]
    return [(name, headers.get_all(name)) for name in headers] or None


@pytest.mark.parametrize("blocks", [BLOCKS, BLOCKS[:2], BLOCKS[::-1], BLOCKS[2:3] * 5], ids=len)
def test_headers_as_parsed(blocks):
    column = header_column(blocks)
    column.validate(full=True)
    assert column.type == HEADERS
    assert column.to_pylist() == [pairs_of(block) for block in blocks]


@given(st.lists(st.lists(st.sampled_from([b"A: 1", b"A:", b":", b"B: x", b"", b"A", b" A : 2"]), max_size=5)))
def test_any_lines(rows):
    blocks = [b"\r\n".join([b"NATS/1.0", *lines, b"", b""]) for lines in rows]
    assert header_column(blocks).to_pylist() == [pairs_of(block) for block in blocks]


@pytest.mark.parametrize("blocks", [[], [b""], [b"", b"NATS/1.0\r\n\r\n"]], ids=len)
def test_no_headers(blocks):
    column = header_column(blocks)
    assert column.type == HEADERS
    assert column.to_pylist() == [None] * len(blocks)


def test_values_of_one_name_are_together():
    column = header_column([b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n", b"", b"NATS/1.0\r\nB: 4\r\n\r\n"])
    assert column.to_pylist() == [[("A", ["1", "3"]), ("B", ["2"])], None, [("B", ["4"])]]

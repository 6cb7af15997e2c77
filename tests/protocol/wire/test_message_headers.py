"""The headers of a message: one is read in its bytes, and all of them are what the whole block says."""

from __future__ import annotations

import copy
import json
import operator
import pickle
from collections.abc import MutableMapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jsclient.protocol.topics.record import RecordHeaders
from jsclient.protocol.wire.headers import Headers, encode_headers, merge_headers, parse_headers
from jsclient.protocol.wire.message_headers import MessageHeaders

BLOCK = b"NATS/1.0\r\nA: 1\r\nb: 2\r\nA: 3\r\n\r\n"
NAMES = st.one_of(st.sampled_from(["A", "b", "é", "A\r\nb", "", "A:", "c"]), st.text(max_size=3))
BLOCKS = st.lists(
    st.one_of(
        st.sampled_from([b"A: 1", b"b:2 ", b"A:  3\t", b"", b"c", b": x", "é: ü".encode(), b"\xff: \xfe"]),
        st.binary(max_size=6),
    ),
    max_size=6,
).map(lambda lines: b"\r\n".join([b"NATS/1.0", *lines, b"", b""]))


class CountingHeaders:
    """A reader of single headers that counts its calls, and reads the name ``odd`` only in Python."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, block: bytes, name: str) -> str | None:
        self.calls.append(name)
        if name == "odd":
            raise ValueError("not an ordinary name of a header")
        return parse_headers(block)[1].get(name)


def test_one_header_read_alone():
    find = CountingHeaders()
    headers = MessageHeaders(BLOCK, find)
    assert headers["b"] == "2"
    assert headers.get("A") == "1"
    assert "c" not in headers
    assert headers.get("odd", "none") == "none"
    assert find.calls == ["b", "A", "c", "odd"]
    assert list(headers) == ["A", "b"]
    assert headers["b"] == "2"
    assert len(find.calls) == 4  # all were read for the list


@pytest.mark.parametrize("read", [lambda h: h["c"], lambda h: h["odd"]])
def test_missing_header(read):
    with pytest.raises(KeyError):
        read(MessageHeaders(BLOCK, CountingHeaders()))


@example(b"NATS/1.0\r\n\r\nA: 1\r\n\r\n", "A")
@example(b"", "A")
@example(b"NATS/1.0 100\r\nA: 1", "A")
@given(BLOCKS, NAMES)
def test_reads_as_whole_block(block, name):
    whole = parse_headers(block)[1]
    assert MessageHeaders(block).get(name) == whole.get(name)
    assert (name in MessageHeaders(block)) == (name in whole)
    assert MessageHeaders(block).get_all(name) == whole.get_all(name)
    headers = MessageHeaders(block)
    assert headers == whole
    assert whole == headers
    assert headers.pairs() == whole.pairs()
    assert [*headers.items()] == [*whole.items()]
    assert headers.get(name) == whole.get(name)


def test_mapping_as_others():
    headers = MessageHeaders(BLOCK)
    assert isinstance(headers, MutableMapping)
    assert headers == {"A": "1", "b": "2"} == dict(headers)
    assert headers == Headers([("A", "1"), ("b", "2"), ("A", "3")]) == headers
    assert headers == MessageHeaders(BLOCK)
    assert headers != {"A": "1"}
    for other in (MessageHeaders(BLOCK), {"A": "1", "b": "2"}):
        assert operator.ne(headers, other) is operator.ne(other, headers) is False
    assert (len(headers), bool(headers), bool(MessageHeaders())) == (2, True, False)
    assert {**headers} == {"A": "1", "b": "2"}
    assert json.dumps(dict(headers)) == '{"A": "1", "b": "2"}'
    assert headers | {"c": "4"} == {"A": "1", "b": "2", "c": "4"}
    assert {"A": "0", "c": "4"} | headers == {"A": "1", "b": "2", "c": "4"}
    assert repr(headers) == "{'A': '1', 'b': '2'}"
    assert [*reversed(headers)] == ["b", "A"]
    match headers:
        case {"b": value}:
            assert value == "2"
        case _:
            pytest.fail("no mapping")


def test_changes():
    headers = MessageHeaders(BLOCK)
    headers["b"] = "5"
    headers.add("A", "6")
    assert (headers["b"], headers.get_all("A")) == ("5", ["1", "3", "6"])
    del headers["A"]
    headers |= {"c": "7"}
    assert headers == {"b": "5", "c": "7"}
    assert (headers.pop("b"), headers.setdefault("d", "8")) == ("5", "8")
    assert headers.pop("e", "none") == "none"
    with pytest.raises(KeyError):
        headers.pop("e")
    assert headers.popitem() == ("d", "8")
    headers.clear()
    assert headers == {}


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, MessageHeaders.copy, lambda headers: pickle.loads(pickle.dumps(headers))],
)
def test_copies_are_independent(duplicate):
    headers = MessageHeaders(BLOCK)
    again = duplicate(headers)
    assert type(again) is Headers
    assert again.get_all("A") == ["1", "3"]
    again["A"] = "4"
    assert headers.get_all("A") == ["1", "3"]


def test_created_into_others_with_all_values():
    assert Headers(MessageHeaders(BLOCK)).pairs() == [("A", "1"), ("A", "3"), ("b", "2")]
    assert RecordHeaders(MessageHeaders(BLOCK)).pairs() == [("A", "1"), ("A", "3"), ("b", "2")]


def test_published_again_with_all_values():
    assert encode_headers(MessageHeaders(BLOCK)) == b"NATS/1.0\r\nA: 1\r\nA: 3\r\nb: 2\r\n\r\n"
    assert merge_headers(MessageHeaders(BLOCK), {"x": "y"}) == {"A": ["1", "3"], "b": "2", "x": "y"}

"""Header blocks: strict when written, total when read."""

from __future__ import annotations

import copy
import math
import pickle
import re
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.wire import header_names as names
from jsclient.protocol.wire.headers import (
    Headers,
    Status,
    encode_headers,
    find_header,
    inline_status,
    ordinary_block,
    parse_headers,
    publish_headers,
)

TOKENS = st.text("!#$%&'*+-.^_`|~0123456789abcXYZ", min_size=1)
VALUES = st.text(st.characters(exclude_categories=["Cc", "Cs"])).map(lambda text: text.strip(" \t"))

# --- the mapping -----------------------------------------------------------------------------------------


def test_headers_dict_of_first_values():
    headers = Headers([("A", "1"), ("b", "2"), ("A", "3"), ("A", "4")])
    assert headers == {"A": "1", "b": "2"}
    assert headers["A"] == "1"
    assert headers.get("a") is None
    assert headers.get_all("A") == ["1", "3", "4"]
    assert headers.get_all("b") == ["2"]
    assert headers.get_all("a") == []
    assert headers.pairs() == [("A", "1"), ("A", "3"), ("A", "4"), ("b", "2")]


def test_headers_of_a_mapping():
    assert Headers({"A": "1"}) == {"A": "1"}
    assert Headers() == {}
    assert Headers(Headers([("A", "1"), ("A", "2")])).get_all("A") == ["1", "2"]


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, Headers.copy, lambda h: pickle.loads(pickle.dumps(h))]
)
def test_copies_share_nothing(duplicate):
    headers = Headers([("A", "1"), ("A", "2")])
    again = duplicate(headers)
    assert type(again) is Headers
    assert again == headers
    assert again.get_all("A") == ["1", "2"]
    again["A"] = "3"
    assert headers.get_all("A") == ["1", "2"]


def test_equality_of_repeats():
    one, two = Headers([("A", "1"), ("A", "2")]), Headers([("A", "1")])
    assert one != two
    assert one == {"A": "1"} == two
    assert one != {"A": "2"}
    assert one == Headers([("A", "1"), ("A", "2")])


def test_set_drops_other_values():
    headers = Headers([("A", "1"), ("A", "2")])
    headers["A"] = "1"
    assert headers.get_all("A") == ["1"]
    headers = Headers([("A", "1"), ("A", "2")])
    headers.update(A="5")
    assert headers.get_all("A") == ["5"]
    headers = Headers([("A", "1"), ("A", "2")])
    del headers["A"]
    assert headers.get_all("A") == []
    headers["A"] = "1"
    assert headers.get_all("A") == ["1"]


# --- writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "block"),
    [
        ({}, b"NATS/1.0\r\n\r\n"),
        ({"A": "b"}, b"NATS/1.0\r\nA: b\r\n\r\n"),
        ({"A": ""}, b"NATS/1.0\r\nA: \r\n\r\n"),
        ({"A": ["1", "2"], "b": ("3",)}, b"NATS/1.0\r\nA: 1\r\nA: 2\r\nb: 3\r\n\r\n"),
        ({"A": []}, b"NATS/1.0\r\n\r\n"),
        ({"A": "x: y\tz"}, b"NATS/1.0\r\nA: x: y\tz\r\n\r\n"),
        ({"A": "é"}, "NATS/1.0\r\nA: é\r\n\r\n".encode()),
        (Headers([("A", "1"), ("A", "2")]), b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"),
    ],
)
def test_blocks(headers, block):
    assert encode_headers(headers) == block


@pytest.mark.parametrize(
    "name", ["", " ", "A ", "A B", "A:", "A\r\nB", "A\n", "é", "A\x00", "(a)", "a/b", 7, None, b"A"]
)
def test_names_are_tokens(name):
    with pytest.raises(InvalidNameError, match="invalid header"):
        encode_headers({name: "x"})


@pytest.mark.parametrize(
    "value",
    [
        "a\rb",
        "a\nb",
        "a\r\nX: y",
        "\x00",
        "a\x0bb",
        "a\x1b[0m",
        "\x7f",
        "a\x85",
        "\ud800",
        7,
        None,
        b"x",
        True,
        ["a", 7],
        ["a\n"],
        {"a": "b"},
    ],
)
def test_values_refused_and_never_rewritten(value):
    with pytest.raises(InvalidNameError, match="invalid header 'Secret'") as caught:
        encode_headers({"Secret": value})
    assert caught.value.value == "Secret"


def test_error_does_not_show_value():
    with pytest.raises(InvalidNameError) as caught:
        encode_headers({"Token": "hunter2\n"})
    assert "hunter2" not in str(caught.value)


@given(st.dictionaries(TOKENS, st.one_of(VALUES, st.lists(VALUES, min_size=1))))
def test_what_was_written_reads_back(headers):
    before = copy.deepcopy(headers)
    status, actual = parse_headers(encode_headers(headers))
    assert headers == before
    assert status is None
    assert {name: actual.get_all(name) for name in actual} == {
        name: [value] if isinstance(value, str) else value for name, value in headers.items()
    }
    assert encode_headers(actual) == encode_headers(headers)


@given(st.dictionaries(st.text(), st.text()))
def test_no_input_adds_a_line(headers):
    try:
        block = encode_headers(headers)
    except InvalidNameError:
        return
    assert block.count(b"\n") == block.count(b"\r") == block.count(b"\r\n") == len(headers) + 2
    assert inline_status(block) == 0


def test_readers_drop_spaces_around_value():
    assert parse_headers(encode_headers({"A": " x\t"}))[1] == {"A": "x"}


# --- reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "code", "description"),
    [
        (b"NATS/1.0 503\r\n\r\n", 503, ""),
        (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", 100, "Idle Heartbeat"),
        (b"NATS/1.0 100 FlowControl Request\r\n\r\n", 100, "FlowControl Request"),
        (b"NATS/1.0 409 Consumer Deleted\r\n\r\n", 409, "Consumer Deleted"),
        (b"NATS/1.0 404   No  Messages \r\n\r\n", 404, "No  Messages"),
        (b"NATS/1.0 999 \xff\r\n\r\n", 999, "\ufffd"),
        (b"NATS/1.0 503", 503, ""),
        (b"NATS/1.0 503 ", 503, ""),
        (b"NATS/1.0 503 a\rb", 503, "a\rb"),
    ],
)
def test_inline_statuses(block, code, description):
    assert inline_status(block) == code
    assert parse_headers(block) == (Status(code, description), {})


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"NA",
        b"\r\n",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0 \r\n\r\n",
        b"NATS/1.0 50\r\n\r\n",
        b"NATS/1.0 5033\r\n\r\n",
        b"NATS/1.0 503x\r\n\r\n",
        b"NATS/1.0 503\r",
        b"NATS/1.0 503\n",
        b"NATS/1.0 000\r\n\r\n",
        b"NATS/1.0 099\r\n\r\n",
        b"NATS/1.0  503\r\n\r\n",
        b"NATS/1.0\t503\r\n\r\n",
        b"NATS/1.0503\r\n\r\n",
        b"NATS/1.0 -50\r\n\r\n",
        b"NATS/1.0 5_0\r\n\r\n",
        "NATS/1.0 ٥٠٣\r\n\r\n".encode(),
        b"NATS/1.1 503\r\n\r\n",
        b"nats/1.0 503\r\n\r\n",
        b" NATS/1.0 503\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n",
    ],
)
def test_what_is_no_status(block):
    assert inline_status(block) == 0
    assert parse_headers(block) == (None, {})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"A: b\r\n\r\n", [("A", "b")]),
        (b"A:b\r\n\r\n", [("A", "b")]),
        (b"A: \t b\t \r\n\r\n", [("A", "b")]),
        (b"A:\r\n\r\n", [("A", "")]),
        (b"A: \x0bb\x0c\r\n\r\n", [("A", "\x0bb\x0c")]),
        (b"A: b", [("A", "b")]),
        (b"A: b\r\n", [("A", "b")]),
        (b"A: b\r\nA: c\r\n\r\n", [("A", "b"), ("A", "c")]),
        (b"A: b\r\na: c\r\n\r\n", [("A", "b"), ("a", "c")]),
        (b"A: b:c\r\n\r\n", [("A", "b:c")]),
        (b"no colon\r\nA: b\r\n\r\n", [("A", "b")]),
        (b": b\r\nA: b\r\n\r\n", [("A", "b")]),
        (b"A : b\r\n\r\n", [("A ", "b")]),
        (b"\xff\xfe: \xff\r\n\r\n", [("\ufffd\ufffd", "\ufffd")]),
        ("é: ü\r\n\r\n".encode(), [("é", "ü")]),
        (b"A: b\nC: d\r\n\r\n", [("A", "b\nC: d")]),
        (b"A: b\r\n\r\nC: d\r\n\r\n", [("A", "b")]),
        (b"\r\nC: d\r\n\r\n", []),
    ],
)
def test_headers_of_a_block(lines, expected):
    for first in (b"NATS/1.0", b"NATS/1.0 100 x", b"NATS/1.0 odd"):
        status, headers = parse_headers(first + b"\r\n" + lines)
        assert headers.pairs() == expected
        assert (status is not None) == (b"100" in first)
        assert status is None or status.headers == headers


BLOCKS = st.one_of(
    st.binary(),
    st.binary().map(b"NATS/1.0".__add__),
    st.lists(
        st.sampled_from(
            [b"NATS/1.0", b" ", b"503", b"1", b"\r\n", b"\r", b"\n", b":", b"A", b"\xff", b"\x00"]
        )
    ).map(b"".join),
)


@given(BLOCKS)
@example(b"NATS/1.0")
@example(b"\r\n")
def test_any_bytes_printable(block):
    status, headers = parse_headers(block)
    assert inline_status(block) == (status.code if status else 0)
    for name, value in headers.pairs():
        assert name
        assert (name + value).encode()
    if status is not None:
        assert 100 <= status.code <= 999
        assert isinstance(status.description.encode(), bytes)
        assert pickle.loads(pickle.dumps(status)) == status


def test_every_name_of_wire():
    for constant, name in vars(names).items():
        if constant.isupper():
            assert re.fullmatch(r"Nats(-[A-Z][A-Za-z]*)+", name)


# --- the headers of a publish ----------------------------------------------------------------------------


def test_without_anything_there_no_headers():
    assert publish_headers() is None
    assert publish_headers(None) is None
    assert publish_headers({}) is None


def test_each_argument_header():
    assert publish_headers(
        {"A": "b"},
        msg_id="m1",
        expected_stream="ORDERS",
        expected_last_seq=7,
        expected_last_subject_seq=2**64 - 1,
        expected_last_subject_seq_subject="a.*",
        expected_last_msg_id="m0",
        ttl=60,
        rollup="sub",
    ) == {
        "A": "b",
        "Nats-Msg-Id": "m1",
        "Nats-Expected-Stream": "ORDERS",
        "Nats-Expected-Last-Sequence": "7",
        "Nats-Expected-Last-Subject-Sequence": "18446744073709551615",
        "Nats-Expected-Last-Subject-Sequence-Subject": "a.*",
        "Nats-Expected-Last-Msg-Id": "m0",
        "Nats-TTL": "60",
        "Nats-Rollup": "sub",
    }


def test_zero_is_a_sequence():
    assert publish_headers(expected_last_seq=0) == {names.EXPECTED_LAST_SEQUENCE: "0"}
    assert publish_headers(expected_last_subject_seq=0) == {names.EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}


def test_users_headers_not_touched():
    headers = {"A": ["b", "c"]}
    merged = publish_headers(headers, msg_id="m")
    assert headers == {"A": ["b", "c"]}
    assert merged == {"A": ["b", "c"], names.MSG_ID: "m"}
    assert publish_headers(headers) is not headers


def test_all_values_written():
    headers = Headers([("A", "1"), ("A", "2"), ("B", "3"), (names.MSG_ID, "m")])
    assert publish_headers(headers, msg_id="m") == {"A": ["1", "2"], "B": "3", names.MSG_ID: "m"}
    assert publish_headers(headers, msg_id=None) == {"A": ["1", "2"], "B": "3", names.MSG_ID: "m"}


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (1, "1"),
        (1.0, "1"),
        (1.000_000_001, "2"),
        (1.5, "2"),
        (1.9, "2"),
        (60, "60"),
        (0.1 * 30, "3"),
        (86_400.0, "86400"),
        (timedelta(minutes=1), "60"),
        (timedelta(seconds=1, microseconds=1), "2"),
        ("never", "never"),
    ],
)
def test_ttl_rounds_up(ttl, expected):
    assert publish_headers(ttl=ttl) == {"Nats-TTL": expected}


@pytest.mark.parametrize(
    "ttl", [0, 0.0, -1, 0.999, math.nan, math.inf, -math.inf, True, "1s", "", "Never", 1e30, b"1", [1]]
)
def test_time_to_live_second_or_more(ttl):
    with pytest.raises(ConfigError, match="ttl"):
        publish_headers(ttl=ttl)


@pytest.mark.parametrize("field", ["expected_last_seq", "expected_last_subject_seq"])
@pytest.mark.parametrize("value", [-1, 2**64, True, 1.0, "1", 10**400])
def test_sequences_are_64_bits(field, value):
    with pytest.raises(ConfigError, match=field):
        publish_headers(**{field: value})


@pytest.mark.parametrize("field", ["msg_id", "expected_last_msg_id"])
@pytest.mark.parametrize("value", ["", 7, b"m", "a\r\nb", "\ud800"])
def test_ids_texts_fit_into_header(field, value):
    with pytest.raises(ConfigError, match=field):
        publish_headers(**{field: value})


def test_expected_stream_stream_name():
    with pytest.raises(InvalidNameError, match="invalid stream"):
        publish_headers(expected_stream="a.b")


@pytest.mark.parametrize("subject", ["", "a..b", "a b", ">.a", 7])
def test_subject_of_expectation_is_validated(subject):
    with pytest.raises(InvalidNameError, match="invalid subject"):
        publish_headers(expected_last_subject_seq=0, expected_last_subject_seq_subject=subject)


def test_subject_needs_sequence():
    with pytest.raises(ConfigError, match="expected_last_subject_seq; pass both"):
        publish_headers(expected_last_subject_seq_subject="a")


@pytest.mark.parametrize("rollup", ["", "SUB", "subject", True, 1, b"sub"])
def test_rollup_of_subject_or_of_all(rollup):
    assert publish_headers(rollup="all") == {names.ROLLUP: "all"}
    with pytest.raises(ConfigError, match="rollup"):
        publish_headers(rollup=rollup)


@pytest.mark.parametrize(
    ("header", "arguments"),
    [
        ({names.ROLLUP: "all"}, {"rollup": "sub"}),
        ({names.MSG_ID: "a"}, {"msg_id": "b"}),
        ({names.MSG_ID: ["a", "b"]}, {"msg_id": "a"}),
        ({names.TTL: "1h"}, {"ttl": 3600}),
        ({names.EXPECTED_LAST_SEQUENCE: "1"}, {"expected_last_seq": 0}),
    ],
)
def test_header_and_argument_must_not_differ(header, arguments):
    with pytest.raises(ConfigError, match=next(iter(header))):
        publish_headers(header, **arguments)


def test_header_and_argument_may_say_same():
    assert publish_headers({names.MSG_ID: "a"}, msg_id="a") == {names.MSG_ID: "a"}
    assert publish_headers({names.MSG_ID: ["a"]}, msg_id="a") == {names.MSG_ID: "a"}


# --- one header searched by name --------------------------------------------------------------------------

NAMED = (b"A", b"b", b"A: 1", b"A:", b"B", b"A: 2\r\n", b"B:x\r\n", "ä: ö".encode(), b"NATS/1.0", b" 503 No")
MARKS = (b": ", b":", b" ", b"\t", b"\r\n", b"\r\n\r\n", b"\r", b"\n", b"\xff", b"\xc3")
PIECES = st.sampled_from((*NAMED, *MARKS))
ODD_BLOCKS = st.lists(PIECES, max_size=12).map(b"".join) | st.binary(max_size=40)
BLOCKS = st.tuples(st.sampled_from([b"NATS/1.0\r\n", b"NATS/1.0", b""]), ODD_BLOCKS).map(b"".join)
ODD_NAMES = ("", ":", "A:", "\r\nA", "A\r", "\nA", "NATS/1.0", "ä", "\ufffd", "\ud800", " A")
SEARCHED = st.sampled_from(("A", "b", "B", *ODD_NAMES))


@given(BLOCKS, SEARCHED | st.text(max_size=3))
@example(b"NATS/1.0\r\nA\r\nA: 1\r\n\r\n", "A")
@example(b"NATS/1.0\r\n\r\nA: 1\r\n\r\n", "A")
@example(b"NATS/1.0\r\nA: 1", "A")
@example(b"NATS/1.0\r\nA: 1\r\nA: 2\r\nA\r\n\r\n", "A")
@example(b"NATS/2.0\r\nA: 1\r\n\r\n", "A")
@example(b"NATS/1.0 503\r\nA: \xc3\r\n\r\n", "A")
def test_search_equals_full_parse(block, name):
    headers = parse_headers(block)[1]
    assert find_header(block, name) == headers.get(name)
    for present in headers:
        assert find_header(block, present) == headers[present]


@given(BLOCKS)
def test_parse_equals_pairs_added_one_by_one(block):
    _, *lines = block.decode(errors="replace").split("\r\n")
    lines = lines[: lines.index("")] if "" in lines else lines
    pairs = [tuple(line.split(":", 1)) for line in lines if line.find(":") > 0]
    expected = [(name, value.strip(" \t")) for name, value in pairs] if block.startswith(b"NATS/1.0") else []
    headers = parse_headers(block)[1]
    assert headers == Headers(expected)
    assert list(headers) == list(Headers(expected))


def test_search_takes_names_only_as_text():
    assert find_header(b"NATS/1.0\r\n1: x\r\n\r\n", 1) is None  # type: ignore[arg-type]


# --- the fast way to write ----------------------------------------------------------------------------------


@given(st.dictionaries(TOKENS | st.text(max_size=3), VALUES | st.text(max_size=5), max_size=4))
def test_ordinary_block_equals_checked_block(headers):
    block = ordinary_block(headers)
    if block is not None:
        assert block == encode_headers(Headers(headers))  # which checks one by one
    elif all(value.isascii() and value.isprintable() for value in headers.values()):
        with pytest.raises(InvalidNameError):
            encode_headers(headers)


def test_checked_names_are_bounded():
    for number in range(3000):
        ordinary_block({f"Name-{number}": "x"})
        find_header(b"NATS/1.0\r\n\r\n", f"Name-{number}")
    assert ordinary_block({"Name-1": "x"}) == b"NATS/1.0\r\nName-1: x\r\n\r\n"

"""The envelope of an API answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    ApiError,
    ConsumerNotFoundError,
    MessageNotFoundError,
    ProtocolError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from jsclient.protocol.wire import api
from jsclient.protocol.wire.api import ConsumerAction, next_offset, page_items, page_request, read_response
from jsclient.protocol.wire.codec import encode


def test_a_good_answer_is_itself():
    assert read_response(b'{"type":"x","streams":null}') == {"type": "x", "streams": None}
    assert read_response(b'{"error":null,"a":1}') == {"error": None, "a": 1}


@pytest.mark.parametrize(
    ("err_code", "cls"),
    [
        (api.STREAM_NOT_FOUND, StreamNotFoundError),
        (api.CONSUMER_NOT_FOUND, ConsumerNotFoundError),
        (api.NO_MESSAGE_FOUND, MessageNotFoundError),
        (api.WRONG_LAST_SEQUENCE, WrongLastSequenceError),
        (api.WRONG_LAST_SEQUENCE_CONSTANT, WrongLastSequenceError),
        (19_999, ApiError),
        (0, ApiError),
    ],
)
def test_error_raised_by_number(err_code, cls):
    answer = {
        "type": "x",
        "error": {"code": 404, "err_code": err_code, "description": "anything"},
        "stream": "S",
    }
    with pytest.raises(ApiError) as caught:
        read_response(encode(answer))
    assert type(caught.value) is cls
    assert (caught.value.code, caught.value.err_code, caught.value.description) == (404, err_code, "anything")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({}, (0, 0, "no description")),
        ({"code": 503}, (503, 0, "no description")),
        ({"code": "404", "err_code": None, "description": 7}, (0, 0, "no description")),
        ({"code": True, "err_code": 1.5, "description": ""}, (0, 0, "")),
        ({"code": 400, "err_code": 10_999, "description": "x", "future": {"a": 1}}, (400, 10_999, "x")),
    ],
)
def test_odd_error_error_still(error, expected):
    with pytest.raises(ApiError) as caught:
        read_response(encode({"error": error}))
    assert (caught.value.code, caught.value.err_code, caught.value.description) == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"-ERR 'x'", b'{"error":"text"}', b'{"error":[]}', b'{"error":false}', b'{"error":0}'],
)
def test_what_is_no_answer(data):
    with pytest.raises(ProtocolError):
        read_response(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
ERRORS = st.dictionaries(st.sampled_from(["code", "err_code", "description", "other"]), JSON)


@given(st.binary() | st.fixed_dictionaries({"error": JSON | ERRORS}).map(encode))
def test_any_answer_or_error(data):
    try:
        assert read_response(data).get("error") is None
    except (ApiError, ProtocolError):
        pass


# --- pages -----------------------------------------------------------------------------------------------


def test_the_request_for_a_page():
    assert page_request() == {"offset": 0}
    assert page_request(1024, subject="orders.>") == {"offset": 1024, "subject": "orders.>"}
    assert page_request(0, subject=None) == {"offset": 0}


def test_empty_page_three_forms():
    assert page_items({"streams": ["a"]}, "streams") == ["a"]
    for answer in ({}, {"streams": None}, {"streams": []}):
        assert page_items(answer, "streams") == []
    with pytest.raises(ProtocolError, match="streams"):
        page_items({"streams": {"a": 1}}, "streams")


@pytest.mark.parametrize(
    ("total", "offset", "count", "expected"),
    [
        (10, 0, 4, 4),
        (10, 4, 4, 8),
        (10, 8, 2, None),
        (10, 8, 0, None),
        (0, 0, 0, None),
        (1, 0, 5, None),
        (None, 0, 4, None),
        ("10", 0, 4, None),
        (True, 0, 0, None),
    ],
)
def test_where_the_next_page_begins(total, offset, count, expected):
    assert next_offset({"total": total}, offset, count) == expected


@given(st.integers(0, 50), st.integers(1, 7), st.integers(0, 100))
def test_paging_sees_everything_and_ends(stored, limit, total):
    items, seen, offset = list(range(stored)), [], 0
    while offset is not None:
        page = items[offset : offset + limit]
        seen += page
        offset = next_offset({"total": total}, offset, len(page))
    assert seen == items[: len(seen)]
    if total == stored:
        assert seen == items


def test_actions_of_consumer_create():
    assert [str(action) for action in ConsumerAction] == ["create", "update"]

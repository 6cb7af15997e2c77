"""The subjects of the JetStream API, and the envelope of its answers."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    ApiError,
    ConfigError,
    ConsumerNotFoundError,
    InvalidNameError,
    MessageNotFoundError,
    ProtocolError,
    StreamNotFoundError,
    WrongLastSequenceError,
)
from jsclient.protocol.wire.api import Api, next_offset, page_items, page_request, read_response
from jsclient.protocol.wire.codec import encode
from jsclient.protocol.wire.names import MAX_CONTROL_LINE_BYTES, MAX_SUBJECT_BYTES, check_filter_subject

SUBJECTS = [
    ("account_info", (), "INFO"),
    ("stream_names", (), "STREAM.NAMES"),
    ("stream_list", (), "STREAM.LIST"),
    ("stream_create", ("S",), "STREAM.CREATE.S"),
    ("stream_update", ("S",), "STREAM.UPDATE.S"),
    ("stream_info", ("S",), "STREAM.INFO.S"),
    ("stream_delete", ("S",), "STREAM.DELETE.S"),
    ("stream_purge", ("S",), "STREAM.PURGE.S"),
    ("stream_msg_get", ("S",), "STREAM.MSG.GET.S"),
    ("stream_msg_delete", ("S",), "STREAM.MSG.DELETE.S"),
    ("direct_get", ("S",), "DIRECT.GET.S"),
    ("direct_get_last", ("S", "a.b"), "DIRECT.GET.S.a.b"),
    ("consumer_create", ("S",), "CONSUMER.CREATE.S"),
    ("consumer_durable_create", ("S", "c"), "CONSUMER.DURABLE.CREATE.S.c"),
    ("consumer_create_named", ("S", "c"), "CONSUMER.CREATE.S.c"),
    ("consumer_create_named", ("S", "c", "a.*.>"), "CONSUMER.CREATE.S.c.a.*.>"),
    ("consumer_info", ("S", "c"), "CONSUMER.INFO.S.c"),
    ("consumer_list", ("S",), "CONSUMER.LIST.S"),
    ("consumer_names", ("S",), "CONSUMER.NAMES.S"),
    ("consumer_delete", ("S", "c"), "CONSUMER.DELETE.S.c"),
    ("consumer_next", ("S", "c"), "CONSUMER.MSG.NEXT.S.c"),
    ("consumer_pause", ("S", "c"), "CONSUMER.PAUSE.S.c"),
    ("consumer_reset", ("S", "c"), "CONSUMER.RESET.S.c"),
    ("consumer_unpin", ("S", "c"), "CONSUMER.UNPIN.S.c"),
]


def test_every_request_in_table():
    public = {name for name, _ in inspect.getmembers(Api, inspect.isfunction) if not name.startswith("_")}
    assert public == {method for method, _, _ in SUBJECTS}


@pytest.mark.covers("J15")
@pytest.mark.parametrize(("method", "arguments", "subject"), SUBJECTS)
@pytest.mark.parametrize(
    ("api", "prefix"),
    [
        (Api(), "$JS.API"),
        (Api("$JS.API."), "$JS.API"),
        (Api("from.acme"), "from.acme"),
        (Api("from.acme."), "from.acme"),
        (Api(domain="hub"), "$JS.hub.API"),
        (Api("$JS.API", "hub"), "$JS.hub.API"),
        (Api(prefix="$JS.hub.API"), "$JS.hub.API"),
    ],
    ids=str,
)
def test_subjects_under_every_kind_of_prefix(api, prefix, method, arguments, subject):
    assert getattr(api, method)(*arguments) == f"{prefix}.{subject}"
    assert api.prefix == prefix


def test_prefix_excludes_domain():
    with pytest.raises(ConfigError, match="not both"):
        Api("from.acme", "hub")


@pytest.mark.parametrize(
    "prefix", ["", ".", "a..b", "a.*", ">", "a b", "a\r\nb", "x" * 1025, None, 7, b"$JS.API"]
)
def test_a_prefix_is_a_subject(prefix):
    with pytest.raises(InvalidNameError, match="invalid prefix"):
        Api(prefix)


@pytest.mark.parametrize("domain", ["", "a.b", "*", ">", "a b", "a\n", 7])
def test_a_domain_is_a_token(domain):
    with pytest.raises(InvalidNameError, match="invalid domain"):
        Api(domain=domain)


BAD_NAMES = ["", "a.b", "*", ">", "a b", "a\r\nPUB x 0", "a/b", "x" * 256, None, b"S"]


@pytest.mark.parametrize("bad", BAD_NAMES)
def test_names_checked_before_wire(bad):
    api = Api()
    for method, arguments, _ in SUBJECTS:
        for position in range(min(len(arguments), 2)):
            if method == "direct_get_last" and position == 1:
                continue
            changed = [*arguments]
            changed[position] = bad
            with pytest.raises(InvalidNameError):
                getattr(api, method)(*changed)


def test_only_streams_that_exist_have_any_name():
    api = Api()
    assert api.stream_info("é") == "$JS.API.STREAM.INFO.é"
    for build in (lambda: api.stream_create("é"), lambda: api.consumer_info("S", "é")):
        with pytest.raises(InvalidNameError, match="printable ASCII"):
            build()


@pytest.mark.parametrize("subject", ["", "a.*", ">", "a..b", "a b", "x" * MAX_SUBJECT_BYTES])
def test_direct_get_subject_literal(subject):
    with pytest.raises(InvalidNameError):
        Api().direct_get_last("S", subject)


@pytest.mark.parametrize("subject", ["a..b", ">.a", "a b", "x" * MAX_SUBJECT_BYTES])
def test_filter_in_subject_one_fits(subject):
    with pytest.raises(InvalidNameError):
        Api().consumer_create_named("S", "c", subject)


@given(st.text(), st.text(), st.text())
def test_whatever_names_subject_one_argument(stream, consumer, subject):
    api = Api()
    for build in (
        lambda: api.stream_info(stream),
        lambda: api.consumer_info("S", consumer),
        lambda: api.direct_get_last("S", subject),
        lambda: api.consumer_create_named("S", "c", subject),
    ):
        try:
            assert check_filter_subject(build())
        except InvalidNameError:
            continue


def test_longest_names_fit_into_control_line():
    api = Api("p" * 1024)
    longest = api.consumer_durable_create("s" * 255, "c" * 255)
    assert len(f"HPUB {longest} _INBOX.{'r' * 400} 1048576 1048576") < MAX_CONTROL_LINE_BYTES


def test_a_good_answer_is_itself():
    assert read_response(b'{"type":"x","streams":null}') == {"type": "x", "streams": None}
    assert read_response(b'{"error":null,"a":1}') == {"error": None, "a": 1}


@pytest.mark.parametrize(
    ("err_code", "cls"),
    [
        (10_059, StreamNotFoundError),
        (10_014, ConsumerNotFoundError),
        (10_037, MessageNotFoundError),
        (10_071, WrongLastSequenceError),
        (10_164, WrongLastSequenceError),
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

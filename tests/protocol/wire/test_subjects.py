"""The subjects of the JetStream API."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.wire.names import MAX_CONTROL_LINE_BYTES, MAX_SUBJECT_BYTES, check_filter_subject
from jsclient.protocol.wire.subjects import Api

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


BAD_NAMES = ["", "a.b", "*", ">", "a b", "a\r\nPUB x 0", "é", "x" * 256, None, b"S"]


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

"""Names and subjects: what is refused before the wire, and how subjects match."""

from __future__ import annotations

import pickle
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.wire.names import (
    MAX_CONTROL_LINE_BYTES,
    MAX_NAME_BYTES,
    MAX_SUBJECT_BYTES,
    check_consumer_name,
    check_filter_subject,
    check_filter_subjects,
    check_new_stream_name,
    check_publish_subject,
    check_queue,
    check_stream_name,
    check_token,
    subject_matches,
    subjects_overlap,
)

CHECKS = (
    check_stream_name,
    check_consumer_name,
    check_queue,
    check_publish_subject,
    check_filter_subject,
    lambda name: check_token(name, "domain"),
)

INJECTIONS = [
    "",
    " ",
    "a b",
    "a\tb",
    "a\rb",
    "a\nb",
    "a\r\nPUB x 0\r\n\r\n",
    "a\x00b",
    "a\x0bb",
    "a\x0cb",
    "a\x1fb",
    "a\x7fb",
    "a\x85b",
    "\ud800",
    "a\udcffb",
    "x" * 5000,
    "é" * 3000,
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", INJECTIONS)
def test_no_command_injection(check, value):
    with pytest.raises(InvalidNameError) as caught:
        check(value)
    assert caught.value.value == value
    assert isinstance(caught.value, ConfigError)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [None, b"orders", 7, True, ["orders"], object()])
def test_no_text_refused_and_named(check, value):
    with pytest.raises(InvalidNameError, match=f"not {type(value).__name__}"):
        check(value)


@pytest.mark.parametrize(
    "name", ["ORDERS", "a", "A-b_c", "a=b", "KV_cfg", "$x", "a:b", "!~", "x" * MAX_NAME_BYTES]
)
def test_names_that_servers_take(name):
    assert check_stream_name(name) == check_consumer_name(name) == check_queue(name) == name


@pytest.mark.parametrize(
    "name",
    ["a.b", "*", "a*", ">", "a>b", "a/b", "a\\b", "a b", "a\x81", "é" * 128, "x" * (MAX_NAME_BYTES + 1)],
)
def test_names_no_stream_or_consumer(name):
    for check in (check_stream_name, check_new_stream_name, check_consumer_name):
        with pytest.raises(InvalidNameError):
            check(name)


@pytest.mark.parametrize("name", ["é", "日本", "é" * 127])
def test_names_only_of_streams_that_exist(name):
    assert check_stream_name(name) == name
    for check in (check_new_stream_name, check_consumer_name):
        with pytest.raises(InvalidNameError, match="printable ASCII"):
            check(name)


@pytest.mark.parametrize("kind", ["consumer", "durable", "queue"])
def test_error_says_name_for(kind):
    with pytest.raises(InvalidNameError, match=rf"invalid {kind} 'a\.b'") as caught:
        check_consumer_name("a.b", kind)
    assert (caught.value.kind, caught.value.value) == (kind, "a.b")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.kind, again.value, str(again)) == (kind, "a.b", str(caught.value))


@pytest.mark.parametrize("name", ["workers", "a.b", "*", ">", "é", "x" * MAX_NAME_BYTES])
def test_queue_groups_may_be_any_token(name):
    assert check_queue(name) == name


@pytest.mark.parametrize("name", ["x" * (MAX_NAME_BYTES + 1), "é" * 128])
def test_length_of_queue_group_counts_bytes(name):
    with pytest.raises(InvalidNameError, match="256 bytes"):
        check_queue(name)


@pytest.mark.parametrize("name", ["a.b", "*", "a*", ">"])
def test_token_neither_dot_nor_wildcard(name):
    with pytest.raises(InvalidNameError, match="invalid domain"):
        check_token(name, "domain")


LITERAL = [
    "a",
    "orders.new",
    "$JS.API.INFO",
    "foo*bar",
    "foo*",
    "*foo.b",
    "a.foo>",
    ">a",
    "**",
    "a.é.日",
    "a/b",
    "x" * MAX_SUBJECT_BYTES,
]


@pytest.mark.parametrize("subject", LITERAL)
def test_subjects_can_be_published_to(subject):
    assert check_publish_subject(subject) == check_filter_subject(subject) == subject


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>", "*.a", "a.*.b"])
def test_wildcards_for_filters_only(subject):
    assert check_filter_subject(subject) == subject
    with pytest.raises(InvalidNameError, match="wildcard"):
        check_publish_subject(subject)


@pytest.mark.parametrize("subject", [".", "a.", ".a", "a..b", "x" * (MAX_SUBJECT_BYTES + 1)])
def test_malformed_subjects_neither(subject):
    for check in (check_publish_subject, check_filter_subject):
        with pytest.raises(InvalidNameError):
            check(subject)


@pytest.mark.parametrize("subject", [">.a", "a.>.b", ">.>"])
def test_the_full_wildcard_is_last(subject):
    with pytest.raises(InvalidNameError, match="last token"):
        check_filter_subject(subject)


@pytest.mark.parametrize("subject", [*LITERAL, "*", ">", "a.*", "a.>", ""])
def test_many_filter_subjects(subject):
    """They are checked together, and by themselves where that does not decide it."""
    for subjects in ([subject], ["a.b", subject, "c"]):
        if subject:
            assert check_filter_subjects(subjects) is subjects
        else:
            with pytest.raises(InvalidNameError):
                check_filter_subjects(subjects)


@pytest.mark.parametrize(
    "subject",
    [
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        " ",
        "a\x7f",
        "a\n",
        ">.a",
        "\udcff",
        "x" * (MAX_SUBJECT_BYTES + 1),
        None,
        b"a",
    ],
)
def test_one_bad_filter_subject_of_many(subject):
    for subjects in ([subject], ["a", subject], [subject, "a"], ["a.b", subject, "c"]):
        with pytest.raises(InvalidNameError):
            check_filter_subjects(subjects)


def test_longest_subject_fits():
    subject = check_publish_subject("s" * MAX_SUBJECT_BYTES)
    reply = "_INBOX." + "r" * 400
    assert len(f"HPUB {subject} {reply} 1048576 1048576".encode()) <= MAX_CONTROL_LINE_BYTES
    assert len(f"SUB {subject} {'q' * MAX_NAME_BYTES} 9999999".encode()) <= MAX_CONTROL_LINE_BYTES


@given(st.text())
def test_checked_subject_one_argument(text):
    for check in CHECKS:
        try:
            assert check(text) == text
        except InvalidNameError:
            continue
        line = b"SUB " + text.encode() + b" 1"
        assert line.split() == [b"SUB", text.encode(), b"1"]
        assert not any(byte < 33 or byte == 127 for byte in text.encode())


MATCHES = [
    ("a", "a", True),
    ("a", "b", False),
    ("a", "a.b", False),
    ("a.b", "a", False),
    ("*", "a", True),
    ("*", "a.b", False),
    ("a.*", "a.b", True),
    ("a.*", "a", False),
    ("*.b", "a.b", True),
    (">", "a", True),
    (">", "a.b.c", True),
    ("a.>", "a", False),
    ("a.>", "a.b", True),
    ("a.>", "a.b.c", True),
    ("a.>", "b.c", False),
    ("a.*.>", "a.b", False),
    ("a.*.>", "a.b.c", True),
    ("foo*", "foobar", False),
    ("foo*", "foo*", True),
    ("A", "a", False),
    # a pattern on the right stands for everything it matches
    ("*", "*", True),
    ("a", "*", False),
    ("*", ">", False),
    (">", ">", True),
    (">", "a.*", True),
    ("a.>", "a.*.>", True),
    ("a.*.>", "a.>", False),
    ("a.*", "a.>", False),
]


@pytest.mark.parametrize(("pattern", "subject", "expected"), MATCHES)
def test_matching(pattern, subject, expected):
    assert subject_matches(pattern, subject) is expected


OVERLAPS = [
    ("a", "a", True),
    ("a", "b", False),
    ("a", "*", True),
    ("a", ">", True),
    ("a", "a.>", False),
    ("a.*", "*.b", True),
    ("a.*", "b.*", False),
    ("a.>", "*.b.c", True),
    ("a.*.c", "a.>", True),
    ("a.*", "a.*.c", False),
    ("a.b", "a.b.>", False),
    (">", ">", True),
]


@pytest.mark.parametrize(("a", "b", "expected"), OVERLAPS)
def test_overlap(a, b, expected):
    assert subjects_overlap(a, b) is expected
    assert subjects_overlap(b, a) is expected


PATTERNS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]),
    st.lists(st.sampled_from("ab*"), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)
SUBJECTS = [".".join(tokens) for length in range(1, 6) for tokens in product("abc", repeat=length)]


@given(PATTERNS, PATTERNS)
def test_overlap_matches_literals(a, b):
    in_a = {subject for subject in SUBJECTS if subject_matches(a, subject)}
    in_b = {subject for subject in SUBJECTS if subject_matches(b, subject)}
    assert subjects_overlap(a, b) == bool(in_a & in_b)
    assert subject_matches(a, b) == (in_b <= in_a)

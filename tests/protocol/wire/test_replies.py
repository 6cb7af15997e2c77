"""Which reply subjects from the wire may be published to."""

from __future__ import annotations

import pytest

from jsclient.protocol.wire.replies import may_answer, may_answer_flow_control


@pytest.mark.parametrize(
    "subject", ["_INBOX.a", "_INBOX.a.b", "_INBOX_guest.a", "_INBOX_a.ü", "_INBOX." + "x" * 3000]
)
def test_inboxes_may_be_answered(subject):
    assert may_answer(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "_INBOX",
        "_INBOX.",
        "_INBOX_guest",
        "_INBOX.*",
        "_INBOX.>",
        "_INBOX..a",
        "_INBOX.a b",
        "_INBOX.a\r\nPUB x 0\r\n",
        "_INBOX." + "x" * 4000,
        "orders.new",
        "a._INBOX.b",
        "_inbox.a",
        "$JS.API.STREAM.DELETE.VICTIM",
        "$JS.ACK.a.b.1.1.1.1.1",
        "$SYS.REQ.SERVER.PING",
        "$_INBOX.a",
    ],
)
def test_other_subjects_not_answered(subject):
    assert not may_answer(subject)


def test_prefixes_of_inboxes():
    assert may_answer("team.inbox.x", ("_INBOX", "team.inbox."))
    assert not may_answer("team.inboxes.x", ("team.inbox.",))
    assert not may_answer("team.inbox", ("team.inbox.",))
    assert not may_answer("team", ("team.inbox.",))
    assert may_answer("_INBOX_guest.x", ("_INBOX_guest",))
    assert not may_answer("_INBOX.x", ("_INBOX_guest",))
    for prefix in ("$JS", "$JS.", "$"):
        assert not may_answer("$JS.API.STREAM.DELETE.VICTIM", (prefix,))


@pytest.mark.covers("J98")
@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.FC.ORDERS.worker.4f2a",
        b"$JS.FC._.hash.ORDERS.worker.4f2a",
        b"$JS.FC.API.API.4f2a",
        b"$JS.FC.x",
        "$JS.FC.übung.α".encode(),
        b"$JS.FC.\xff\xfe.x",
    ],
)
def test_flow_control_of_servers_answered(subject):
    assert may_answer_flow_control(subject)


@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.hub.FC.ORDERS.worker.1",
        b"_INBOX.whatever",
        b"a",
        b"any.thing.at.all",
        b"API.x",
        b"$JS",
        b"$JS.FC",
        b"$JS.FCX.a",
        "übung.α".encode(),
        b"\xff\xfe.x",
    ],
)
def test_other_forms_by_option_only(subject):
    assert not may_answer_flow_control(subject)
    assert may_answer_flow_control(subject, prefixes=(subject,))
    assert not may_answer_flow_control(subject, prefixes=(b"other.",))


@pytest.mark.parametrize(
    "subject",
    [
        b"",
        b"$JS.API.STREAM.DELETE.ORDERS",
        b"$JS.hub.API.STREAM.DELETE.ORDERS",
        b"$JS.API",
        b"$SYS.REQ.SERVER.PING",
        b"$JS.ACK.ORDERS.worker.1.1.1.1.0",
        b"a b",
        b"a\r\nPUB x 0\r\n",
        b"a\tb",
        b"a\x00",
        b".a",
        b"a.",
        b"a..b",
        b"a.*",
        b"a.>",
        b">",
        b"x" * 1025,
    ],
)
def test_flow_control_never_calls_api(subject):
    assert not may_answer_flow_control(subject)
    assert not may_answer_flow_control(subject, prefixes=(b"",))
    assert not may_answer_flow_control(subject, prefixes=(subject,))


def test_flow_control_respects_api_prefix():
    wide = (b"hub.",)
    assert may_answer_flow_control(b"hub.api.STREAM.DELETE.ORDERS", prefixes=wide)
    assert not may_answer_flow_control(b"hub.api.STREAM.DELETE.ORDERS", b"hub.api", wide)
    assert may_answer_flow_control(b"hub.apis.x", b"hub.api", wide)

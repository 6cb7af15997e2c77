"""The options of an engine, and rules that approve requests by their attributes."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.peers.options import EngineOptions, accept_roles

URL = "tls://b.example:4222"


def test_streams_are_named_after_the_prefix():
    options = EngineOptions(prefix="my.picos")
    assert (options.events_stream, options.state_stream) == ("MY_PICOS_EVENTS", "MY_PICOS_STATE")
    assert EngineOptions(prefix="my.picos", events_stream="E").events_stream == "E"


@pytest.mark.parametrize(
    "fields",
    [
        {"prefix": "a b"},
        {"prefix": "a.*"},
        {"reply_prefix": ""},
        {"events_stream": "a.b"},
        {"state_stream": "a b"},
    ],
)
def test_invalid_names_are_refused(fields):
    with pytest.raises(InvalidNameError):
        EngineOptions(**fields)


@pytest.mark.parametrize(
    "field", ["max_inbound", "max_deliver", "concurrency", "max_waiting", "max_event_size"]
)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, None])
def test_counts_are_at_least_one(field, value):
    with pytest.raises(ConfigError, match=field):
        EngineOptions(**{field: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"max_age": 0},
        {"max_age": 10.0, "remember": 10.0},
        {"handler_delay": -1},
        {"retry_delay": 0},
        {"allowed_hosts": URL},
        {"allowed_hosts": ["b.example:4222"]},
        {"allowed_hosts": [7]},
        {"host": "b.example"},
    ],
)
def test_contradictions_are_refused(fields):
    with pytest.raises(ConfigError):
        EngineOptions(**fields)


def test_urls_are_sent_to_peers_without_passwords():
    for fields in ({"host": "tls://me:secret@b.example"}, {"allowed_hosts": ["tls://me:secret@b.example"]}):
        with pytest.raises(ConfigError, match="has a password") as caught:
            EngineOptions(**fields)
        assert "secret" not in str(caught.value)
    EngineOptions(host=URL, allowed_hosts={URL: {"password": "secret"}})


def test_the_rule_by_attributes():
    rule = accept_roles(Rx_role="thing", guest=None)
    assert rule({"Rx_role": "thing"})
    assert not rule({"Rx_role": "thing", "guest": "x"})
    assert not rule({"Rx_role": ["thing"]})
    assert not accept_roles(Rx_role=["thing"])({"Rx_role": 7})
    with pytest.raises(ConfigError):
        accept_roles()


@pytest.mark.parametrize("host", ["ann:secret@b.example", "//ann:secret@b.example:4222", "ann:secret@"])
def test_password_of_a_bad_host_is_not_shown(host):
    with pytest.raises(ConfigError, match="not a URL with its protocol") as raised:
        EngineOptions(host=host)
    assert "secret" not in str(raised.value)

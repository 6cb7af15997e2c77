"""Channels: the messages that pass, who may send, and the subjects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, InvalidNameError
from jsclient.protocol.peers.channel import (
    API_EVENTS,
    PROTOCOL_EVENTS,
    Channel,
    Permissions,
    Policy,
    StoredChannel,
    channel_eci,
    check_eci,
    event_subject,
    inbox_subject,
    open_policy,
    queries_subject,
    query_subject,
    read_subject,
    relationship_policy,
    well_known_policy,
)
from jsclient.protocol.peers.relationship import read_value, write_value
from jsclient.protocol.wire.names import subject_matches

ECI = "thing-1.x7f3"
WORDS = ["door", "opened", "closed", "wrangler", "subscription"]
PATTERNS = st.lists(
    st.tuples(st.sampled_from([*WORDS, "*"]), st.sampled_from([*WORDS, "*"])).map(":".join), max_size=3
).map(tuple)
POLICIES = st.builds(Policy, events=PATTERNS, queries=PATTERNS, deny_events=PATTERNS, deny_queries=PATTERNS)


@pytest.mark.covers("P1")
def test_channel_eci_tags_and_policies():
    policy = Policy(events=("door:*",), queries=("door:state",), deny_events=("door:broken",))
    channel = StoredChannel(eci=ECI, tags=("home", "door"), policy=policy)
    assert read_value("channel.x7f3", write_value(channel)) == channel


def test_denied_does_not_pass_though_allowed():
    policy = Policy(events=("door:*", "*:ping"), deny_events=("door:broken",), queries=("door:state",))
    assert policy.allows_event("door", "opened")
    assert policy.allows_event("window", "ping")
    assert not policy.allows_event("door", "broken")
    assert not policy.allows_event("window", "opened")
    assert policy.allows_query("door", "state")
    assert not policy.allows_query("door", "opened")


def test_empty_and_open_policies():
    assert not Policy().allows_event("a", "b")
    assert not Policy().allows_query("a", "b")
    assert open_policy().allows_event("a", "b")
    assert open_policy().allows_query("a", "b")


@pytest.mark.covers("P9", "P10", "P11")
def test_well_known_takes_requests():
    """D25: not ``wrangler:subscription``, unless switched on."""
    policy = well_known_policy()
    assert policy.allows_event("wrangler", "new_subscription_request")
    assert policy.allows_event("wrangler", "inbound_removal")
    for event in (*API_EVENTS, *PROTOCOL_EVENTS, "door:opened"):
        assert not policy.allows_event(*event.split(":")), event
    assert policy.allows_query("subscription", "wellKnown_Rx")
    assert not policy.allows_query("subscription", "established")
    assert not policy.allows_query("door", "wellKnown_Rx")
    assert well_known_policy(requests=True).allows_event("wrangler", "subscription")


def test_relationship_channel_needs():
    own = relationship_policy()
    expected = relationship_policy(Policy(events=("door:opened",), queries=("door:state",)))
    for event in PROTOCOL_EVENTS:
        assert own.allows_event(*event.split(":"))
        assert expected.allows_event(*event.split(":"))
    assert expected.allows_event("door", "opened")
    assert not expected.allows_event("door", "closed")
    assert relationship_policy(open_policy()) == open_policy()


@pytest.mark.parametrize("event", API_EVENTS)
def test_cannot_ask_in_our_name(event):
    assert not relationship_policy().allows_event(*event.split(":"))


def test_insufficient_policy_refused():
    with pytest.raises(ConfigError, match="established_removal"):
        relationship_policy(Policy(events=("*:*",), deny_events=("wrangler:established_removal",)))


@pytest.mark.parametrize("pattern", ["door", "door:a:b", "", 7])
def test_no_pattern_refused(pattern):
    with pytest.raises(ConfigError):
        Policy(events=(pattern,))


def test_policy_list_of_patterns():
    assert Policy(events=["door:*"]) == Policy(events=("door:*",))
    with pytest.raises(ConfigError, match="list of str"):
        Policy(queries="door:*")


@pytest.mark.parametrize("pattern", ["do.or:x", "door:a b", "door:>", ":x", "door:"])
def test_parts_of_pattern_tokens(pattern):
    """D29: refused, not mangled."""
    with pytest.raises(InvalidNameError):
        Policy(deny_queries=(pattern,))


def test_subjects():
    assert event_subject(ECI, "door", "opened") == "pico.ev.thing-1.x7f3.door.opened"
    assert query_subject(ECI, "door", "state", prefix="home") == "home.q.thing-1.x7f3.door.state"
    assert channel_eci("thing-1", "x7f3") == ECI
    assert inbox_subject("thing-1") == "pico.ev.thing-1.>"
    assert queries_subject("thing-1") == "pico.q.thing-1.>"
    assert subject_matches(inbox_subject("thing-1"), event_subject(ECI, "a", "b"))
    assert not subject_matches(inbox_subject("thing-1"), query_subject(ECI, "a", "b"))


@pytest.mark.parametrize("prefix", ["pico", "home.pico"])
def test_a_subject_can_be_read(prefix):
    assert read_subject(event_subject(ECI, "d", "t", prefix), prefix) == (False, ECI, "d", "t")
    assert read_subject(query_subject(ECI, "r", "n", prefix), prefix) == (True, ECI, "r", "n")
    for other in (
        "",
        prefix,
        f"{prefix}.ev.a.b.c",
        f"{prefix}.xx.a.b.c.d",
        f"{prefix}.ev.a..c.d",
        "x.ev.a.b.c.d",
    ):
        assert read_subject(other, prefix) is None


@pytest.mark.parametrize("eci", ["", "thing", "a.b.c", "a.", ".b", "a.*", "a b.c", None, 7, ["a", "b"]])
def test_what_is_no_eci_is_refused(eci):
    with pytest.raises(InvalidNameError):
        check_eci(eci)


@pytest.mark.parametrize("bad", ["a.b", "a b", "*", ">", "", "a\r\nPUB x"])
def test_domain_type_rid_and_name_tokens(bad):
    """D29: refused, not mangled."""
    for call in (event_subject, query_subject):
        for args in ((bad, "ok"), ("ok", bad)):
            with pytest.raises(InvalidNameError):
                call(ECI, *args)


@given(
    policy=POLICIES,
    first=st.sampled_from(WORDS),
    second=st.sampled_from(WORDS),
    query=st.booleans(),
    eci=st.sampled_from([ECI, "thing-1.other", "thing-2.x7f3"]),
)
def test_permissions_let_pass_policy_does(policy, first, second, query, eci):
    """The same answer from the receiver and from a server, for this channel. Nothing for any other."""
    allowed = Channel(ECI, (), policy).nats_permissions()
    subject = (query_subject if query else event_subject)(eci, first, second)
    by_server = any(subject_matches(one, subject) for one in allowed.publish) and not any(
        subject_matches(one, subject) for one in allowed.deny
    )
    by_peer = (policy.allows_query if query else policy.allows_event)(first, second)
    assert by_server is (by_peer and eci == ECI)


def test_permissions_as_server_configured():
    allowed = Channel(ECI, (), well_known_policy()).nats_permissions("_INBOX.guest")
    assert allowed.to_config() == {
        "publish": {
            "allow": [
                "pico.ev.thing-1.x7f3.wrangler.new_subscription_request",
                "pico.ev.thing-1.x7f3.wrangler.inbound_removal",
                "pico.q.thing-1.x7f3.subscription.wellKnown_Rx",
            ],
            "deny": [],
        },
        "subscribe": {"allow": ["_INBOX.guest.>"]},
    }


def test_nothing_allowed_everything_denied():
    """An empty list of a server's configuration would be no restriction."""
    nothing = Permissions((), (), ()).to_config()
    assert nothing == {"publish": {"deny": [">"]}, "subscribe": {"deny": [">"]}}
    assert Channel(ECI, (), Policy(deny_events=("a:b",))).nats_permissions().to_config() == nothing

"""Which server is next, when, and which servers there are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.connection.pool import Change, PoolOptions, ServerPool
from jsclient.protocol.connection.server_info import MAX_ANNOUNCED, ServerInfo, read_info
from jsclient.protocol.connection.urls import parse_url


def pool(*urls: str, **options) -> ServerPool:
    return ServerPool([parse_url(url) for url in urls], PoolOptions(**options))


def addresses(servers: ServerPool) -> list[str]:
    return [server.address for server in servers.servers]


def connected(servers: ServerPool, at: float = 0.0, peer: str = "") -> ServerPool:
    server = servers.take_untried(at)
    servers.connected(server, peer)
    return servers


def announce(servers: ServerPool, *urls: str, **fields) -> Change:
    return servers.announce(ServerInfo(connect_urls=urls, **fields))


def attempts(
    servers: ServerPool, count: int, now: float, *, refused: bool = False
) -> list[tuple[str, float]]:
    """Let attempts fail, and return the server and the time of each."""
    done = []
    for _ in range(count):
        server, pause = servers.next_attempt(now)
        now += pause
        servers.begin(server, now)
        servers.failed(server, refused=refused)
        done.append((server.address, now))
    return done


# --- order ---------------------------------------------------------------------------------------------------


def test_first_connect_tries_each_server_once_in_order():
    servers = pool("a:1", "b:2", "c:3")
    tried = []
    while (server := servers.take_untried(0.0)) is not None:
        servers.failed(server, refused=False)
        tried.append(server.address)
    assert tried == ["a:1", "b:2", "c:3"]


def test_servers_that_full_server_announces_are_tried_too():
    servers = pool("a:1")
    servers.take_untried(0.0)
    announce(servers, "a:1", "b:2")
    assert servers.take_untried(0.0).address == "b:2"
    assert servers.take_untried(0.0) is None


def test_order_is_shuffled_on_request():
    urls = [f"a:{port}" for port in range(1, 30)]
    assert addresses(pool(*urls)) == urls
    mixed = addresses(pool(*urls, shuffle=random.Random(1).shuffle))
    assert mixed != urls
    assert sorted(mixed) == sorted(urls)


def test_reconnect_begins_with_another_server():
    servers = connected(pool("a:1", "b:2", "c:3"))
    assert [address for address, _ in attempts(servers, 4, 100.0)] == ["b:2", "c:3", "a:1", "b:2"]


# --- pauses --------------------------------------------------------------------------------------------------


def test_first_attempt_after_long_connection_is_immediate():
    servers = connected(pool("a:1"))
    assert servers.next_attempt(1000.0)[1] == 0.0


def test_pauses_double_up_to_bound():
    servers = connected(pool("a:1", first_pause=0.25, longest_pause=1.0))
    times = [time for _, time in attempts(servers, 6, 100.0)]
    assert times == [100.0, 100.5, 101.5, 102.5, 103.5, 104.5]


def test_connection_that_is_lost_at_once_is_not_tried_without_pause():
    """A server that accepts each connection and closes it."""
    servers = connected(pool("a:1", first_pause=0.25), at=100.0)
    assert servers.next_attempt(100.0)[1] == 0.25


def test_each_server_has_its_own_pause():
    servers = connected(pool("a:1", "b:2", first_pause=1.0, longest_pause=1.0))
    assert attempts(servers, 4, 100.0) == [("b:2", 100.0), ("a:1", 100.0), ("b:2", 101.0), ("a:1", 101.0)]


def test_pause_varies():
    servers = pool("a:1", first_pause=1.0, longest_pause=1.0, vary=lambda pause: pause * 0.75)
    connected(servers, at=100.0)
    assert servers.next_attempt(100.0)[1] == 0.75


def test_forgotten_pauses_grow_on():
    servers = connected(pool("a:1", first_pause=0.25, longest_pause=10.0))
    attempts(servers, 3, 100.0)
    servers.forget_pauses()
    assert attempts(servers, 2, 103.0) == [("a:1", 103.0), ("a:1", 107.0)]


def test_bound_below_first_pause():
    servers = connected(pool("a:1", first_pause=2.0, longest_pause=1.0))
    assert [time for _, time in attempts(servers, 3, 100.0)] == [100.0, 102.0, 104.0]


@given(st.integers(0, 10_000))
def test_pause_is_bounded_after_any_number_of_failures(failures):
    servers = connected(pool("a:1", longest_pause=5.0))
    servers.servers[0].failures = failures
    assert servers.next_attempt(0.0)[1] <= 5.0


# --- refusals ------------------------------------------------------------------------------------------------


def fail(servers: ServerPool, *outcomes: bool) -> list[bool]:
    results = []
    for refused in outcomes:
        server, _ = servers.next_attempt(0.0)
        servers.begin(server, 0.0)
        results.append(servers.failed(server, refused=refused))
    return results


def test_gives_up_after_refusals_in_a_row():
    assert fail(connected(pool("a:1", max_refusals=2)), True, True) == [False, True]


def test_other_failure_between_refusals():
    assert fail(connected(pool("a:1", max_refusals=2)), True, False, True, True) == [
        False,
        False,
        False,
        True,
    ]


def test_refusals_of_several_servers_are_counted_for_each():
    assert fail(connected(pool("a:1", "b:2", max_refusals=2)), True, True, True) == [False, False, True]


def test_no_limit_by_default():
    assert not any(fail(connected(pool("a:1")), *[True] * 100))


def test_connection_ends_the_row():
    servers = connected(pool("a:1", max_refusals=2))
    fail(servers, True)
    servers.connected(servers.servers[0])
    assert fail(servers, True) == [False]


# --- discovery -----------------------------------------------------------------------------------------------


def test_announced_servers_are_added_and_forgotten():
    servers = connected(pool("a:1"))
    assert announce(servers, "a:1", "b:2", "c:3") == (("b:2", "c:3"), ())
    assert addresses(servers) == ["b:2", "c:3", "a:1"]
    assert announce(servers, "a:1", "c:3", "d:4") == (("d:4",), ("b:2",))
    assert addresses(servers) == ["c:3", "d:4", "a:1"]


def test_configured_servers_stay():
    servers = connected(pool("a:1", "b:2"))
    announce(servers, "c:3")
    assert sorted(addresses(servers)) == ["a:1", "b:2", "c:3"]


def test_current_server_stays_though_not_announced():
    servers = connected(pool("a:1"))
    announce(servers, "b:2")
    server, _ = servers.next_attempt(10.0)
    servers.begin(server, 10.0)
    assert server.address == "b:2"
    announce(servers, "c:3")
    assert sorted(addresses(servers)) == ["a:1", "b:2", "c:3"]


def test_known_server_keeps_its_failures():
    servers = connected(pool("a:1"))
    announce(servers, "b:2")
    fail(servers, False, False)
    (known,) = [server for server in servers.servers if server.address == "b:2"]
    announce(servers, "b:2", "c:3")
    assert known in servers.servers
    assert known.failures == 1


def test_info_without_servers_changes_nothing():
    servers = connected(pool("a:1"))
    announce(servers, "b:2")
    assert servers.announce(read_info(b"{}")) == ((), ())
    assert addresses(servers) == ["b:2", "a:1"]


def test_ignore_discovered():
    servers = connected(pool("a:1", ignore_discovered=True))
    assert announce(servers, "b:2") == ((), ())
    assert addresses(servers) == ["a:1"]


@pytest.mark.parametrize("url", ["", "x:y", ":", "a:0", "a:99999", "//", "u:p@b:2", "[::1", "a b:c"])
def test_invalid_announced_urls_are_ignored(url):
    servers = connected(pool("a:1"))
    announce(servers, url, "b:2", "b:2")
    assert addresses(servers) == ["b:2", "a:1"]


def test_pool_does_not_grow_without_bound():
    servers = connected(pool("a:1"))
    for turn in range(20):
        body = ",".join(f'"b:{turn * 1000 + port}"' for port in range(1, 1000))
        servers.announce(read_info(b'{"connect_urls":[%b]}' % body.encode()))
    assert len(servers.servers) == 1 + MAX_ANNOUNCED


def test_announced_servers_have_scheme_of_current():
    servers = connected(pool("wss://a:1"))
    announce(servers, "b:2")
    assert servers.servers[-1].url.scheme == "wss"


def user_infos(servers: ServerPool) -> list[str]:
    return [server.url.netloc.rpartition("@")[0] for server in servers.servers]


def test_announced_servers_have_user_info_of_the_server_that_announced_them():
    """Credentials of one cluster are not sent to the servers of another cluster."""
    servers = pool("ann:x@a:1", "bob:y@b:2")
    for _ in range(2):
        servers.take_untried(0.0)
    announce(servers, "b:2", "c:3")
    assert addresses(servers) == ["a:1", "c:3", "b:2"]
    assert user_infos(servers) == ["ann:x", "bob:y", "bob:y"]
    fail(servers, False)
    server, _ = servers.next_attempt(0.0)
    servers.begin(server, 0.0)
    assert server.address == "c:3"
    announce(servers, "c:3", "d:4")
    assert sorted(user_infos(servers)) == ["ann:x", "bob:y", "bob:y", "bob:y"]


def test_new_user_info_replaces_that_of_announced_servers():
    servers = connected(pool("ann:x@a:1"))
    announce(servers, "a:1", "b:2")
    server, _ = servers.next_attempt(0.0)
    servers.begin(server, 0.0)
    assert server.address == "b:2"
    servers.replace([parse_url("ann:new@a:1")])
    announce(servers, "a:1", "b:2", "c:3")
    assert "ann:x" not in user_infos(servers)


def test_certificate_of_numeric_address_has_name_of_current():
    servers = connected(pool("a.example:1"))
    announce(servers, "10.0.0.1:2", "b.example:3", tls_required=True)
    assert [server.tls_name for server in servers.servers] == ["a.example", None, None]
    server, _ = servers.next_attempt(0.0)
    servers.begin(server, 0.0)
    assert server.address == "10.0.0.1:2"
    announce(servers, "10.0.0.2:2", tls_required=True)
    assert [server.tls_name for server in servers.servers] == [None, "a.example", "a.example"]


def test_others_do_not_count_current_server_by_its_address():
    servers = connected(pool("a.example:4222"), peer="10.0.0.1:4222")
    announce(servers, "10.0.0.1:4222")
    assert servers.others() == 0
    announce(servers, "10.0.0.1:4222", "10.0.0.2:4222")
    assert servers.others() == 1


# --- servers given later ---------------------------------------------------------------------------------------


def test_replaced_servers():
    servers = connected(pool("a:1", "b:2"))
    assert servers.replace([parse_url("b:2"), parse_url("c:3")]) == (("c:3",), ("a:1",))
    assert addresses(servers) == ["b:2", "c:3"]
    assert attempts(servers, 2, 100.0) == [("b:2", 100.0), ("c:3", 100.0)]


def test_replaced_servers_are_not_forgotten_by_info():
    servers = connected(pool("a:1"))
    announce(servers, "b:2")
    servers.replace([parse_url("b:2")])
    announce(servers, "c:3")
    assert sorted(addresses(servers)) == ["b:2", "c:3"]


def test_first_attempt_after_a_loss_is_spread():
    """Clients that lose their server together return one after another. A call that hurries waits for nothing."""
    servers = connected(pool("a:1", first_pause=0.25, spread=lambda longest: longest / 2))
    servers.record_loss(100.0)
    assert servers.next_attempt(100.0)[1] == 0.125
    assert servers.next_attempt(101.0)[1] == 0.0
    servers.record_loss(100.0)
    servers.forget_pauses()
    assert servers.next_attempt(100.0)[1] == 0.0

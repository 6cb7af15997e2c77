"""The changes that an INFO makes during a connection."""

from __future__ import annotations

import pytest

from jsclient.errors import ProtocolError
from jsclient.events import LameDuck, ServersChanged
from jsclient.protocol.connection.pool import ServerPool
from jsclient.protocol.connection.server_info import ServerInfo
from jsclient.protocol.connection.server_session import DEFAULT_MAX_PAYLOAD, ServerSession
from jsclient.protocol.connection.urls import parse_url


@pytest.fixture
def pool() -> ServerPool:
    servers = ServerPool([parse_url("nats://ann:secret@a:1")])
    servers.connected(servers.take_untried(0.0))
    return servers


def test_limit_changes(pool):
    session = ServerSession(ServerInfo(max_payload=100))
    assert session.max_payload == 100
    assert session.receive_info(b'{"max_payload":50}', pool) == []
    assert session.max_payload == 50
    session.receive_info(b'{"max_payload":-1}', pool)
    assert session.max_payload == 50
    assert ServerSession(ServerInfo()).max_payload == DEFAULT_MAX_PAYLOAD


def test_changed_servers_are_reported(pool):
    session = ServerSession(ServerInfo())
    (event,) = session.receive_info(b'{"connect_urls":["a:1","b:2","c:3"]}', pool)
    assert event == ServersChanged(added=("b:2", "c:3"), removed=(), known=3)
    assert event.severity == "info"
    assert "new b:2, c:3; 3 are known" in str(event)
    assert session.receive_info(b'{"connect_urls":["c:3","b:2"]}', pool) == []
    (event,) = session.receive_info(b'{"connect_urls":["b:2"]}', pool)
    assert "gone c:3" in str(event)


def test_lame_duck_once(pool):
    session = ServerSession(ServerInfo())
    (event,) = session.receive_info(b'{"ldm":true}', pool)
    assert event == LameDuck(url="nats://a:1", others=0)
    assert session.receive_info(b'{"ldm":true}', pool) == []


def test_lame_duck_with_its_successors(pool):
    changed, event = ServerSession(ServerInfo()).receive_info(
        b'{"ldm":true,"connect_urls":["b:2","c:3"]}', pool
    )
    assert isinstance(changed, ServersChanged)
    assert event == LameDuck(url="nats://a:1", others=2)


def test_malformed_info_raises(pool):
    with pytest.raises(ProtocolError):
        ServerSession(ServerInfo()).receive_info(b"nonsense", pool)

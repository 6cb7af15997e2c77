"""The commands that make subscriptions, now and on the next connection."""

from __future__ import annotations

from jsclient.errors import PermissionDeniedError
from jsclient.protocol.connection.subscriptions import Subscriptions


def test_commands():
    table = Subscriptions()
    assert table.add("a.>", "").command() == b"SUB a.> 1\r\n"
    assert table.add("b", "workers").command() == b"SUB b workers 2\r\n"
    assert table.add("c", "", 5).command() == b"SUB c 3\r\nUNSUB 3 5\r\n"
    assert b"".join(table.commands()) == b"SUB a.> 1\r\nSUB b workers 2\r\nSUB c 3\r\nUNSUB 3 5\r\n"


def test_number_is_not_used_again():
    table = Subscriptions()
    first = table.add("a", "")
    assert table.remove(first)
    assert not table.remove(first)
    assert (table.add("a", "").sid, len(table)) == (2, 1)


def test_changed_limit_is_for_next_connection():
    table = Subscriptions()
    table.add("a", "").limit = 3
    assert list(table.commands()) == [b"SUB a 1\r\nUNSUB 1 3\r\n"]


def test_denied_subject():
    table = Subscriptions()
    ours, others = table.add("a", ""), table.add("b", "")
    error = PermissionDeniedError("subscribe", "a")
    table.deny(error)
    assert (ours.denied, others.denied) == (error, None)

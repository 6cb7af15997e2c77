"""No code publishes to a subject from the wire unless `jsclient.protocol.wire.replies` allows it.

All calls that publish on a connection, and all literal ``PUB`` commands, are listed here with the origin of their
subject. A new one fails this test: add it only if its subject is the caller's or our own. If the subject comes from
the wire, check it first, and list it under `CHECKED` with its check.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jsclient

ROOT = Path(jsclient.__file__).parent
CALLS = {"publish", "send", "send_frames", "ack", "ack_at_once", "ask", "request_at_once"}
FUNCTIONS = {"publish", "publish_patiently", "publish_command", "large_command", "burst_commands"}
OWNERS = ("connection", "_connection", "_nc", "requests", "_requests", "js", "_js")

CHECKED = {
    "core/message.py:respond": "may_answer",
    "_runtime/calls.py:nak_all": "is_jsack",
    "consumers/message.py:ack": "match_jsack",
    "consumers/message.py:ack_now": "match_jsack",
    "consumers/message.py:_send_ack": "sequences",
    "consumers/message.py:ack_sync": "sequences",
    "consumers/push/buffer.py:_carry_out": "jsclient/protocol/consumers/push.py:may_answer_flow_control",
    "consumers/worker/settling.py:store": "dead_letter_subject",
    "peers/nats_backend.py:publish": "event_subject",
    "peers/nats_backend.py:_answer": "may_answer",
    "spark/acks/bulk_ack.py:confirm": "check_replies",
    "spark/acks/bulk_ack.py:_write": "check_replies",
    "topics/epochs/live_publisher.py:_answer": "may_answer",
    "topics/epochs/live_publisher.py:_pump": "may_answer",
    "topics/epochs/presence.py:_answer": "may_answer",
}
"""Publishes to a subject from the wire, and the name of what checks it (in the same module, or in another one)."""

OWN = {
    "buckets/",
    "_runtime/context.py",
    "_runtime/connection/own_connection.py",
    "_runtime/connection/user_connection.py",
    "_runtime/connection/wire.py",
    "_runtime/publish.py",
    "consumers/ordered/",
    "core/api.py",
    "core/replies.py",
    "consumers/pull/",
    "peers/nats_backend.py:ask",
    "protocol/publishing/batch.py:__init__",
    "protocol/wire/commands.py",  # writes what its callers send, which are looked at themselves
    "publishing/",
    "spark/queue/reading.py:_singles",
    "spark/sink/",
    "streams/",
    "topics/epochs/live_subscription.py",
    "topics/epochs/home.py",
    "topics/epochs/presence.py:is_present",
    "topics/notifiers/newest.py:read_newest",
    "topics/stream_log.py",
}
"""Functions, modules and folders that publish to a subject of our own or of the caller."""


def publishes() -> Iterator[str]:
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if _is_call(node) or _is_command(node):
                        yield f"{path.relative_to(ROOT).as_posix()}:{function.name}"


def _is_call(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in FUNCTIONS
    if not (isinstance(node.func, ast.Attribute) and node.func.attr in CALLS):
        return False
    owner = node.func.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name in OWNERS


def _is_command(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return (isinstance(value, bytes) and value[:4] in (b"PUB ", b"HPUB")) or (
        isinstance(value, str) and value[:4] in ("PUB ", "HPUB")
    )


def test_all_publishes_are_known():
    actual = set(publishes())
    new = {function for function in actual - CHECKED.keys() if not function.startswith(tuple(OWN))}
    assert new == set(), "a new function publishes: see the docstring of this test"
    assert CHECKED.keys() - actual == set(), "these functions publish no more"


def test_checked_publishes_name_check():
    for position, check in CHECKED.items():
        module, _, name = check.rpartition(":")
        text = (ROOT.parent / module if module else ROOT / position.partition(":")[0]).read_text()
        assert f"{name}(" in text, position

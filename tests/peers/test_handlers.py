"""The handlers of a peer, and the functions that answer its queries."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime.handlers import Threads
from jsclient.errors import ClosedError, ConfigError, RequestTimeoutError
from jsclient.peers.handlers import Answers, HandlerError, Handlers, RaisedEvent, check_rule
from jsclient.protocol.peers.channel import RID
from tests.support.virtual import noting, settle, virtual


def event(name: str = "door:opened", **attrs) -> RaisedEvent:
    domain, _, type = name.partition(":")  # noqa: A001
    return RaisedEvent(domain, type, attrs)


@virtual
async def test_handlers_that_match_in_their_order():
    handlers, seen = Handlers(), []
    for pattern in ("door:opened", "door:*", "*:*", "door:closed"):
        handlers.add_handler(pattern, noting(into := []))
        seen.append(into)
    await handlers.run_handlers(event(by="me"))
    assert [len(into) for into in seen] == [1, 1, 1, 0]
    assert (seen[0][0].name, seen[0][0]["by"]) == ("door:opened", "me")
    handlers.close()


@virtual
async def test_handler_that_raises_skips_later_handlers():
    handlers, seen = Handlers(), []

    async def fail(_):
        raise ValueError("bad")

    handlers.add_handler("door:opened", fail)
    handlers.add_handler("door:opened", noting(seen))
    with pytest.raises(HandlerError) as caught:
        await handlers.run_handlers(event())
    assert isinstance(caught.value.__cause__, ValueError)
    assert seen == []
    handlers.close()


@virtual
async def test_closed_peer_calls_nothing_and_ends_waits():
    handlers, seen = Handlers(), []
    handlers.add_handler("*:*", noting(seen))
    waiting = asyncio.ensure_future(handlers.wait_for("door:opened", None, {}))
    await settle()
    handlers.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(HandlerError) as caught:
        await handlers.run_handlers(event())
    assert isinstance(caught.value.__cause__, ClosedError)
    assert seen == []


@virtual
async def test_wait_for_an_event_with_attributes():
    handlers = Handlers()
    for by in ("you", "me"):
        handlers.note(event(by=by))
    assert (await handlers.wait_for("door:opened", 1.0, {"by": "me"}))["by"] == "me"
    with pytest.raises(RequestTimeoutError, match="door:opened with"):
        await handlers.wait_for("door:opened", 1.0, {"by": "me"})
    waiting = asyncio.ensure_future(handlers.wait_for("door:*", None, {}))
    assert (await waiting)["by"] == "you", "the earlier event was not waited for yet"
    handlers.close()


@virtual
async def test_only_latest_events_are_stored():
    handlers = Handlers()
    for number in range(200):
        handlers.note(event(number=number))
    assert (await handlers.wait_for("door:opened", 1.0, {}))["number"] == 100
    handlers.close()


@pytest.mark.parametrize(
    ("name", "handler"), [("door", print), ("door:opened", None), ("door:opened", lambda: None)]
)
def test_invalid_handler_is_refused(name, handler):
    with pytest.raises(ConfigError):
        Handlers().add_handler(name, handler)


def test_rule_is_a_plain_function_of_the_attributes():
    check_rule(lambda attrs: True)
    for rule in (None, lambda: True, noting([])):
        with pytest.raises(ConfigError):
            check_rule(rule)


@virtual
async def test_query_is_answered_with_its_arguments():
    answers = Answers(Threads(1))

    async def state(n, relationship=None):
        return n, relationship

    async def plain(n):
        return n + 1

    answers.add_answer("door", "state", state)
    answers.add_answer("door", "plain", plain)
    assert answers.find("door", "other") is None
    query = answers.find("door", "state")
    assert await answers.call(query, {"n": 1, "relationship": "forged"}, {"Id": "fleet"}) == (
        1,
        {"Id": "fleet"},
    )
    assert await answers.call(answers.find("door", "plain"), {"n": 1}, {"Id": "fleet"}) == 2
    with pytest.raises(TypeError):
        await answers.call(answers.find("door", "plain"), {"m": 1}, None)


@pytest.mark.parametrize(
    ("rid", "name", "handler"),
    [(RID, "state", print), ("a.b", "state", print), ("door", "", print), ("door", "x", None)],
)
def test_invalid_answer_is_refused(rid, name, handler):
    with pytest.raises(ConfigError):
        Answers(Threads(1)).add_answer(rid, name, handler)

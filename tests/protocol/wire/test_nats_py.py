"""Each public name of nats-py's JetStream has a counterpart here, or an error that says what to do instead."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as CoreSubscription
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.manager import JetStreamManager
from nats.js.object_store import ObjectStore

import jsclient
from jsclient.errors import ConfigError
from jsclient.protocol.wire.checks import no_such_name
from jsclient.protocol.wire.nats_py import ARGUMENTS, ATTRIBUTES, argument_hint
from jsclient.testing import make_message

COUNTERPARTS = [
    (JetStreamContext, jsclient.JetStream),
    (JetStreamManager, jsclient.JetStream),
    (Client, jsclient.JetStream),
    (JetStreamManager, jsclient.Stream),
    (JetStreamContext.PushSubscription, jsclient.Subscription),
    (JetStreamContext.PushSubscription, jsclient.OrderedSubscription),
    (CoreSubscription, jsclient.Subscription),
    (JetStreamContext.PullSubscription, jsclient.PullSubscription),
    (CoreSubscription, jsclient.PullSubscription),
    (JetStreamContext.PullSubscription, jsclient.Consumer),
    (JetStreamContext.PullSubscription, jsclient.OrderedConsumer),
    (Msg, jsclient.Message),
    (Msg.Metadata, jsclient.Metadata),
    (KeyValue, jsclient.buckets.KeyValue),
    (ObjectStore, jsclient.buckets.ObjectStore),
]
OURS = {
    "js": jsclient.JetStream,
    "stream": jsclient.Stream,
    "consumer": jsclient.Consumer,
    "publisher": jsclient.Publisher,
    "jsclient": jsclient,
}


def public(cls: type) -> list[str]:
    fields = getattr(cls, "__dataclass_fields__", ())
    return sorted({name for name in (*dir(cls), *fields) if not name.startswith("_")})


def attribute_error(cls: type, name: str) -> str:
    """The text of the error for an attribute of an unknown instance."""
    with pytest.raises(AttributeError) as caught:
        getattr(blank(cls), name)
    return str(caught.value)


def blank(cls: type) -> Any:
    if cls is jsclient.Message:
        return make_message("orders.new")
    if cls is jsclient.Metadata:
        return make_message("orders.new").metadata
    return cls.__new__(cls)


@pytest.mark.parametrize(("theirs", "ours"), COUNTERPARTS, ids=lambda cls: cls.__qualname__)
def test_each_name_has_counterpart(theirs: type, ours: type) -> None:
    names = public(theirs)
    assert len(names) > 2
    silent = [
        name
        for name in names
        if not hasattr(ours, name) and f"nats-py's {name} " not in attribute_error(ours, name)
    ]
    assert silent == []


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_table_is_current(kind: str) -> None:
    """No entry hides a name that exists, and what the sentences name exists."""
    cls = getattr(jsclient, kind, None) or getattr(jsclient.buckets, kind)
    assert [name for name in ATTRIBUTES[kind] if hasattr(cls, name)] == []
    for name, meaning in ATTRIBUTES[kind].items():
        for owner, member in re.findall(r"\b(js|stream|consumer|publisher|jsclient)\.([A-Za-z_]+)", meaning):
            assert hasattr(OURS[owner], member), f"{name}: {owner}.{member}"
        if bare := re.match(r"is ([a-z_]+)\b(?:\(| here)", meaning):
            assert bare[1] in {"core", "not"} or hasattr(cls, bare[1]), f"{name}: {bare[1]}"


def test_unknown_name_suggests_public_one() -> None:
    assert (
        attribute_error(jsclient.JetStream, "publishh")
        == "JetStream has no attribute 'publishh'; did you mean 'publish'?"
    )
    assert attribute_error(jsclient.JetStream, "zebra") == "JetStream has no attribute 'zebra'"
    assert attribute_error(jsclient.JetStream, "_strem") == "JetStream has no attribute '_strem'"


@pytest.mark.parametrize("name", ["add_stream", "streem", "_strean"])
def test_python_adds_no_suggestion(name: str) -> None:
    """Python 3.11 suggests private names: '_stream' for add_stream."""
    try:
        getattr(blank(jsclient.JetStream), name)
    except AttributeError as error:
        shown = "".join(traceback.format_exception(error))
    assert "Did you mean" not in shown


def test_other_errors_stay() -> None:
    js = blank(jsclient.JetStream)
    with pytest.raises(AttributeError, match="'_connection'"):
        _ = js.is_connected  # a property that fails, not an attribute that does not exist
    assert not hasattr(js, "add_stream")
    assert getattr(js, "add_stream", None) is None


def test_arguments_say_what_to_use() -> None:
    assert no_such_name("fetch()", "argument", "timeout", ["expires"]) == (
        "fetch() has no argument 'timeout', as nats-py has; use expires=, the seconds that the server waits"
    )
    assert no_such_name("next()", "argument", "timeout", ["timeout"]).endswith("did you mean 'timeout'?")
    assert "use ordered=True" in no_such_name(
        "subscribe()", "argument", "ordered_consumer", ["consumer", "ordered"]
    )
    assert argument_hint("subscribe()", "max_reconnect_attempts") == ARGUMENTS["max_reconnect_attempts"]
    assert argument_hint("subscribe()", "colour") is None


@pytest.mark.parametrize(("name", "use"), [("payload", "data="), ("stream", "expected_stream=")])
def test_publish_names_its_argument(name: str, use: str) -> None:
    js = blank(jsclient.JetStream)
    with pytest.raises(TypeError, match=rf"publish\(\) has no argument '{name}', as nats-py has; use {use}"):
        js.publish("orders.new", **{name: b"x"}).send(None)


def test_fetch_names_its_argument() -> None:
    sub = blank(jsclient.PullSubscription)
    with pytest.raises(TypeError, match=r"fetch\(\) has no argument 'timeout', as nats-py has; use expires="):
        sub.fetch(1, timeout=1).send(None)
    with pytest.raises((TypeError, ConfigError), match="use ordered=True"):
        blank(jsclient.JetStream).subscribe("s", ordered_consumer=True)


FUNCTIONS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (Client.connect, jsclient.connect),
    (JetStreamContext.publish, jsclient.JetStream.publish),
    (JetStreamContext.subscribe, jsclient.JetStream.subscribe),
    (JetStreamContext.subscribe_bind, jsclient.JetStream.subscribe),
    (JetStreamContext.pull_subscribe, jsclient.JetStream.pull_subscribe),
    (JetStreamContext.pull_subscribe_bind, jsclient.JetStream.pull_subscribe),
    (JetStreamContext.PullSubscription.fetch, jsclient.PullSubscription.fetch),
    (CoreSubscription.next_msg, jsclient.Subscription.next),
]
OPTIONS = set(inspect.get_annotations(jsclient.client.ConnectOptions))


def accepted(function: Callable[..., Any]) -> set[str]:
    own = set(inspect.signature(function).parameters) - {"self", "options", "more", "group"}
    return own | OPTIONS if function is jsclient.connect else own


@pytest.mark.parametrize(("theirs", "ours"), FUNCTIONS, ids=lambda function: function.__qualname__)
def test_each_argument_is_reported(theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """It exists here, or the error says what to use, and that exists."""
    known = accepted(ours)
    first = () if ours is jsclient.connect else (blank(owner(ours)),)
    for name in set(inspect.signature(theirs).parameters) - {"self"} - known:
        with pytest.raises((TypeError, ConfigError)) as caught:
            ours(*first, "s", **{name: 1}).send(None)
        text = str(caught.value)
        assert f"{ours.__name__}() has no " in text
        assert ", as nats-py has; " in text or f"use config=jsclient.ConsumerConfig({name}=...)" in text, text
        if used := re.search(r"; use ([a-z_]+)=(?! of)", text):
            assert used[1] in known, text


def owner(function: Callable[..., Any]) -> Any:
    return getattr(jsclient, function.__qualname__.split(".")[0], jsclient.JetStream)


@pytest.mark.parametrize("name", ["ack_wait", "filter_subjects", "max_ack_pending", "max_deliver"])
def test_field_of_the_consumer(name: str) -> None:
    js = blank(jsclient.JetStream)
    for method in (js.subscribe, js.pull_subscribe):
        with pytest.raises(TypeError) as caught:
            method("s", **{name: 1})
        assert str(caught.value).endswith(
            f"field of the consumer; use config=jsclient.ConsumerConfig({name}=...)"
        )

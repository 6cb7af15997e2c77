"""The names of nats-py and their counterparts, for the errors of programs that are ported from nats-py.

The module has the methods of nats-py's ``JetStreamContext``, its subscriptions, ``Msg``, and ``Client``, by the class
of jsclient on which a program would call them, and the arguments of all functions of nats-py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

__all__ = ["ARGUMENTS", "ATTRIBUTES", "argument_hint", "no_attribute"]

_CHECKED = "leave it out: subjects and payloads are always checked before they are sent"
_PULLED = "leave it out: a pull subscription receives only what it requests"
_WINDOW = "leave it out: max_in_flight= and max_bytes= of publisher() limit what waits"

ARGUMENTS: Final[Mapping[str, str]] = {
    "allow_reconnect": "leave it out: it reconnects without limit until close()",
    "cb": "callback=",
    "closed_cb": "JetStream.is_closed",
    "disconnected_cb": "on_event=",
    "discovered_server_cb": "on_event=",
    "drain_timeout": "timeout= of Subscription.drain()",
    "durable_name": "durable=",
    "error_cb": "on_event=",
    "fetch() heartbeat": "idle_heartbeat=",
    "fetch() timeout": "expires=, the seconds that the server waits",
    "flush_timeout": "timeout=",
    "flusher_queue_size": _WINDOW,
    "lame_duck_mode_cb": "on_event=",
    "manual_ack": "auto_ack=False",
    "max_outstanding_pings": "ping_interval=",
    "max_reconnect_attempts": "leave it out: it reconnects without limit until close()",
    "ordered_consumer": "ordered=True",
    "payload": "data=",
    "pedantic": _CHECKED,
    "pending_bytes_limit": "max_pending_bytes=",
    "pending_msgs_limit": "max_pending=",
    "pending_size": _WINDOW,
    "publish() msg_ttl": "ttl=",
    "publish() stream": "expected_stream=",
    "pull_subscribe() cb": "run(handler) of the subscription",
    "pull_subscribe() inbox_prefix": "inbox_prefix= of connect()",
    "pull_subscribe() pending_bytes_limit": _PULLED,
    "pull_subscribe() pending_msgs_limit": _PULLED,
    "reconnect_to_server_handler": "leave it out: it tries all servers in turn",
    "reconnected_cb": "on_event=",
    "skip_subject_validation": _CHECKED,
    "verbose": _CHECKED,
}  # a key names the function too if the argument has a different meaning there


def argument_hint(owner: str, name: str) -> str | None:
    """Return what to do instead of passing nats-py's argument ``name`` to ``owner``, or None for other arguments."""
    hint = ARGUMENTS.get(f"{owner} {name}") or ARGUMENTS.get(name)
    if hint is None or hint.startswith("leave "):
        return hint
    return f"use {hint}"


_BESIDE = "use nats-py's own beside jsclient, on one connection: js = jsclient.JetStream(nc)"
_RECONNECTS = "has no counterpart: jsclient reconnects by itself until close(); events tell when"
_POSITION = "is js.is_connected or js.is_closed here"
_SERVERS = (
    "has no counterpart: pass all servers to jsclient.connect() or js.set_servers(); those that a cluster announces "
    "are added"
)
_STREAM = "with stream = await js.stream(name)"
_CONSUMER = "with consumer = await stream.consumer(name)"

_MANAGER = {
    "add_consumer": f"is stream.create_consumer() or stream.ensure_consumer() here, {_STREAM}",
    "add_stream": "is js.create_stream() here, or js.ensure_stream(), which accepts an existing stream",
    "consumer_info": f"is consumer.info() here, {_CONSUMER}",
    "consumers_info": f"is 'async for info in stream.consumers()' here, {_STREAM}",
    "delete_consumer": f"is stream.delete_consumer() here, {_STREAM}",
    "delete_msg": f"is stream.delete_message() here, {_STREAM}",
    "find_stream_name_by_subject": "is js.stream_name_by_subject() here, which returns a list",
    "get_last_msg": f"is stream.get_last_message() here, {_STREAM}",
    "get_msg": f"is stream.get_message() here, {_STREAM}",
    "pause_consumer": f"is consumer.pause() here, {_CONSUMER}",
    "purge_stream": f"is stream.purge() here, {_STREAM}",
    "reset_consumer": f"is consumer.reset() here, {_CONSUMER}",
    "resume_consumer": f"is consumer.resume() here, {_CONSUMER}",
    "stream_info": f"is stream.info() here, {_STREAM}",
    "streams_info": "is 'async for info in js.streams()' here",
    "streams_info_iterator": "is 'async for info in js.streams()' here",
}

_STREAMS = {name: meaning for name, meaning in _MANAGER.items() if name != "delete_consumer"} | {
    "account_info": "is js.account_info() here",
    "delete_stream": "is js.delete_stream() here",
    "update_stream": "is js.update_stream() here",
}

_CONTEXT = {
    "PullSubscription": "is jsclient.PullSubscription here",
    "PushSubscription": "is jsclient.Subscription here",
    "is_status_msg": "is not needed here: subscriptions handle statuses, and no reader gets one",
    "publish_async": "is 'async with js.publisher() as publisher' here: publisher.publish() returns a future",
    "publish_async_completed": "is publisher.flush() here, with js.publisher()",
    "publish_async_pending": "is publisher.in_flight here, with js.publisher()",
    "pull_subscribe_bind": "is js.pull_subscribe(stream=, consumer=) here",
    "subscribe_bind": "is js.subscribe(stream=, consumer=) here",
}

_CLIENT = {
    "CLOSED": _POSITION,
    "CONNECTED": _POSITION,
    "CONNECTING": _POSITION,
    "DISCONNECTED": _POSITION,
    "DRAINING_PUBS": _POSITION,
    "DRAINING_SUBS": _POSITION,
    "RECONNECTING": _POSITION,
    "client_id": "has no counterpart: connect(name=) names the connection to the server",
    "client_ip": "has no counterpart",
    "connect": "is jsclient.connect() here, which returns the open connection",
    "connected_server_version": "is js.server_version here",
    "connected_url": "is in repr(js) here",
    "discovered_servers": _SERVERS,
    "flush": "is js.core.flush() here",
    "force_reconnect": "is js.reconnect() here",
    "is_connecting": "is 'not js.is_connected' here",
    "is_draining": "has no counterpart: js.drain() returns when all has ended, and then js.is_closed is True",
    "is_draining_pubs": "has no counterpart: js.drain() returns when all has ended, and then js.is_closed is True",
    "is_reconnecting": "is 'not js.is_connected' here",
    "jetstream": "is not needed here: this object has the methods of JetStream",
    "jsm": "is not needed here: this object has the methods of JetStream",
    "last_error": "has no counterpart: connect(on_event=) gets every problem, and by default it is logged",
    "max_payload": "has no counterpart: js.publish() raises MaxPayloadError before it sends",
    "msg_class": "has no counterpart: messages are jsclient.Message",
    "new_inbox": "is not needed here: js.core.request() receives the reply itself",
    "pending_data_size": "is js.stats().bytes_waiting here",
    "request": "is js.core.request() here",
    "rtt": "is js.ping() here, which returns seconds",
    "server_pool": _SERVERS,
    "servers": _SERVERS,
    "set_server_pool": "is js.set_servers() here",
    "ssl_context": "has no counterpart: connect(tls=) takes it",
}

_SUBSCRIPTION = {
    "delivered": "is in consumer_info() here: its delivered.consumer_seq counts the deliveries",
    "next_msg": "is next(timeout=1) here: next_msg waits 1 s, and next() alone waits without limit",
    "pending_msgs": "is pending here",
}

_PULL = {
    **_SUBSCRIPTION,
    "next_msg": "is next(timeout=1) here: next() alone waits 5 s",
    "pending_bytes": "has no counterpart: a pull subscription buffers only what a cancelled call left, see pending",
    "queue": "has no counterpart: all pull subscriptions with one durable share its messages",
    "subject": "has no counterpart: see filter_subjects in the config of consumer_info()",
}

_AT_MOST_ONCE = "is for messages of a stream, with js.subscribe() here; core NATS delivers at most once"

_INFO = {"consumer_info": "is info() here", "unsubscribe": "is close() here"}

ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "JetStream": {**_CLIENT, **_MANAGER, **_CONTEXT},
    "Stream": _STREAMS,
    "Subscription": {**_SUBSCRIPTION, "messages": "is 'async for message in sub' here"},
    "PullSubscription": _PULL,
    "Consumer": {
        **_PULL,
        **_INFO,
        "drain": "is close() here",
        "pending_msgs": "has no counterpart: see info()",
    },
    "OrderedConsumer": {**_PULL, **_INFO},
    "Message": {
        "Ack": "has no counterpart: use ack(), nak(), term() and in_progress()",
        "Metadata": "is jsclient.Metadata here",
        "is_acked": "is acked here",
        "respond": "answers a request, with js.core.subscribe() here; a message of a stream has ack()",
        "sid": "has no counterpart: metadata names stream and consumer",
    },
    "KeyValue": {
        "BucketStatus": "is jsclient.buckets.BucketStatus here",
        "Entry": "is jsclient.buckets.KeyValueEntry here",
        "KeyWatcher": "is jsclient.buckets.KeyValueWatch here",
        "watchall": "is watch() here, without a filter",
    },
    "ObjectStore": {
        "ObjectResult": "has no counterpart: get() returns bytes, and 'async with store.open(name)' has the info",
        "ObjectStoreStatus": "is jsclient.buckets.ObjectStoreStatus here",
        "ObjectWatcher": "is jsclient.buckets.ObjectWatch here",
        "get_info": "is info() here",
        "is_sealed": "is (await store.status()).is_sealed here",
        "update_meta": "is update_info() here, and rename() for another name",
    },
    "CoreSubscription": {
        "delivered": "is received here",
        "messages": "is 'async for message in sub' here",
        "next_msg": "is next(timeout=1) here: next_msg waits 1 s, and next() alone waits without limit",
        "pending_msgs": "is pending here",
    },
    "CoreMessage": {
        **dict.fromkeys(("ack", "ack_sync", "in_progress", "metadata", "nak", "term"), _AT_MOST_ONCE),
        "sid": "has no counterpart",
    },
    "Metadata": {
        "SequencePair": "has no counterpart: see stream_seq and consumer_seq",
        "sequence": "is stream_seq (nats-py's sequence.stream) and consumer_seq (sequence.consumer) here",
    },
}  # by class of jsclient; each value continues the sentence "nats-py's <name> …"


def no_attribute(self: object, name: str) -> NoReturn:
    """Raise the ``AttributeError`` for an attribute that does not exist. Classes use this as their ``__getattr__``.

    Python calls it only if the normal look-up has failed.
    """
    cls = type(self)
    if hasattr(cls, name):  # a property of this name has raised an AttributeError, so raise that error again
        object.__getattribute__(self, name)
    text = _advice(cls, name) if name[:1] != "_" else f"{cls.__name__} has no attribute {name!r}"
    # Leave the object out of the error. Otherwise, Python would add "Did you mean", which could name a private
    # attribute.
    raise AttributeError(text, name=name, obj=None)


def _advice(cls: type[Any], name: str) -> str:
    for kind in cls.__mro__:
        if meaning := ATTRIBUTES.get(kind.__name__, {}).get(name):
            return f"{kind.__name__} has no attribute {name!r}: nats-py's {name} {meaning}"
    from difflib import get_close_matches  # imported here to keep `import jsclient` fast

    public = [known for known in dir(cls) if not known.startswith("_")]
    near = get_close_matches(name, public, 1)
    return f"{cls.__name__} has no attribute {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")

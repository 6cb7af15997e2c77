"""The public surface: everything public comes from the top level, once."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import jsclient
from jsclient import errors, events

APART = {
    "cli",
    "consumers",
    "protocol",
    "publishing",
    "server",
    "spark",
    "streams",
    "testing",
    "topics",
}  # used under their own name


def modules() -> list[str]:
    """Public modules: no underscore, and not those of the protocol that only the library itself uses."""
    found = [
        name
        for _, name, _ in pkgutil.iter_modules(jsclient.__path__)
        if not name.startswith("_") and name not in APART
    ]
    return [f"jsclient.{name}" for name in found] + ["jsclient.protocol.models", "jsclient.protocol.events"]


DOORS = {
    "publishing.batch": {"AtomicBatch"},
    "client": {"JetStream", "connect"},
    "consumers.consumer": {"Consumer"},
    "streams.counter": {"Counter"},
    "streams.direct_get": {"DirectBatch"},
    "publishing.fast_ingest": {"FastIngest"},
    "topics.memory_log": {"MemoryLog"},
    "consumers.message": {"Message", "ack_all"},
    "consumers.pull.messages": {"Messages"},
    "consumers.ordered.subscription": {"OrderedSubscription"},
    "consumers.ordered.consumer": {"OrderedConsumer"},
    "consumers.ordered.messages": {"OrderedMessages"},
    "publishing.publisher": {"Publisher"},
    "topics.event_history": {"CurrentEvent", "EventHistory", "EventSource"},
    "topics.event_subscription": {"EventSubscription"},
    "topics.notifiers.iteration": {
        "IterationObserver",
        "IterationSubscription",
        "Notifier",
        "NotifierIterator",
        "NotifierKit",
        "Producer",
        "SubscriptionIterator",
        "SubscriptionKit",
        "UpdateRecord",
    },
    "topics.notifiers.memory": {"make_notifier_kit", "make_subscription_kit"},
    "topics.notifiers.sharing": {"make_notifier", "make_subscription"},
    "consumers.pull.fetch": {"Batch"},
    "consumers.pull_subscription": {"PullSubscription"},
    "streams.stream": {"Stream"},
    "consumers.subscription": {"Subscription"},
    "topics.topic": {"Topic"},
    "topics.publisher": {"TopicPublisher"},
    "topics.readers": {"LatestReader", "TopicReader"},
    "consumers.worker.worker": {"Worker"},
    "protocol.consumers.ack": {"Metadata"},
    "protocol.streams.counter": {"CounterEntry"},
    "protocol.wire.headers": {"Headers"},
    "protocol.topics.position": {"Position"},
    "protocol.topics.record": {"Record"},
    "protocol.consumers.status": {"Ending"},
    "protocol.consumers.worker.work": {"DeliveriesExhaustedError", "Reject", "WorkCounts"},
}


def test_every_name_of_all_is_there_and_none_twice():
    assert len(jsclient.__all__) == len(set(jsclient.__all__))
    for name in jsclient.__all__:
        assert getattr(jsclient, name) is not None


@pytest.mark.parametrize("module", modules())
def test_the_names_of_a_modules_all_exist_and_none_twice(module):
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None)
    assert names is not None, f"{module} has no __all__"
    assert len(names) == len(set(names))
    for name in names:
        assert hasattr(loaded, name)


@pytest.mark.parametrize(("module", "names"), DOORS.items())
def test_what_a_user_meets_is_at_the_top_level(module, names):
    loaded = importlib.import_module(f"jsclient.{module}")
    for name in names:
        assert name in loaded.__all__
        assert getattr(jsclient, name) is getattr(loaded, name)
        assert name in jsclient.__all__


@pytest.mark.parametrize("module", [errors, events, importlib.import_module("jsclient.protocol.models")])
def test_all_errors_events_and_models_are_at_the_top_level(module):
    for name in module.__all__:
        assert getattr(jsclient, name) is getattr(module, name), name


def test_configurations_and_their_enums_are_at_the_top_level():
    for name in (
        "StreamConfig",
        "ConsumerConfig",
        "ConsumerInfo",
        "StreamInfo",
        "AckPolicy",
        "DeliverPolicy",
        "ReplayPolicy",
        "RetentionPolicy",
        "StorageType",
        "DiscardPolicy",
        "PubAck",
    ):
        assert hasattr(jsclient, name), name


def test_no_name_means_two_things():
    """What the star imports bring does not hide anything."""
    sources = [errors.__all__, events.__all__, importlib.import_module("jsclient.protocol.models").__all__]
    names = [name for source in sources for name in source]
    assert sorted(names) == sorted(set(names))
    own = {name for of in DOORS.values() for name in of}
    assert own.isdisjoint(names)


def test_the_package_is_typed_and_has_a_version():
    assert jsclient.__version__.count(".") >= 2 or "." in jsclient.__version__
    assert any(entry.endswith("jsclient") for entry in jsclient.__path__)

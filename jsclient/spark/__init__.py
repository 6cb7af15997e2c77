"""JetStream for Spark: a source, a sink, acks for ``foreachBatch``, and a listener for monitoring.

The package needs the extra ``spark`` and Java 17.

`register` makes ``format("jetstream")`` known to a session. Spark also discovers an installed jsclient by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .registering import register

if TYPE_CHECKING:
    from .acks.ack_batch import ack_batch, heartbeat, nak_batch, term_batch
    from .monitoring.listener import JetStreamListener
    from .sink.publish_batch import publish_batch

__all__ = [
    "JetStreamListener",
    "ack_batch",
    "heartbeat",
    "nak_batch",
    "publish_batch",
    "register",
    "term_batch",
]

# Import these names on first use, because their modules need pyspark and pyarrow. The planning modules of this package
# need neither.
_WHERE = {
    "JetStreamListener": "monitoring.listener",
    "ack_batch": "acks.ack_batch",
    "heartbeat": "acks.ack_batch",
    "nak_batch": "acks.ack_batch",
    "publish_batch": "sink.publish_batch",
    "term_batch": "acks.ack_batch",
}


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f".{_WHERE[name]}", __name__), name)

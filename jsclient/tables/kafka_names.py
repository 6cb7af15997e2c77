"""Counterparts of the options of Spark's Kafka source and sink, for users who know those options."""

from __future__ import annotations

from typing import Final

__all__ = ["instead_of_kafkas"]

_OPTIONS: Final = {
    "subscribe": "'stream', the stream to read, or several separated by commas, and 'subjects', its filters",
    "subscribepattern": "'streamPattern', in which * stands for any characters",
    "assign": "'stream'; a stream has no partitions",
    "topic": "'subject'",
    "startingoffsetsbytimestamp": "'startingTimestamp'",
    "endingoffsets": "'endingSequence' or 'endingTimestamp'",
    "endingoffsetsbytimestamp": "'endingTimestamp'",
    "maxoffsetspertrigger": "'maxMessagesPerTrigger'",
    "maxrecordsperpartition": "'maxMessagesPerPartition'",
    "groupidprefix": "'consumer'",
    "kafka.group.id": "'consumer'",
    "kafka.bootstrap.servers": "'servers'",
    "kafka.client.id": "'nats.name'",
    "kafka.enable.idempotence": "'exactlyOnce'",
    "kafka.fetch.max.bytes": "'fetchMaxBytes'",
    "kafka.request.timeout.ms": "'timeout', and 'ackTimeout' for a row of the sink",
    "kafka.retries": "'retries'",
    "kafka.delivery.timeout.ms": "'ackTimeout', for each of the attempts in 'retries'",
    "kafka.max.in.flight.requests.per.connection": "'window'",
    "kafka.buffer.memory": "'windowBytes'",
    "kafka.security.protocol": "a URL in 'servers' that begins with tls://, or 'tlsCa'",
}
_PREFIXES: Final = {
    "kafka.sasl.": "'credentialsFile', 'nkeySeedFile', 'user' with 'passwordEnv', or 'tokenEnv'",
    "kafka.ssl.": "'tlsCa', 'tlsCert', 'tlsKey' or 'tlsHostname'",
}
_RECONNECTS: Final = "the client reconnects by itself, and 'timeout' bounds each request"
_NEEDLESS: Final = {
    "startingoffsetsbytimestampstrategy": "a query that starts after the last message waits for the next one",
    "fetchoffset.numretries": _RECONNECTS,
    "fetchoffset.retryintervalms": _RECONNECTS,
    "kafkaconsumer.polltimeoutms": _RECONNECTS,
    "kafka.acks": "a row is stored when the stream has acked it",
    "kafka.compression.type": "a stream is compressed by a setting of its own",
    "kafka.isolation.level": "an atomic batch is in a stream as a whole, or not at all",
}


def instead_of_kafkas(lower: str) -> str | None:
    """Return the end of an error message about a Kafka option, or None for any other option.

    ``lower`` is the name of the option in lower case.
    """
    if lower in _NEEDLESS:
        return f" of Kafka, and needs none: {_NEEDLESS[lower]}"
    by_prefix = (here for prefix, here in _PREFIXES.items() if lower.startswith(prefix))
    here = _OPTIONS.get(lower) or next(by_prefix, None)
    return None if here is None else f": that of Kafka is {here} here"

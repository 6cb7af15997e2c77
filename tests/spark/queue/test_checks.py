"""What queue mode needs of stream and consumer: each refusal names the option and what to do."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError, PermissionDeniedError
from jsclient.protocol.models.consumer import ConsumerConfig, ConsumerInfo
from jsclient.protocol.models.stream_config import StreamConfig
from jsclient.spark.queue.checks import check_queue, effective_ack_wait, not_permitted

STREAM = StreamConfig(name="ORDERS", allow_direct=True, retention="workqueue")


def consumer(**fields):
    config = ConsumerConfig(**{"durable_name": "spark", "ack_policy": "explicit", **fields})
    return ConsumerInfo(stream_name="ORDERS", name="spark", config=config)


def test_a_durable_pull_consumer_with_explicit_acks_fits():
    for ack_on in ("batch", "manual", "purge"):
        check_queue(STREAM, consumer(), ack_on)


@pytest.mark.parametrize(
    ("stream", "fields", "ack_on", "says"),
    [
        (STREAM, {"deliver_subject": "x"}, "batch", "'consumer'.*push consumer.*without deliver_subject"),
        (STREAM, {"ack_policy": "none"}, "batch", "'consumer'.*'none'.*explicit"),
        (STREAM, {"ack_policy": "all"}, "batch", "'consumer'.*'all'.*explicit"),
        (STREAM, {"durable_name": None, "name": "spark"}, "batch", "'consumer'.*not durable.*durable_name"),
        (STREAM, {"priority_groups": ["a"]}, "batch", "'consumer'.*priority groups"),
        (STREAM.replace(allow_direct=False), {}, "batch", "'stream'.*direct.*allow_direct=True"),
        (STREAM.replace(retention="limits"), {}, "purge", "'ackOn' is 'purge'.*no work queue.*'batch'"),
        (STREAM, {"filter_subject": "orders.a"}, "purge", "'ackOn' is 'purge'.*filter.*'batch'"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_option_and_the_fix(stream, fields, ack_on, says):
    with pytest.raises(ConfigError, match=says):
        check_queue(stream, consumer(**fields), ack_on)


def test_signs_of_life_go_by_the_shortest_time():
    assert effective_ack_wait(consumer(ack_wait=9.0)) == 9.0
    assert effective_ack_wait(consumer(ack_wait=9.0, backoff=[4.0, 20.0])) == 4.0
    assert effective_ack_wait(consumer()) == 30.0


def test_a_right_that_is_missing_is_named():
    error = not_permitted("consumer", PermissionDeniedError("publish", "$JS.ACK.S.c.1"), "it is acked")
    assert "'consumer'" in str(error)
    assert "publish to '$JS.ACK.S.c.1'" in str(error)

"""One look at a consumer that delivers nothing: what is requested, and what an answer shows."""

from __future__ import annotations

import pytest

from jsclient.consumers.look import look_at_consumer, stream_info
from jsclient.errors import PermissionDeniedError, StreamNotFoundError
from tests.support.fake import Refusal, connected
from tests.support.strategies import CONSUMER, STREAM
from tests.support.virtual import virtual


def requests(connection) -> list[str]:
    return [sent.subject.removeprefix("$JS.API.") for sent in connection.sent]


@virtual
async def test_healthy_consumer_shows_that_it_fits():
    async with connected() as (js, connection):
        connection.api.has(CONSUMER)
        seen = await look_at_consumer(js._context, STREAM, CONSUMER)
        assert seen.info.name == CONSUMER
        assert (seen.fits, seen.denied, seen.due) == (True, False, None)
        assert requests(connection) == ["CONSUMER.INFO.ORDERS.worker", "STREAM.INFO.ORDERS"]


@virtual
async def test_filter_that_matches_nothing_is_shown():
    async with connected() as (js, connection):
        connection.api.has(CONSUMER, filter_subject="other")
        seen = await look_at_consumer(js._context, STREAM, CONSUMER)
        assert not seen.fits
        assert any("other" in finding.what + finding.evidence for finding in seen.findings)


@pytest.mark.parametrize("pending", [0, 3])
@virtual
async def test_stream_is_requested_only_if_it_can_explain_it(pending):
    async with connected() as (js, connection):
        info = connection.api.info(CONSUMER, {"ack_policy": "explicit"}, num_pending=pending)
        connection.api.on("CONSUMER.INFO", info, info)
        await look_at_consumer(js._context, STREAM, CONSUMER)
        assert len(requests(connection)) == (1 if pending else 2)
        await look_at_consumer(js._context, STREAM, CONSUMER, with_stream=False)
        assert requests(connection)[-1].startswith("CONSUMER.INFO")


@virtual
async def test_missing_consumer_is_a_result():
    async with connected() as (js, _):
        seen = await look_at_consumer(js._context, STREAM, CONSUMER)
        assert seen.info is None
        assert [finding.level for finding in seen.findings] == ["error"]


@virtual
async def test_missing_permission_is_a_result():
    async with connected() as (js, connection):
        with connection.broken(PermissionDeniedError("publish", "$JS.API.CONSUMER.INFO.ORDERS.worker")):
            seen = await look_at_consumer(js._context, STREAM, CONSUMER)
        assert seen.denied
        connection.api.has(CONSUMER)


@virtual
async def test_lost_connection_shows_nothing():
    async with connected(timeout=1.0) as (js, connection):
        await js.close()
        assert await look_at_consumer(js._context, STREAM, CONSUMER) is None
        assert connection.sent == []


@virtual
async def test_state_of_a_stream():
    async with connected() as (js, connection):
        connection.api.last_seq = 7
        assert (await stream_info(js._context, STREAM)).state.last_seq == 7
        connection.api.on("STREAM.INFO", Refusal(10059, 404, "stream not found"))
        with pytest.raises(StreamNotFoundError):
            await stream_info(js._context, STREAM)

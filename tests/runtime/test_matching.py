"""Whether a filter can match a message of a stream: what is requested, and what an answer means."""

from __future__ import annotations

import pytest

from jsclient._runtime.matching import check_match
from jsclient.errors import ConfigError
from jsclient.protocol.models.stream_config import StreamConfig
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.virtual import virtual

NO_MESSAGE = Refusal(10037, 404, "no message found")
MESSAGE = {"message": {"subject": "old", "seq": 7, "time": "2026-11-23T00:00:00Z"}}
KNOWN = StreamConfig(name="ORDERS", subjects=["orders.>"])


@pytest.mark.parametrize(
    ("filters", "known"), [([], None), (["orders.new"], KNOWN), (["*.new"], KNOWN), ([">"], KNOWN)]
)
@virtual
async def test_fitting_filter_needs_no_request(filters, known):
    async with connected() as (js, connection):
        await check_match(js._context, "ORDERS", filters, known)
        assert connection.sent == []


@virtual
async def test_filter_beside_the_subjects_is_refused():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", NO_MESSAGE)
        with pytest.raises(
            ConfigError,
            match=r"'other' can match no message of stream 'ORDERS', whose subjects are 'orders\.>'",
        ):
            await check_match(js._context, "ORDERS", ["orders.new", "other"], KNOWN)
        assert [sent.json for sent in connection.to("$JS.API.STREAM.MSG")] == [{"last_by_subj": "other"}]


@virtual
async def test_stored_message_of_a_former_subject_is_enough():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", MESSAGE)
        await check_match(js._context, "ORDERS", ["old"], KNOWN)


@virtual
async def test_changed_stream_is_looked_up():
    """The configuration that is known may be an old one."""
    async with connected() as (js, connection):
        old = StreamConfig(name="ORDERS", subjects=["before"])
        await check_match(js._context, "ORDERS", ["orders.new"], old)
        assert len(connection.to("$JS.API.STREAM.INFO.ORDERS")) == 1


@pytest.mark.parametrize("answer", [SILENCE, Refusal(10059, 404, "stream not found")])
@virtual
async def test_filter_is_not_refused_without_an_answer(answer):
    async with connected() as (js, connection):
        connection.api.on("STREAM.INFO", *[answer] * 5)
        await check_match(js._context, "ORDERS", ["other"], KNOWN)
        connection.api.script.clear()
        connection.api.on("STREAM.MSG", *[answer] * 5)
        await check_match(js._context, "ORDERS", ["other"], KNOWN)


@virtual
async def test_users_own_connection_is_not_asked_for_an_unknown_stream():
    """It would not show a denial, and take the whole timeout."""
    async with connected() as (js, connection):
        assert connection.outbox is None
        await check_match(js._context, "ORDERS", ["other"], None)
        assert connection.sent == []

"""Refusals that are explained by a look at the server's state."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jsclient._runtime.refusals import explained, unanswered
from jsclient.errors import ApiError, ConsumerLimitError, RequestTimeoutError
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.virtual import virtual


@virtual
async def test_limit_of_consumers_with_its_counts():
    async with connected() as (js, connection):
        info = {"config": {"name": "S", "max_consumers": 5}, "state": {"consumer_count": 5}}
        connection.api.on("STREAM.INFO", info)
        error = ConsumerLimitError(400, 10026, "maximum consumers limit reached")
        error.stream = "S"
        text = str(await explained(js._context, error, {}))
        assert "5" in text
        assert len(text) > len(str(error))


@pytest.mark.parametrize(
    ("err_code", "field", "option"), [(10047, "max_storage", "max_file"), (10028, "max_memory", "max_mem")]
)
@virtual
async def test_full_account_with_its_limit(err_code, field, option):
    async with connected() as (js, connection):
        connection.api.on("INFO", {"limits": {field: 100}, "storage": 90, "memory": 90})
        error = ApiError(400, err_code, "insufficient resources")
        body = {"max_bytes": 10, "num_replicas": 3}
        text = str(await explained(js._context, error, body))
        assert f"raise {option} of the account" in text
        assert "would reserve 30" in text


@pytest.mark.parametrize("answer", [SILENCE, Refusal(10039, 503, "not enabled"), {"limits": 7}])
@virtual
async def test_without_an_answer_the_refusal_stays_as_it_is(answer):
    async with connected() as (js, connection):
        connection.api.on("INFO", *[answer] * 5)
        error = ApiError(400, 10047, "insufficient storage")
        assert await explained(js._context, error, {}) is error


@pytest.mark.parametrize("answer", [SILENCE, {"streams": ["S"]}, Refusal(10039, 503, "not enabled")])
@virtual
async def test_timeout_of_a_publish_stays_as_it_is(answer):
    async with connected() as (js, connection):
        connection.outbox = SimpleNamespace(is_full=True)
        connection.api.on("STREAM.NAMES", *[answer] * 5)
        error = RequestTimeoutError("publish", 5.0)
        assert await unanswered(js._context, error, "a") is error
        connection.outbox = None


@virtual
async def test_timeout_without_a_stream_says_so():
    async with connected() as (js, connection):
        connection.outbox = SimpleNamespace(is_full=True)
        connection.api.on("STREAM.NAMES", {"streams": None})
        error = await unanswered(js._context, RequestTimeoutError("publish", 5.0), "a")
        assert "no stream has the subject 'a'" in str(error)
        again = await unanswered(js._context, error, "a")
        assert again is error, "its reason is known"
        connection.outbox = None

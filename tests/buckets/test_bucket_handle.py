"""What the handles of all buckets request about their stream, on a fake connection."""

from __future__ import annotations

import copy
from base64 import b64encode

import pytest

from jsclient.buckets.bucket_handle import BucketHandle, no_bucket
from jsclient.errors import ApiError, BucketNotFoundError, RequestTimeoutError, StreamNotFoundError
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.models.stream_config import StreamConfig
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.virtual import virtual

NO_STREAM = Refusal(10059, 404, "stream not found")
KNOWN = StreamInfo(config=StreamConfig(name="KV_cfg", description="known"))


class Handle(BucketHandle):
    _create = "create_some"


def handle_of(js, info=None) -> Handle:
    return Handle(js._context, "cfg", "KV_cfg", info)


def requests(connection):
    return [(sent.subject.removeprefix("$JS.API."), sent.json) for sent in connection.sent]


@virtual
async def test_names():
    async with connected() as (js, connection):
        handle = handle_of(js)
        assert (handle.bucket, handle.stream, repr(handle)) == ("cfg", "KV_cfg", "<Handle cfg>")
        assert connection.sent == []


@virtual
async def test_no_copies():
    async with connected() as (js, _):
        with pytest.raises(TypeError, match="<Handle cfg> cannot be pickled or copied"):
            copy.copy(handle_of(js))


@virtual
async def test_unknown_attribute():
    async with connected() as (js, _):
        with pytest.raises(AttributeError, match="Handle") as caught:
            handle_of(js).nothing  # noqa: B018
        assert caught.value.obj is None, "otherwise Python would propose private names"


def test_error_of_a_missing_bucket():
    error = no_bucket(StreamNotFoundError(404, 10059, "stream not found", "KV_cfg", None), "create_some")
    assert type(error) is BucketNotFoundError
    assert (error.code, error.err_code, error.description) == (404, 10059, "stream not found")
    assert (error.stream, error.consumer) == ("KV_cfg", None)
    assert error.advice == "check the name, or create it with create_some()"
    assert error.advice in str(error)


@virtual
async def test_missing_bucket():
    async with connected() as (js, connection):
        handle = handle_of(js)
        connection.api.on("STREAM.PURGE", NO_STREAM)
        connection.api.on("STREAM.MSG", NO_STREAM)
        connection.api.on("STREAM.INFO", NO_STREAM)
        for request in (handle._purge("a", "purge"), handle._stored({"seq": 1}), handle._known()):
            with pytest.raises(BucketNotFoundError, match=r"create_some\(\)") as caught:
                await request
            assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)


@virtual
async def test_other_refusals_stay():
    async with connected() as (js, connection):
        connection.api.on("STREAM.PURGE", Refusal(10052, 500, "it is sealed"))
        with pytest.raises(ApiError, match="it is sealed") as caught:
            await handle_of(js)._purge("a", "purge")
        assert type(caught.value) is ApiError


@virtual
async def test_silence_names_the_bucket():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", SILENCE, SILENCE, SILENCE)
        begin = js._context.connection.now()
        with pytest.raises(RequestTimeoutError, match="get in bucket 'cfg'"):
            await handle_of(js)._stored({"seq": 1}, 0.5)
        assert js._context.connection.now() - begin == pytest.approx(0.5)


@virtual
async def test_stored_message():
    async with connected() as (js, connection):
        message = {
            "subject": "$KV.cfg.a",
            "seq": 7,
            "data": b64encode(b"one").decode(),
            "hdrs": b64encode(b"NATS/1.0\r\nA: 1\r\n\r\n").decode(),
            "time": "2026-01-02T03:04:05.678901234Z",
        }
        connection.api.on("STREAM.MSG", {"message": message})
        stored = await handle_of(js)._stored({"last_by_subj": "$KV.cfg.a"})
        assert (stored.subject, stored.seq, stored.data) == ("$KV.cfg.a", 7, b"one")
        assert dict(stored.headers) == {"A": "1"}
        assert requests(connection) == [("STREAM.MSG.GET.KV_cfg", {"last_by_subj": "$KV.cfg.a"})]


@virtual
async def test_no_stored_message():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", Refusal(10037, 404, "no message found"))
        assert await handle_of(js)._stored({"seq": 1}) is None


@pytest.mark.parametrize(("below", "limit"), [({}, {}), ({"below": 0}, {}), ({"below": 5}, {"seq": 5})])
@virtual
async def test_purge(below, limit):
    async with connected() as (js, connection):
        connection.api.on("STREAM.PURGE", {"success": True, "purged": 1})
        await handle_of(js)._purge("$KV.cfg.a", "purge", **below)
        assert requests(connection) == [("STREAM.PURGE.KV_cfg", {"filter": "$KV.cfg.a", **limit})]


@virtual
async def test_known_state_is_not_requested():
    async with connected() as (js, connection):
        assert await handle_of(js, KNOWN)._known() is KNOWN
        assert connection.sent == []


@virtual
async def test_state_is_requested_once():
    async with connected() as (js, connection):
        connection.api.last_seq = 12
        handle = handle_of(js)
        info = await handle._known()
        assert (info.config.name, info.state.last_seq) == ("KV_cfg", 12)
        assert await handle._known() is info
        assert requests(connection) == [("STREAM.INFO.KV_cfg", {})]


@virtual
async def test_renewed_state_is_the_known_one():
    async with connected() as (js, connection):
        handle = handle_of(js, KNOWN)
        connection.api.last_seq = 13
        info = await handle._renewed()
        assert info.state.last_seq == 13
        assert await handle._known() is info
        assert len(connection.sent) == 1

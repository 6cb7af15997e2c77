"""The messages of an object store on a fake connection: what is requested, and what is stored although it seems not."""

from __future__ import annotations

import asyncio
import random
import time
from base64 import b64encode

import msgspec
import pytest

from jsclient.buckets.objects.site import ObjectSite
from jsclient.errors import (
    BucketFullError,
    BucketNotFoundError,
    ConfigError,
    InvalidNameError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectInfoError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jsclient.protocol.buckets.object_info import ObjectInfo, encode_info
from jsclient.protocol.buckets.object_names import ObjectSpace
from jsclient.protocol.events import ErrorRaised
from jsclient.protocol.models.stream import StreamInfo
from jsclient.protocol.wire.codec import from_wire
from jsclient.protocol.wire.headers import parse_headers
from tests.publishing.kit import now, published
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.virtual import settle, virtual

SPACE = ObjectSpace("b", "$O.b.")
COPY = ObjectSpace("copy", "$O.b.", is_copy=True)
TIME, TIME_NS = "2026-01-02T03:04:05.000000006Z", 1_767_323_045_000_000_006
ABSENT = Refusal(10037, 404, "no message found")
CONFLICT = Refusal(10071, 400, "wrong last sequence")
NO_STREAM = Refusal(10059, 404, "stream not found")
TOKEN = b64encode(b"n").decode()
SUBJECT = f"$O.b.M.{TOKEN}"


def description(**changes) -> ObjectInfo:
    return ObjectInfo(**{"bucket": "b", "name": "n", "nuid": "u", "size": 5, "chunks": 1} | changes)


def message(data, seq=7):
    """The answer with a stored message."""
    data = encode_info(data) if isinstance(data, ObjectInfo) else data
    stored = {"subject": SUBJECT, "seq": seq, "time": TIME, "data": b64encode(data).decode()}
    return {"message": stored}


def read(info: ObjectInfo, revision=7) -> ObjectInfo:
    """The description as it is read."""
    return msgspec.structs.replace(info, revision=revision, modified_ns=TIME_NS)


def site_of(js, space=SPACE, info=None) -> ObjectSite:
    return ObjectSite(js._context, space, info)


def serve_publishes(connection, *answers) -> None:
    """The stream answers publishes with these, in turn: a sequence, a `Refusal`, or `SILENCE`."""
    remaining, of_api = list(answers), connection.api.answer

    def answer(request):
        if not request.subject.startswith("$O."):
            return of_api(request)
        reply = remaining.pop(0) if remaining else SILENCE
        if isinstance(reply, Refusal):
            return {"error": reply._asdict()}
        return {"stream": "OBJ_b", "seq": reply} if isinstance(reply, int) else reply

    connection.api.answer = answer


def requests(connection, verb):
    return [sent.json for sent in connection.to(f"$JS.API.{verb}")]


# --- reading ---------------------------------------------------------------------------------------------------


@virtual
async def test_names():
    async with connected() as (js, _):
        site = site_of(js)
        assert (site.bucket, site.stream, site.space, site.context) == ("b", "OBJ_b", SPACE, js._context)


@pytest.mark.parametrize("is_deleted", [False, True])
@virtual
async def test_current(is_deleted):
    async with connected() as (js, connection):
        info = description(is_deleted=is_deleted)
        connection.api.on("STREAM.MSG", message(info))
        assert await site_of(js).current("n") == read(info)
        assert requests(connection, "STREAM.MSG.GET.OBJ_b") == [{"last_by_subj": SUBJECT}]


@virtual
async def test_no_description():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", ABSENT, NO_STREAM)
        assert await site_of(js).current("n") is None
        with pytest.raises(BucketNotFoundError, match=r"create_object_store\(\)"):
            await site_of(js).current("n")


@virtual
async def test_bad_description():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", message(b"no JSON"), message(b"{}"))
        with pytest.raises(ObjectInfoError):
            await site_of(js).current("n")
        assert (await site_of(js).current("n")).name == "n"


@virtual
async def test_bad_name():
    async with connected() as (js, connection):
        with pytest.raises(InvalidNameError):
            await site_of(js).current("")
        assert connection.sent == []


@virtual
async def test_last_chunk():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", message(b"content"), ABSENT)
        newest = await site_of(js).last_chunk("u")
        assert newest is not None
        assert newest.data == b"content"
        assert await site_of(js).last_chunk("v") is None
        assert requests(connection, "STREAM.MSG.GET.OBJ_b") == [
            {"last_by_subj": "$O.b.C.u"},
            {"last_by_subj": "$O.b.C.v"},
        ]


@virtual
async def test_state_is_requested_each_time():
    async with connected() as (js, connection):
        site = site_of(js)
        for last_seq in (3, 4):
            connection.api.last_seq = last_seq
            assert (await site.state()).state.last_seq == last_seq


@virtual
async def test_update():
    async with connected() as (js, connection):
        connection.api.on("STREAM.UPDATE", {}, NO_STREAM)
        await site_of(js).update({"name": "OBJ_b", "sealed": True})
        assert requests(connection, "STREAM.UPDATE.OBJ_b") == [{"name": "OBJ_b", "sealed": True}]
        with pytest.raises(BucketNotFoundError):
            await site_of(js).update({})


# --- writing ---------------------------------------------------------------------------------------------------


@virtual
async def test_write():
    async with connected() as (js, connection):
        serve_publishes(connection, 8, 9)
        info, begin = description(), time.time_ns()
        stored = await site_of(js).write(info, 7)
        assert begin <= stored.modified_ns <= time.time_ns()
        assert msgspec.structs.replace(stored, modified_ns=0) == msgspec.structs.replace(info, revision=8)
        (sent,) = published(connection)
        assert (sent.subject, sent.payload) == (SUBJECT, encode_info(info))
        headers = dict(parse_headers(sent.header)[1])
        first_id = headers.pop("Nats-Msg-Id")
        assert headers == {"Nats-Expected-Last-Subject-Sequence": "7", "Nats-Rollup": "sub"}
        await site_of(js).write(info, 8)
        second_id = parse_headers(published(connection)[1].header)[1]["Nats-Msg-Id"]
        assert len(first_id) == len(second_id) == 22
        assert first_id != second_id, "otherwise the second would be a duplicate"


@virtual
async def test_mirror_is_not_written():
    async with connected() as (js, connection):
        site = site_of(js, COPY)
        for write in (site.write(description(), 0), site.check_unambiguous()):
            with pytest.raises(ConfigError, match="mirror"):
                await write
        assert connection.sent == []


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [(CONFLICT, WrongLastSequenceError), (Refusal(10077, 503, "maximum bytes exceeded"), BucketFullError)],
)
@virtual
async def test_refused(refusal, kind):
    async with connected() as (js, connection):
        serve_publishes(connection, refusal)
        with pytest.raises(kind):
            await site_of(js).write(description(), 7)
        assert connection.to("$JS.API.STREAM.MSG") == []


@virtual
async def test_answer_is_lost():
    """The description is looked up, and is stored."""
    async with connected() as (js, connection):
        serve_publishes(connection)
        connection.api.on("STREAM.MSG", message(description(), 8))
        assert await site_of(js).write(description(), 7) == read(description(), 8)
        assert len({sent.header for sent in published(connection)}) == 1


@pytest.mark.parametrize(
    "answer",
    [
        ABSENT,
        message(description(), 7),
        message(description(size=6), 8),
        message(b"no JSON", 8),
        NO_STREAM,
        SILENCE,
    ],
    ids=["absent", "before", "of another", "broken", "no bucket", "silence"],
)
@virtual
async def test_not_known_to_be_stored(answer):
    async with connected() as (js, connection):
        serve_publishes(connection)
        connection.api.on("STREAM.MSG", *[answer] * 9)
        with pytest.raises(RequestTimeoutError, match="publish"):
            await site_of(js).write(description(), 7)


@virtual
async def test_no_responders_for_a_while():
    """The bucket is known to exist, so its stream may have no leader."""
    async with connected() as (js, connection):
        unanswered = 6

        def serve(request):
            nonlocal unanswered
            unanswered -= 1
            if unanswered < 0:
                return {"stream": "OBJ_b", "seq": 8}
            frame = (request.reply.encode(), b"", b"NATS/1.0 503\r\n\r\n", b"")
            asyncio.get_running_loop().call_soon(connection.deliver, request.reply, [frame])
            return SILENCE

        connection.api.answer = serve
        assert (await site_of(js).write(description(), 0)).revision == 8


# --- changing --------------------------------------------------------------------------------------------------


@virtual
async def test_first_description():
    async with connected() as (js, connection):
        serve_publishes(connection, 1)
        connection.api.on("STREAM.MSG", ABSENT)
        seen = []
        before, after = await site_of(js).change("n", lambda current: seen.append(current) or description())
        assert seen == [None]
        assert (before, after.revision) == (None, 1)
        (sent,) = published(connection)
        assert parse_headers(sent.header)[1]["Nats-Expected-Last-Subject-Sequence"] == "0"


@virtual
async def test_change():
    async with connected() as (js, connection):
        serve_publishes(connection, 9)
        connection.api.on("STREAM.MSG", message(description(), 8))
        before, after = await site_of(js).change(
            "n", lambda current: msgspec.structs.replace(current, description="new")
        )
        assert before == read(description(), 8)
        assert (after.description, after.revision, after.nuid) == ("new", 9, "u")
        (sent,) = published(connection)
        assert parse_headers(sent.header)[1]["Nats-Expected-Last-Subject-Sequence"] == "8"


@virtual
async def test_nothing_to_change():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", message(description(), 8))
        before, after = await site_of(js).change("n", lambda _: None)
        assert before == after == read(description(), 8)
        assert published(connection) == []


@virtual
async def test_impossible_change():
    async with connected() as (js, connection):
        connection.api.on("STREAM.MSG", message(description(), 8))

        def refuse(current):
            raise ObjectExistsError("b", "n", current.revision)

        with pytest.raises(ObjectExistsError):
            await site_of(js).change("n", refuse)
        assert published(connection) == []


@virtual
async def test_other_client_was_faster():
    """The change is made of what the other client has stored."""
    async with connected() as (js, connection):
        serve_publishes(connection, CONFLICT, 12)
        first, second = description(), description(description="theirs", nuid="v")
        connection.api.on("STREAM.MSG", message(first, 8), message(second, 11))
        before, after = await site_of(js).change(
            "n", lambda current: msgspec.structs.replace(current, metadata={"mine": "1"})
        )
        assert before == read(second, 11)
        assert (after.nuid, after.description, after.metadata) == ("v", "theirs", {"mine": "1"})
        assert after.revision == 12


@pytest.mark.parametrize(
    ("answer", "revision"), [(ABSENT, 0), (message(description(), 8), 8)], ids=["new", "old"]
)
@virtual
async def test_others_are_always_faster(monkeypatch, answer, revision):
    """The pauses grow, and there are 100 attempts."""
    monkeypatch.setattr(random, "uniform", lambda least, most: least + most)
    async with connected() as (js, connection):
        serve_publishes(connection, *[CONFLICT] * 200)
        connection.api.on("STREAM.MSG", *[answer] * 200)
        begin = now()
        with pytest.raises(ObjectChangedError) as caught:
            await site_of(js).change("n", lambda _: description())
        assert (caught.value.name, caught.value.expected, caught.value.current) == ("n", revision, None)
        assert str(caught.value).endswith("other clients change it again and again")
        assert len(published(connection)) == 100
        assert now() - begin == pytest.approx(sum(0.002 * number for number in range(1, 100)))


# --- removing --------------------------------------------------------------------------------------------------


@virtual
async def test_remove_chunks():
    async with connected() as (js, connection):
        connection.api.on("STREAM.PURGE", {"success": True})
        await site_of(js).remove_chunks("u")
        assert requests(connection, "STREAM.PURGE.OBJ_b") == [{"filter": "$O.b.C.u"}]


@virtual
async def test_links_have_no_chunks():
    """Without a name all chunks of the bucket would be removed."""
    async with connected() as (js, connection):
        await site_of(js).remove_chunks("")
        await site_of(js).remove_replaced("")
        assert connection.sent == []


@virtual
async def test_remove_replaced():
    async with connected() as (js, connection):
        connection.api.on("STREAM.PURGE", {"success": True}, Refusal(10052, 400, "no"))
        await site_of(js).remove_replaced("u")
        await settle()
        assert connection.told(ErrorRaised) == []
        await site_of(js).remove_replaced("v")
        await settle()
        (event,) = connection.told(ErrorRaised)
        assert (event.stream, event.error.err_code) == ("OBJ_b", 10052)
        assert requests(connection, "STREAM.PURGE") == [{"filter": "$O.b.C.u"}, {"filter": "$O.b.C.v"}]


@virtual
async def test_remove_description():
    async with connected() as (js, connection):
        connection.api.on("STREAM.PURGE", {"success": True})
        await site_of(js).remove_info("n", 8)
        assert requests(connection, "STREAM.PURGE.OBJ_b") == [{"filter": SUBJECT, "seq": 8}]


# --- two buckets of one name -----------------------------------------------------------------------------------

CREATED = "2026-01-01T00:00:00Z"
THERE = from_wire(StreamInfo, {"config": {"name": "OBJ_b"}, "created": CREATED})


def in_a_domain(js) -> ObjectSite:
    return ObjectSite(js._context.reaching("$JS.hub.API"), SPACE, THERE)


@virtual
async def test_own_domain_is_unambiguous():
    async with connected() as (js, connection):
        await site_of(js).check_unambiguous()
        assert connection.sent == []


@pytest.mark.parametrize("answer", [NO_STREAM, None], ids=["none", "the same"])
@virtual
async def test_unambiguous(answer):
    """The own domain has no such bucket, or its API leads to the other domain. The bucket is requested once."""
    async with connected() as (js, connection):
        connection.api.stream_created = CREATED
        if answer is not None:
            connection.api.on("STREAM.INFO", answer)
        site = in_a_domain(js)
        await site.check_unambiguous()
        await site.check_unambiguous()
        assert [sent.subject for sent in connection.sent] == ["$JS.API.STREAM.INFO.OBJ_b"]


@virtual
async def test_ambiguous():
    async with connected() as (js, connection):
        connection.api.stream_created = "2026-01-01T00:00:01Z"
        site = in_a_domain(js)
        for _ in range(2):
            with pytest.raises(ConfigError, match="'b', too"):
                await site.check_unambiguous()


@virtual
async def test_own_domain_is_silent():
    """A domain without JetStream, and a denied request, are not reported as an event."""
    async with connected(timeout=60.0) as (js, connection):
        connection.api.on("STREAM.INFO", *[SILENCE] * 9)
        begin = now()
        await in_a_domain(js).check_unambiguous()
        assert now() - begin == pytest.approx(1.0)
        assert "$JS.API.STREAM.INFO.OBJ_b" in connection.optional

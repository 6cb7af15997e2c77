"""A page from a replica that lags, or from a mirror with fewer records: its leader is asked what follows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from jsclient.errors import MessageNotFoundError, PermissionDeniedError
from jsclient.protocol.models.message import StoredMessage
from jsclient.protocol.topics.position import CoveredEnd, Extent
from jsclient.protocol.topics.record_codec import stored_record
from jsclient.protocol.wire.headers import Headers
from jsclient.topics.log import Page
from jsclient.topics.stream_log import StreamLog
from tests.support.virtual import virtual


def message(seq: int) -> StoredMessage:
    return StoredMessage(
        subject="a", seq=seq, data=b"", headers=Headers(), time=datetime(2030, 1, 1, tzinfo=UTC), time_ns=seq
    )


def page(*seqs: int) -> Page:
    return Page([stored_record(message(seq), linked=False) for seq in seqs])


NOT_FOUND = MessageNotFoundError(404, 10037, "no message found")


def log_of(leader: StoredMessage | Exception, *, end: int = 9, replicas: int = 1) -> SimpleNamespace:
    """A log whose leader answers so to what follows sequence 2."""

    async def get_next_message(subject, seq):
        assert (subject, seq) == ("a", 3)
        if isinstance(leader, Exception):
            raise leader
        return leader

    async def extent():
        return Extent("S", "2030", 1, end, replicas=replicas)

    handle = SimpleNamespace(get_next_message=get_next_message)
    context = SimpleNamespace(connection=SimpleNamespace(now=asyncio.get_running_loop().time))
    return SimpleNamespace(
        subject="a",
        handle=handle,
        extent=extent,
        origin=None,
        context=context,
        _linked=False,
        _covered=CoveredEnd(),
    )


async def checked(unchecked: Page, leader: StoredMessage | Exception) -> Page:
    """The outcome of a page after sequence 2, if the leader answers so."""
    return await StreamLog._checked(log_of(leader), unchecked, 2)


@pytest.mark.parametrize("seqs", [(), (5,), (4, 5)])
@virtual
async def test_record_that_mirror_lacks_is_the_leaders(seqs):
    actual = await checked(page(*seqs), message(3))
    assert [record.seq for record in actual.records] == [3]
    assert actual.more, "and is asked again for what follows it"


@pytest.mark.parametrize("seqs", [(3,), (3, 4), (4, 5)])
@virtual
async def test_page_that_begins_where_leader_does_is_whole(seqs):
    unchecked = page(*seqs)
    assert await checked(unchecked, message(seqs[0])) is unchecked


@virtual
async def test_nothing_at_the_leader_either():
    actual = await checked(page(), NOT_FOUND)
    assert (actual.records, actual.more, actual.up_to) == ([], False, 9)


@virtual
async def test_former_leader_lacks_records():
    """It answers "not found", although its successor has reported an end: that end is not passed for 3 s."""
    log = log_of(NOT_FOUND, replicas=3)
    assert (await StreamLog._checked(log, page(), 2)).up_to == 0
    await asyncio.sleep(2.9)
    assert (await StreamLog._checked(log, page(), 2)).up_to == 0
    await asyncio.sleep(0.2)
    assert (await StreamLog._checked(log, page(), 2)).up_to == 9


@virtual
async def test_page_passes_if_leader_is_denied():
    unchecked = page(5)
    assert await checked(unchecked, PermissionDeniedError("publish", "$JS.API.STREAM.MSG.GET.S")) is unchecked

"""A page from a replica that lags, or from a mirror with fewer records: its leader is asked what follows."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from jsclient.errors import MessageNotFoundError, PermissionDeniedError
from jsclient.protocol.models.message import StoredMessage
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


async def checked(given: Page, leader: StoredMessage | Exception, *, end: int = 9) -> Page:
    """What becomes of a page after sequence 2, if the leader answers so."""

    async def get_next_message(subject, seq):
        assert (subject, seq) == ("a", 3)
        if isinstance(leader, Exception):
            raise leader
        return leader

    async def extent():
        return SimpleNamespace(last_seq=end)

    handle = SimpleNamespace(get_next_message=get_next_message)
    log = SimpleNamespace(subject="a", handle=handle, extent=extent, origin=None, _linked=False)
    return await StreamLog._checked(log, given, 2)


@pytest.mark.parametrize("seqs", [(), (5,), (4, 5)])
@virtual
async def test_record_that_mirror_lacks_is_the_leaders(seqs):
    found = await checked(page(*seqs), message(3))
    assert [record.seq for record in found.records] == [3]
    assert found.more, "and is asked again for what follows it"


@pytest.mark.parametrize("seqs", [(3,), (3, 4), (4, 5)])
@virtual
async def test_page_that_begins_where_leader_does_is_whole(seqs):
    given = page(*seqs)
    assert await checked(given, message(seqs[0])) is given


@virtual
async def test_nothing_at_the_leader_either():
    found = await checked(page(), MessageNotFoundError(404, 10037, "no message found"))
    assert (found.records, found.more, found.up_to) == ([], False, 9)


@virtual
async def test_leader_that_may_not_be_asked():
    given = page(5)
    assert await checked(given, PermissionDeniedError("publish", "$JS.API.STREAM.MSG.GET.S")) is given

"""Publishing columns on a fake connection: failures with their rows."""

from __future__ import annotations

import json

from jsclient.publishing.bulk import BulkPublisher
from tests.publishing.test_publisher import add_outbox, published
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual

REFUSAL = json.dumps({"error": {"code": 400, "err_code": 10071, "description": "no"}}).encode()


def refuse_latest(connection: FakeConnection) -> None:
    reply = published(connection)[-1].reply
    connection.deliver(reply, [(reply.encode(), b"", b"", REFUSAL)])


@virtual
async def test_failures_arrive_after_list_replaced():
    async with connected() as (js, connection):
        add_outbox(connection)
        bulk = BulkPublisher(js._context, max_in_flight=10, max_bytes=1000, timeout=5.0, repeatable=False)
        for row in (7, 8):
            await bulk.send([row], [b"s.a"], [b""], [b"x"])
            await settle()
            refuse_latest(connection)
            assert [(failed.row, failed.error.err_code) for failed in bulk.failures] == [(row, 10071)]
            bulk.failures = []
        await bulk.close()

"""Notifiers and subscriptions on a server pass the same suites as in one process.

The kits are created in three ways: each in a separate stream, here. The consumers on another connection, of a
descriptor that has passed as JSON, and in a user's stream that neither republishes nor allows direct gets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.clients.kits import Kits
from tests.topics.notifiers.test_iteration import BothSuite, NotifierSuite, SubscriptionSuite


@pytest.fixture(params=["own stream", "elsewhere", "user's stream"])
async def kits(request: Any, server: Any, oracle: Any, connect: Any, make_stream: Any) -> AsyncIterator[Kits]:
    here = await connect(server)
    there = await connect(server) if request.param == "elsewhere" else None
    stream = await make_stream(allow_direct=False) if request.param == "user's stream" else None
    kits = Kits(here, there, stream)
    yield kits
    await kits.clear()


@pytest.mark.core_cases(6)
class TestNotifier(NotifierSuite):
    pass


@pytest.mark.core_cases(6)
class TestSubscription(SubscriptionSuite):
    pass


@pytest.mark.core_cases(5)
class TestBoth(BothSuite):
    pass

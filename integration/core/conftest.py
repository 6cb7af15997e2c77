"""Fixtures of the tests of plain messages.

core        `js.core`, on a connection that jsclient opened, and again on one that nats-py opened
subject     a subject of this test alone
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest


@pytest.fixture(params=["jsclient", "nats-py"])
def core(request: pytest.FixtureRequest) -> Any:
    name = "js" if request.param == "jsclient" else "natspy_js"
    return request.getfixturevalue(name).core


@pytest.fixture
def subject() -> str:
    return f"core-{secrets.token_hex(6)}"

"""Exports and imports of accounts, as a server's configuration has them."""

from __future__ import annotations

import pytest

from jsclient.errors import InvalidNameError
from jsclient.protocol.wire.accounts import account_rights, imported_prefix


def test_services_and_streams_of_another_account():
    rights = account_rights(
        ["$JS.API.DIRECT.GET.S", "orders.new"],
        ["push.>"],
        owner="APP",
        guests="GUESTS",
        many=["$JS.API.DIRECT.GET.S"],
    )
    assert rights == {
        "APP": {
            "exports": [
                {"service": "$JS.API.DIRECT.GET.S", "response": "stream", "accounts": ["GUESTS"]},
                {"service": "orders.new", "accounts": ["GUESTS"]},
                {"stream": "push.>", "accounts": ["GUESTS"]},
            ]
        },
        "GUESTS": {
            "imports": [
                {
                    "service": {"account": "APP", "subject": "$JS.API.DIRECT.GET.S"},
                    "to": "JS.APP.API.DIRECT.GET.S",
                },
                {"service": {"account": "APP", "subject": "orders.new"}},
                {"stream": {"account": "APP", "subject": "push.>"}},
            ]
        },
    }


def test_other_api_prefix():
    (one,) = account_rights(["$JS.hub.API.INFO"], owner="A", guests="B", api_prefix="$JS.hub.API")["B"][
        "imports"
    ]
    assert one["to"] == "JS.A.API.INFO"


@pytest.mark.parametrize("name", ["", "a b", "a.*", ">"])
def test_account_names_are_checked(name: str):
    with pytest.raises(InvalidNameError):
        imported_prefix(name)
    with pytest.raises(InvalidNameError):
        account_rights([], owner="A", guests=name)

"""The usage and limits of an account, and the advice of a full one."""

from __future__ import annotations

import pytest

from jsclient.protocol.models import (
    AccountInfo,
    account,
)
from jsclient.protocol.wire.codec import decode, from_wire
from tests.protocol.models.kit import ACCOUNT_INFO


def test_the_account():
    info = from_wire(AccountInfo, decode(ACCOUNT_INFO))
    assert (info.storage, info.streams, info.api.level, info.domain) == (10, 1, 5, "hub")
    assert info.limits.max_streams == -1
    assert info.tiers["R1"].limits.max_memory == 100


@pytest.mark.parametrize(
    ("limits", "used", "reserved", "words"),
    [
        ({"max_storage": 100}, 90, 20, "limit of the account is 100 bytes in files, of which 90 are taken"),
        (
            {"max_storage": 100},
            100,
            0,
            "of which 100 are taken: purge messages, or raise max_file of the account",
        ),
        ({"max_storage": 100}, 90, 10, "the server has not enough bytes left in files"),
        ({"max_storage": -1}, 90, 10, "raise max_file_store of its configuration"),
        ({}, 90, 10, "and the stream would reserve 10: lower max_bytes of the stream, purge"),
    ],
)
def test_whose_storage_is_full(limits, used, reserved, words):
    tier = {"storage": used, "limits": account.AccountLimits(**limits)}
    for info in (
        account.AccountInfo(**tier),
        account.AccountInfo(tiers={"R1": account.AccountTier(), "R3": account.AccountTier(**tier)}),
    ):
        assert words in account.storage_advice(info, reserved=reserved, in_memory=False)
    text = account.storage_advice(account.AccountInfo(**tier), reserved=reserved, in_memory=True)
    assert "max_memory_store" in text  # the limit of files is not the limit of memory

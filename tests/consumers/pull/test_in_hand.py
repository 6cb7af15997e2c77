"""The messages that the program has, and what of them awaits an ack."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jsclient.consumers.pull.in_hand import Handed, InHand, in_hand
from jsclient.errors import ClosedError
from jsclient.testing import make_message
from tests.support.virtual import virtual


def messages(count):
    return Handed([make_message("a", b"", stream_seq=number + 1) for number in range(count)])


@virtual
async def test_what_the_program_has_is_counted():
    hand = InHand()
    batch = messages(3)
    hand.add_batch(batch)
    assert hand.unacked == 3
    await batch[1].ack()
    assert hand.unacked == 2
    loop = iter(batch)
    del batch
    assert hand.unacked == 2
    del loop
    assert hand.unacked == 0
    assert hand.lists == set()


@virtual
async def test_messages_outlive_their_list():
    """A copy of the list, or a task for each message."""
    hand = InHand()
    batch = messages(4)
    hand.add_batch(batch)
    first, copied = batch[0], batch[1:3]
    await batch[2].ack()
    del batch
    assert hand.unacked == 2
    await first.ack()
    assert hand.unacked == 1
    del copied
    assert hand.unacked == 0


@virtual
async def test_a_single_message_counts_without_its_list():
    hand = InHand()
    batch = messages(1)
    message = batch[0]
    hand.add_batch(batch)
    assert hand.unacked == 1
    del batch
    assert hand.unacked == 1
    await message.in_progress()
    assert hand.unacked == 1
    await message.ack()
    assert hand.unacked == 0
    dropped = messages(1)
    hand.add_batch(dropped)
    del dropped
    assert hand.unacked == 0


def test_no_pull_after_the_end():
    hand = in_hand(context := SimpleNamespace(shared={}))
    assert in_hand(context) is hand
    hand.check_may_pull()
    hand.end_pulls()
    with pytest.raises(ClosedError, match="being drained"):
        hand.check_may_pull()

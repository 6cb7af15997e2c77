"""What is said about the end of a consumer and of a worker."""

from __future__ import annotations

import pytest

from jsclient.errors import ClosedError
from jsclient.protocol.ending_events import AcksUnsent, ConsumerNotKept, DeleteFailed, DurableDeleted


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"pending": 0, "chosen": True}, "info"),
        ({"pending": 0}, "warning"),
        ({"pending": 1, "chosen": True}, "warning"),
        ({"pending": 0, "unacked": 1, "chosen": True}, "warning"),
        ({"pending": 0, "num_waiting": 1, "chosen": True}, "warning"),
        ({"pending": 0, "push_bound": True, "chosen": True}, "warning"),
        ({"chosen": True}, "warning"),
    ],
)
def test_chosen_loss_free_deletion_is_no_warning(fields, severity):
    assert DurableDeleted(**fields).severity == severity


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "its state could not be read"),
        ({"pending": 1, "unacked": 2}, "with 1 message undelivered and 2 unacked"),
        ({"pending": 3, "unacked": 0}, "with 3 messages undelivered"),
        ({"pending": 0, "push_bound": True}, "other members of its queue group are still subscribed"),
        ({"pending": 0, "num_waiting": 2}, "2 pull requests of other readers waited"),
        ({"pending": 0, "chosen": True}, "because delete_on_close=True was given"),
        ({"pending": 0}, "because this subscription had created it: give delete_on_close=False to keep it"),
    ],
)
def test_deletion_says_what_was_lost(fields, words):
    assert words in str(DurableDeleted(**fields))


def test_unsuccessful_deletion_says_why():
    assert str(DeleteFailed(error=ClosedError("over"))) == "the consumer could not be deleted: over"
    assert "give delete_on_close=False" in str(ConsumerNotKept())


@pytest.mark.parametrize(
    ("count", "returned", "them"), [(1, 0, "it"), (0, 1, "it"), (1, 1, "them"), (2, 0, "them")]
)
def test_worker_counts_unsent_acks(count, returned, them):
    event = AcksUnsent(count=count, returned=returned)
    assert event.about == "worker"
    assert f"the server delivers {them} again" in str(event)
    assert ("could not be returned" in str(event)) is (returned > 0)
    assert ("could not be sent" in str(event)) is (count > 0)


@pytest.mark.parametrize(
    ("count", "returned", "says"),
    [
        (1, 0, "1 message was handled, but its ack could not be sent; the server delivers it again"),
        (
            8,
            1,
            "8 messages were handled, but their acks could not be sent, and 1 message could not be returned; the "
            "server delivers them again",
        ),
        (0, 7, "away: 7 messages could not be returned; the server delivers them again"),
    ],
)
def test_unsent_acks_are_counted_in_words(count, returned, says):
    assert says in str(AcksUnsent(count=count, returned=returned))

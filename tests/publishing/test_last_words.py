"""The warning of a program that ends without closing a publisher."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from jsclient.errors import ClosedError, FailedPublishInfo
from jsclient.publishing import last_words


class Failures:
    """The failures that were never retrieved."""

    def __init__(self, *subjects: str) -> None:
        self.subjects = subjects

    def __len__(self) -> int:
        return len(self.subjects)

    @property
    def first(self) -> FailedPublishInfo | None:
        return SimpleNamespace(subject=self.subjects[0], error=ClosedError("over")) if self.subjects else None


def waits(*subjects: str) -> list:
    return [SimpleNamespace(to=subject) for subject in subjects]


@pytest.mark.parametrize(
    ("waiting", "failed", "words"),
    [
        (["a"], [], "1 message waits for its ack, the first on 'a'"),
        (["a", "b"], [], "2 messages wait for their acks, the first on 'a'"),
        ([], ["c"], "1 publish failed, the first on 'c': over"),
        (
            ["a"],
            ["c", "d"],
            "1 message waits for its ack, the first on 'a'; 2 publishes failed, the first on 'c'",
        ),
    ],
)
def test_messages_of_unknown_outcome_are_counted(waiting, failed, words):
    text = last_words.describe(waits(*waiting), Failures(*failed))
    assert text.startswith("a publisher was not closed: ")
    assert words in text
    assert "await publisher.flush()" in text


def test_nothing_to_say_of_a_closed_publisher(caplog):
    assert last_words.describe([], Failures()) == ""
    last_words.say("")
    assert caplog.records == []


def test_at_the_end_each_publisher_says_it_once(caplog, monkeypatch):
    class FailingPublisher:
        def describe_rest(self) -> str:
            return "left"

    publisher = FailingPublisher()
    monkeypatch.setattr(last_words, "publishers", [publisher])
    monkeypatch.setattr(last_words, "_processes", {os.getpid()})
    last_words._warn_at_exit()
    last_words._warn_at_exit()
    assert [record.getMessage() for record in caplog.records] == ["left"]
    assert caplog.records[0].name == "jsclient.publisher"


def test_fork_is_silent(caplog, monkeypatch):
    monkeypatch.setattr(last_words, "_processes", {os.getpid() + 1})
    last_words.say("left")
    assert caplog.records == []

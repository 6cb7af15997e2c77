"""The newest descriptions are read, and those after a revision. One that is not valid is reported."""

from __future__ import annotations

from typing import Any

import pytest

from integration.buckets.kit import info_subject
from integration.kit.judge.reading import of
from jsclient import ObjectInfoError, RecordSkipped
from jsclient.buckets.objects.descriptions import ObjectDescriptions


@pytest.mark.covers("O35")
async def test_newest_descriptions(store: Any, events: list[Any]) -> None:
    first = await store.put("a", b"1")
    await store.put("b", b"1")
    await store.delete("b")
    reader = ObjectDescriptions(store._site)
    assert [(info.name, info.is_deleted) for info in await reader.newest()] == [("a", False), ("b", True)]
    later = await store.put("c", b"1")
    assert [info.name for info in await reader.newest(first.revision)] == ["b", "c"]
    assert await reader.newest(later.revision) == []
    assert events == []


@pytest.mark.covers("O35")
async def test_invalid_description(store: Any, oracle: Any, events: list[Any]) -> None:
    await store.put("a", b"1")
    await oracle.publish(info_subject(store.bucket, "odd"), b"text")
    assert [info.name for info in await ObjectDescriptions(store._site).newest()] == ["a"]
    assert [event.error.name for event in of(RecordSkipped, events)] == ["odd"]
    errors: list[ObjectInfoError] = []
    await ObjectDescriptions(store._site, errors.append).newest()
    assert [error.name for error in errors] == ["odd"]
    assert len(of(RecordSkipped, events)) == 1

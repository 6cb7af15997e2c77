"""The report of a bucket's check."""

from __future__ import annotations

from datetime import UTC, datetime

from jsclient.errors import ObjectIncompleteError
from jsclient.protocol.buckets.object_report import (
    BrokenObject,
    ObjectStoreReport,
    OrphanChunks,
    RemovedGarbage,
)


def test_orphans_are_no_harm():
    orphan = OrphanChunks(nuid="x", chunks=2, modified_ns=1_767_323_045_000_001_999)
    assert orphan.modified == datetime(2026, 1, 2, 3, 4, 5, 1, UTC)
    assert ObjectStoreReport(objects=1, orphans=(orphan,)).is_sound
    assert RemovedGarbage(orphans=(orphan,)) != RemovedGarbage()


def test_broken_objects_and_links():
    broken = BrokenObject(name="a", error=ObjectIncompleteError("b", "a", 5, 4))
    assert broken.info is None
    assert not ObjectStoreReport(objects=1, broken=(broken,)).is_sound
    assert not ObjectStoreReport(objects=1, broken_links=(broken,)).is_sound

"""Reads the descriptions of the objects in a bucket, and their changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...errors import ObjectInfoError
from ...protocol.buckets.object_info import ObjectInfo, read_info
from ...protocol.events import RecordSkipped
from ...protocol.models.consumer import DeliverPolicy
from ...protocol.wire.frames import Frame
from ..reading import BucketReader, each_by, reader_config
from .site import ObjectSite

__all__ = ["ObjectDescriptions"]


class ObjectDescriptions:
    """Creates readers of the descriptions in a bucket. An invalid description is skipped."""

    def __init__(self, site: ObjectSite, on_invalid: Callable[[ObjectInfoError], None] | None = None) -> None:
        """Prepare to read.

        ``on_invalid`` is called with the error of each invalid description. If it is None, an event is emitted instead.
        """
        self._site, self._on_invalid = site, on_invalid
        self._skipped = 0

    def reader(
        self, names: Iterable[str], policy: DeliverPolicy, after: int | None
    ) -> BucketReader[ObjectInfo]:
        """Return a reader for the descriptions of these names, or for all descriptions if ``names`` is empty.

        See `reader_config` for the other arguments.
        """
        site = self._site
        subjects = [site.space.info_subject(name) for name in dict.fromkeys(names)] or [site.space.infos]
        config = reader_config(subjects, policy=policy, after=after)
        return BucketReader(site.context, site.stream, config, each_by(self._decoded), "create_object_store")

    async def newest(self, after: int | None = None) -> list[ObjectInfo]:
        """Return the newest description of each object, including deleted ones.

        If ``after`` is given, return all descriptions after that revision instead.
        """
        return [info async for info in self.reader((), DeliverPolicy.LAST_PER_SUBJECT, after).initial()]

    def _decoded(
        self, frame: Frame, revision: int, time_ns: int, pending: int, *, is_initial: bool
    ) -> ObjectInfo | None:
        site, subject = self._site, frame[0].decode("utf-8", "surrogateescape")
        try:
            return read_info(
                frame[3],
                bucket=site.bucket,
                name=site.space.name_of(subject),
                revision=revision,
                time_ns=time_ns,
            )
        except ObjectInfoError as error:
            if self._on_invalid is not None:
                self._on_invalid(error)
                return None
            self._skipped += 1
            site.context.emit(
                RecordSkipped(
                    stream=site.stream,
                    subject=subject,
                    stream_seq=revision,
                    count=self._skipped,
                    error=error,
                )
            )
            return None

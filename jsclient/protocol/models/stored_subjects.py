"""The subjects under which a stream stores messages, after the subject transforms of its sources and its own.

Source: ADR-36; nats-server server/stream.go (processInboundSourceMsg, processJetStreamMsg), subject_transform.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..wire.names import subject_matches, subjects_overlap
from .stream_config import StreamConfig, StreamSource

__all__ = ["stored_subjects"]

_FUNCTION = re.compile(r"\{\{\s*([A-Za-z]*)[^}]*\}\}|\$[0-9]+")
_SEVERAL_TOKENS = ("split", "slice")  # functions that replace one token by several tokens


def stored_subjects(config: StreamConfig) -> tuple[str, ...] | None:
    """Return patterns that match the subjects of all new messages of the stream, or None if its origins decide them.

    A message that was stored before the configuration was changed may have another subject.
    """
    origins = [*(config.sources or ()), *([config.mirror] if config.mirror else ())]
    subjects: list[str] = (
        [] if config.mirror else list(config.subjects or ([] if origins else [config.name or ">"]))
    )
    for origin in origins:
        copied = _copied(origin)
        if copied is None:
            return None
        subjects += copied
    transform = config.subject_transform
    if transform is not None:
        src, dest = transform.src or ">", transform.dest
        subjects = [stored for subject in subjects for stored in _transformed(subject, src, dest)]
    return tuple(dict.fromkeys(subjects))


def _copied(origin: StreamSource) -> Iterable[str] | None:
    """Return the subjects of the copied messages, or None if they depend on the origin's configuration."""
    transforms = origin.subject_transforms
    if transforms:  # a message that no transform matches is not copied
        return [
            _pattern(transform.dest) if transform.dest else transform.src or ">" for transform in transforms
        ]
    return [origin.filter_subject] if origin.filter_subject else None


def _transformed(subject: str, src: str, dest: str | None) -> list[str]:
    if not dest or not subjects_overlap(subject, src):
        return [subject]
    # A pattern wider than ``src`` also matches messages that aren't transformed, so keep the pattern too.
    return [_pattern(dest)] if subject_matches(src, subject) else [_pattern(dest), subject]


def _pattern(dest: str) -> str:
    """Return the pattern of the subjects that a transform creates."""
    several = next(
        (
            match.start()
            for match in _FUNCTION.finditer(dest)
            if (match[1] or "").lower().startswith(_SEVERAL_TOKENS)
        ),
        None,
    )
    if several is not None:
        prefix = _FUNCTION.sub("*", dest[:several]).rpartition(".")[0]
        return f"{prefix}.>" if prefix else ">"
    return ".".join("*" if "*" in token else token for token in _FUNCTION.sub("*", dest).split("."))

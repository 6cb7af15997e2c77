"""The subject to which a stream republishes its messages. Source: ADR-28; nats-server server/subject_transform.go."""

from __future__ import annotations

from ..models.stream_config import RePublish
from ..wire.names import subject_matches

__all__ = ["republished_subject"]


def republished_subject(republish: RePublish | None, subject: str) -> str | None:
    """The subject to which records of ``subject``, which may have wildcards, are republished with their payloads.

    None: they are not republished, or not all of them, or the destination could receive other records, too. Supported
    are a destination that keeps the rest of the subject (``a.>`` to ``b.a.>``), and one literal subject for another.
    """
    if republish is None or not republish.dest or republish.headers_only:
        return None
    source, dest = republish.src or ">", republish.dest
    if not subject_matches(source, subject):
        return None
    if source == subject and not _has_wildcard(source) and not _has_wildcard(dest):
        return dest
    before, after = _before_rest(source), _before_rest(dest)
    if before is None or after is None:
        return None
    return after + subject[len(before) :]


def _has_wildcard(subject: str) -> bool:
    return any(token in ("*", ">") or "{" in token or token.startswith("$") for token in subject.split("."))


def _before_rest(subject: str) -> str | None:
    """The part before a final ``>``, if that is the only wildcard."""
    if not subject.endswith(">") or _has_wildcard(subject[:-1].rstrip(".") or "x"):
        return None
    return subject[:-1]

"""Validation of names of streams, consumers and queue groups, and of subjects.

Every name is checked before it reaches the wire: the server would read a space or a line break inside a subject as
another command, and closes the connection on a control line that is too long. An invalid name raises
``InvalidNameError``, which says what is wrong and what is allowed.

Subjects may hold any character that is not a space or a control character, as UTF-8; ASCII is what all
clients agree on. ``*`` and ``>`` are wildcards only as whole tokens: to the server ``foo*bar`` and ``foo>``
are plain tokens, so they are accepted as such, in published subjects and in filters.

Source: ADR-6; nats-server server/sublist.go (isValidSubject), server/jetstream.go (isValidAssetName),
server/const.go (MAX_CONTROL_LINE_SIZE).
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import InvalidNameError

__all__ = [
    "MAX_CONTROL_LINE_BYTES",
    "MAX_NAME_BYTES",
    "MAX_SUBJECT_BYTES",
    "check_consumer_name",
    "check_filter_subject",
    "check_publish_subject",
    "check_queue",
    "check_stream_name",
    "check_token",
    "has_wildcard",
    "subject_matches",
    "subjects_overlap",
]

MAX_NAME_BYTES: Final = 255
"""Longest name of a stream, consumer or queue group, bytes of UTF-8."""

MAX_CONTROL_LINE_BYTES: Final = 4096
"""Longest control line that a server accepts by default, bytes; a longer one ends the connection."""

MAX_SUBJECT_BYTES: Final = MAX_CONTROL_LINE_BYTES - 512
"""Longest subject, bytes of UTF-8; the rest of a control line is for verb, reply or queue, numbers."""

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f]")  # space, C0 controls, DEL, C1 controls
_NOT_IN_NAME = re.compile(r"[^\x21-\x7e]|[.*>/\\]")


def check_stream_name(name: str) -> str:
    """Return ``name`` if it is a valid stream name.

    Printable ASCII without space and without ``. * > / \\``, at most 255 bytes.

    Raises:
        InvalidNameError: It is not valid, or not a str.
    """
    return _check_asset_name(name, "stream")


def check_consumer_name(name: str, kind: str = "consumer") -> str:
    """Return ``name`` if it is a valid consumer name; the rule is that of streams.

    Args:
        name: The name.
        kind: What the error calls it: "consumer", "durable", "queue" (a queue name that becomes a durable
            name).

    Raises:
        InvalidNameError: It is not valid, or not a str.
    """
    return _check_asset_name(name, kind)


def check_queue(name: str) -> str:
    """Return ``name`` if it is a valid queue group of a NATS subscription.

    Any str without space or control character, at most 255 bytes; dots and wildcards have no meaning in it.

    Raises:
        InvalidNameError: It is not valid, or not a str.
    """
    _check_text(name, "queue", MAX_NAME_BYTES)
    return name


def check_token(name: str, kind: str) -> str:
    """Return ``name`` if it is a valid token of a subject, for example a JetStream domain.

    Args:
        name: The token, at most 255 bytes, without dot, wildcard, space or control character.
        kind: What the error calls it.

    Raises:
        InvalidNameError: It is not valid, or not a str.
    """
    _check_text(name, kind, MAX_NAME_BYTES)
    if bad := re.search(r"[.*>]", name):
        raise InvalidNameError(
            kind, name, f"it contains {bad[0]!r}; it must be one token without '.', '*' and '>'"
        )
    return name


def check_publish_subject(subject: str) -> str:
    """Return ``subject`` if it is a valid subject to publish to.

    Tokens are separated by dots, none is empty, none is ``*`` or ``>``; no space, no control character; at
    most ``MAX_SUBJECT_BYTES`` bytes of UTF-8.

    Raises:
        InvalidNameError: It is not valid, or not a str.
    """
    for wildcard in ("*", ">"):
        if wildcard in _tokens(subject):
            reason = f"it contains the wildcard {wildcard!r}; a subject without wildcards is needed here"
            raise InvalidNameError("subject", subject, reason)
    return subject


def check_filter_subject(subject: str) -> str:
    """Return ``subject`` if it is a valid subject to subscribe to or filter by.

    As ``check_publish_subject``, but a token may be ``*``, and the last one ``>``.

    Raises:
        InvalidNameError: It is not valid, or not a str.
    """
    if ">" in _tokens(subject)[:-1]:
        raise InvalidNameError("subject", subject, "the wildcard '>' is allowed as the last token only")
    return subject


def has_wildcard(subject: str) -> bool:
    """Whether it stands for several subjects: a token is ``*`` or ``>``."""
    return any(token in ("*", ">") for token in subject.split("."))


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether ``pattern`` matches ``subject``: ``*`` stands for one token, ``>`` for one or more at the end.

    If ``subject`` has wildcards itself, ``pattern`` must match every subject that it stands for.
    """
    wanted, given = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if position == len(given):
            return False
        if part == ">":
            return True
        if given[position] == ">" or part not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


def subjects_overlap(a: str, b: str) -> bool:
    """Whether some literal subject is matched by both ``a`` and ``b``."""
    left, right = a.split("."), b.split(".")
    for one, other in zip(left, right, strict=False):
        if ">" in (one, other):
            return True
        if one != other and "*" not in (one, other):
            return False
    return len(left) == len(right)


def _check_asset_name(name: str, kind: str) -> str:
    _check_text(name, kind, MAX_NAME_BYTES)
    if bad := _NOT_IN_NAME.search(name):
        allowed = "allowed is printable ASCII without space and without . * > / \\"
        raise InvalidNameError(kind, name, f"it contains {bad[0]!r}; {allowed}")
    return name


def _tokens(subject: str) -> list[str]:
    """The tokens of a well-formed subject; wildcards are not checked."""
    _check_text(subject, "subject", MAX_SUBJECT_BYTES)
    tokens = subject.split(".")
    if "" in tokens:
        raise InvalidNameError("subject", subject, "it has an empty token: a dot at an end, or two in a row")
    return tokens


def _check_text(value: object, kind: str, limit: int) -> None:
    """Refuse a value that is not a str, empty, not encodable, too long, or could be misread on the wire."""
    if not isinstance(value, str):
        raise InvalidNameError(kind, value, f"a str is needed, not {type(value).__name__}")
    if not value:
        raise InvalidNameError(kind, value, "it is empty")
    if bad := _FORBIDDEN.search(value):
        raise InvalidNameError(
            kind, value, f"it contains {bad[0]!r}; spaces and control characters are not allowed"
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(
            kind, value, "it cannot be encoded as UTF-8: it contains a lone surrogate"
        ) from None
    if size > limit:
        raise InvalidNameError(kind, value, f"it is {size} bytes long; at most {limit} are allowed")

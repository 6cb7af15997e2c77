"""Validation of names of streams, consumers and queue groups, and of subjects.

Every name is checked before it reaches the wire. The server would read a space or a line break inside a subject as
another command, and it closes the connection on a control line that is too long. An invalid name raises
``InvalidNameError``, which says what is wrong and what is allowed.

Subjects may contain any character that is not a space or a control character, as UTF-8. All clients agree on ASCII.
``*`` and ``>`` are wildcards only as whole tokens. To the server ``foo*bar`` and ``foo>`` are plain tokens, so they
are accepted as such in published subjects and in filters.

Source: ADR-6; nats-server server/sublist.go (isValidSubject), server/jetstream.go (isValidAssetName), server/const.go
(MAX_CONTROL_LINE_SIZE).
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
    "check_filter_subjects",
    "check_new_stream_name",
    "check_publish_subject",
    "check_queue",
    "check_stream_name",
    "check_token",
    "has_wildcard",
    "subject_matches",
    "subjects_overlap",
]

MAX_NAME_BYTES: Final = 255
"""The maximum length of the name of a stream, consumer or queue group, in bytes of UTF-8."""

MAX_CONTROL_LINE_BYTES: Final = 4096
"""The maximum length of a control line in bytes, by a server's default. A longer line ends the connection."""

MAX_SUBJECT_BYTES: Final = MAX_CONTROL_LINE_BYTES - 512
"""The maximum length of a subject in bytes of UTF-8.

The remainder of a control line is for verb, reply or queue, and numbers.
"""

_WILDCARDS = frozenset("*>")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f]")  # space, C0 controls, DEL, C1 controls
_ORDINARY = re.compile(r"[ -=?-~]+")  # subjects of printable ASCII without ">", divided by spaces
_NOT_IN_NAME = re.compile(r"[.*>/\\]")
_NOT_IN_NEW_NAME = re.compile(r"[^\x21-\x7e]|[.*>/\\]")


def check_stream_name(name: str) -> str:
    """Return ``name`` if a stream can have it.

    A name has at most 255 bytes and contains no space, no control character, and none of ``. * > / \\``. Servers accept
    characters that are not ASCII, so another client may have created such a stream, although ADR-6 does not allow it.
    For a stream to be created see `check_new_stream_name`.

    Raises:
        InvalidNameError: The name is not valid, or not a str.
    """
    _check_text(name, "stream", MAX_NAME_BYTES)
    if bad := _NOT_IN_NAME.search(name):
        raise InvalidNameError(
            "stream", name, f"it contains {bad[0]!r}; the name of a stream has none of . * > / \\"
        )
    return name


def check_new_stream_name(name: str) -> str:
    """Return ``name`` if it is a valid name for a new stream, by ADR-6.

    A name is printable ASCII without space and without ``. * > / \\``, at most 255 bytes.

    Raises:
        InvalidNameError: The name is not valid, or not a str.
    """
    return _check_asset_name(name, "stream")


def check_consumer_name(name: str, kind: str = "consumer") -> str:
    """Return ``name`` if it is a valid consumer name. The rule is the same as for new streams.

    Args:
        name: The name.
        kind: The word for the name in error texts: "consumer", "durable", or "queue" for a queue name that becomes a
            durable name.

    Raises:
        InvalidNameError: The name is not valid, or not a str.
    """
    return _check_asset_name(name, kind)


def check_queue(name: str) -> str:
    """Return ``name`` if it is a valid queue group of a NATS subscription.

    A queue group is any str without space or control character, at most 255 bytes. Dots and wildcards have no meaning
    in it.

    Raises:
        InvalidNameError: The name is not valid, or not a str.
    """
    _check_text(name, "queue", MAX_NAME_BYTES)
    return name


def check_token(name: str, kind: str) -> str:
    """Return ``name`` if it is a valid token of a subject, for example a JetStream domain.

    Args:
        name: The token, at most 255 bytes, without dot, wildcard, space or control character.
        kind: The word for the token in the error.

    Raises:
        InvalidNameError: The token is not valid, or not a str.
    """
    _check_text(name, kind, MAX_NAME_BYTES)
    if bad := re.search(r"[.*>]", name):
        raise InvalidNameError(
            kind, name, f"it contains {bad[0]!r}; it must be one token without '.', '*' and '>'"
        )
    return name


def check_publish_subject(subject: str) -> str:
    """Return ``subject`` if it is a valid subject to publish to.

    Tokens are separated by dots, and none of them is empty, ``*`` or ``>``. The subject has no space, no control
    character, and at most ``MAX_SUBJECT_BYTES`` bytes of UTF-8.

    Raises:
        InvalidNameError: The subject is not valid, or not a str.
    """
    tokens = _tokens(subject)
    for wildcard in ("*", ">"):
        if wildcard in tokens:
            reason = f"it contains the wildcard {wildcard!r}; a subject without wildcards is needed here"
            raise InvalidNameError("subject", subject, reason)
    return subject


def check_filter_subject(subject: str) -> str:
    """Return ``subject`` if it is a valid subject to subscribe to or filter by.

    The rules are those of ``check_publish_subject``, but a token may be ``*``, and the last token ``>``.

    Raises:
        InvalidNameError: The subject is not valid, or not a str.
    """
    if ">" in _tokens(subject)[:-1]:
        raise InvalidNameError("subject", subject, "the wildcard '>' is allowed as the last token only")
    return subject


def check_filter_subjects(subjects: list[str]) -> list[str]:
    """Return ``subjects`` if each is valid by `check_filter_subject`. Many ordinary subjects are checked at once.

    Raises:
        InvalidNameError: A subject is not valid, or not a str.
    """
    # If any subject isn't ordinary, check each subject by itself. This also finds the reason for an error.
    if not _are_ordinary(subjects):
        for subject in subjects:
            check_filter_subject(subject)
    return subjects


def _are_ordinary(subjects: list[str]) -> bool:
    """Return whether all subjects are valid and consist of printable ASCII without the wildcard ``>``."""
    try:
        text = " ".join(subjects)
    except TypeError:  # a subject isn't a str
        return False
    return (
        _ORDINARY.fullmatch(text) is not None
        and text.count(" ") == len(subjects) - 1
        and ".." not in f".{text.replace(' ', '.')}."  # no subject is empty or has an empty token
        and max(map(len, subjects)) <= MAX_SUBJECT_BYTES
    )


def has_wildcard(subject: str) -> bool:
    """Return whether the subject matches several subjects, because a token is ``*`` or ``>``."""
    return not _WILDCARDS.isdisjoint(subject.split("."))


def subject_matches(pattern: str, subject: str) -> bool:
    """Return whether ``pattern`` matches ``subject``. ``*`` matches one token, ``>`` matches one or more at the end.

    If ``subject`` has wildcards itself, ``pattern`` must match every subject that ``subject`` matches.
    """
    parts, tokens = pattern.split("."), subject.split(".")
    for position, part in enumerate(parts):
        if position == len(tokens):
            return False
        if part == ">":
            return True
        if tokens[position] == ">" or part not in ("*", tokens[position]):
            return False
    return len(parts) == len(tokens)


def subjects_overlap(a: str, b: str) -> bool:
    """Return whether some literal subject matches both ``a`` and ``b``."""
    a_tokens, b_tokens = a.split("."), b.split(".")
    for a_token, b_token in zip(a_tokens, b_tokens, strict=False):
        if ">" in (a_token, b_token):
            return True
        if a_token != b_token and "*" not in (a_token, b_token):
            return False
    return len(a_tokens) == len(b_tokens)


def _check_asset_name(name: str, kind: str) -> str:
    _check_text(name, kind, MAX_NAME_BYTES)
    if bad := _NOT_IN_NEW_NAME.search(name):
        allowed = "allowed is printable ASCII without space and without . * > / \\"
        raise InvalidNameError(kind, name, f"it contains {bad[0]!r}; {allowed}")
    return name


def _tokens(subject: str) -> list[str]:
    """Return the tokens of a well-formed subject. Wildcards are not checked."""
    _check_text(subject, "subject", MAX_SUBJECT_BYTES)
    tokens = subject.split(".")
    if "" in tokens:
        raise InvalidNameError("subject", subject, "it has an empty token: a dot at an end, or two in a row")
    return tokens


def _check_text(value: object, kind: str, limit: int) -> None:
    """Refuse a value that is not a str, is empty, too long, or not encodable, or could be misread on the wire."""
    if not isinstance(value, str):
        raise InvalidNameError(kind, value, f"a str is needed, not {type(value).__name__}")
    if not value:
        raise InvalidNameError(kind, value, "it is empty")
    if bad := _FORBIDDEN.search(value):
        raise InvalidNameError(
            kind, value, f"it contains {bad[0]!r}; spaces and control characters are not allowed"
        )
    try:
        size = len(value.encode())  # the limit is in bytes of UTF-8
    except UnicodeEncodeError:
        raise InvalidNameError(
            kind, value, "it cannot be encoded as UTF-8: it contains a lone surrogate"
        ) from None
    if size > limit:
        raise InvalidNameError(kind, value, f"it is {size} bytes long; at most {limit} are allowed")

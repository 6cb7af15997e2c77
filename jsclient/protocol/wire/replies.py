"""Decides to which reply subjects from the wire this library publishes.

The sender of a message chooses the reply subject, and an answer is published with the permissions of this client. A
user with almost no permissions could otherwise use this client to call the API. Therefore, this library publishes to
a subject from the wire only if the subject has the form that is expected there:

- an answer to another client goes to an inbox, or to another account: `may_answer`;
- an answer to flow control goes to ``$JS.FC.``, which servers use in every set-up (domains, leaf nodes, imports), and
  to prefixes that the user adds, since ADR-15 leaves the form to the server: `may_answer_flow_control`;
- an ack goes to a JSAck: `jsclient.protocol.consumers.ack`.

``tests/test_replies.py`` lists all places that publish, and fails on a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...errors import InvalidNameError
from .names import check_publish_subject

__all__ = ["ACCOUNTS", "INBOX", "may_answer", "may_answer_flow_control"]

INBOX: Final = "_INBOX"
"""The prefix of inboxes by convention. Users with private inboxes often have ``_INBOX_<name>``."""

ACCOUNTS: Final = "_R_."
"""The prefix of the reply subject of a request from another account. Servers refuse it from clients."""

_FLOW_CONTROL: Final = b"$JS.FC."
_FORBIDDEN: Final = (b"$JS.API.", b"$SYS.", b"$JS.ACK.")
_ILLEGAL: Final = frozenset(b" \t\r\n\0")
_MAX_FLOW_CONTROL: Final = 1024  # maximum size of a subject to answer, in bytes


def may_answer(subject: str, prefixes: Iterable[str] = (INBOX,)) -> bool:
    """Return whether an answer to another client may be published to ``subject``.

    The subject must be an inbox. This is a legal subject without wildcards that starts with one of the prefixes, has
    a further token, and does not start with ``$``. The prefix ``_INBOX`` includes ``_INBOX_guest``, but ``_INBOX.``
    does not.
    """
    if subject.startswith("$") or not any(
        subject.startswith(prefix) and "." in subject[len(prefix.rstrip(".")) :] for prefix in prefixes
    ):
        return False
    try:
        check_publish_subject(subject)
    except InvalidNameError:
        return False
    return True


def may_answer_flow_control(
    subject: bytes, api_prefix: bytes = b"$JS.API", prefixes: tuple[bytes, ...] = ()
) -> bool:
    """Return whether an empty message may be published to this subject.

    ``api_prefix`` is the API prefix of this client. ``prefixes`` are allowed in addition to ``$JS.FC.``.
    """
    if (
        not subject.startswith((_FLOW_CONTROL, *prefixes))
        or subject.startswith((api_prefix + b".", *_FORBIDDEN))
        or len(subject) > _MAX_FLOW_CONTROL
        or not _ILLEGAL.isdisjoint(subject)
    ):
        return False
    tokens = subject.split(b".")
    if tokens[0] == b"$JS" and (tokens[1:2] == [b"API"] or (tokens[2:3] == [b"API"] and tokens[1] != b"FC")):
        return False  # $JS.<domain>.API.…, but not $JS.FC.<a stream named API>.…
    return all(token and token not in {b"*", b">"} for token in tokens)

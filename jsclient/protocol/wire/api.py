"""The JetStream API, with the subject of each request, the pages of lists, and the envelope of answers.

Subjects have a custom prefix or belong to a domain. Names are checked, so that a subject contains no text that the
server could read as another command.

Source: ADR-1 (requests, paging), ADR-7 (errors: match on ``err_code``), ADR-19 (prefix), ADR-31 (direct get), ADR-42;
nats-server server/jetstream_api.go, server/errors.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ...errors import ApiError, ConfigError, InvalidNameError, ProtocolError
from .codec import decode
from .names import (
    MAX_SUBJECT_BYTES,
    check_consumer_name,
    check_filter_subject,
    check_new_stream_name,
    check_publish_subject,
    check_stream_name,
    check_token,
)

__all__ = [
    "DEFAULT_PREFIX",
    "Api",
    "is_question",
    "next_offset",
    "page_items",
    "page_request",
    "read_response",
]

DEFAULT_PREFIX: Final = "$JS.API"

_MAX_PREFIX_BYTES: Final = 1024

_QUESTIONS: Final = (
    "INFO",
    "STREAM.INFO.",
    "STREAM.LIST",
    "STREAM.NAMES",
    "STREAM.MSG.GET.",
    "DIRECT.GET.",
    "CONSUMER.INFO.",
    "CONSUMER.LIST.",
    "CONSUMER.NAMES.",
)


class Api:
    """The API subjects of one account.

    Attributes:
        prefix: The common prefix of the subjects, without the final dot.
        domain: The JetStream domain, or None.
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX, domain: str | None = None) -> None:
        """Create the subjects from a prefix (a final dot is ignored) or from a domain, not both.

        Raises:
            ConfigError: Both are set.
            InvalidNameError: The prefix is not a valid subject, or the domain is not a single token.
        """
        bare = prefix.removesuffix(".") if isinstance(prefix, str) else prefix
        _check_prefix(bare)
        if domain is not None:
            if bare != DEFAULT_PREFIX:
                raise ConfigError(f"pass a prefix ({prefix!r}) or a domain ({domain!r}), not both")
            bare = f"$JS.{check_token(domain, 'domain')}.API"
        self.prefix: Final = bare
        self.domain: Final = domain

    def __repr__(self) -> str:
        return f"Api({self.prefix!r})"

    # --- account and streams -----------------------------------------------------------------------------

    def account_info(self) -> str:
        """Return the subject to request the usage and limits of the account."""
        return f"{self.prefix}.INFO"

    def stream_names(self) -> str:
        """Return the subject to list the names of the streams, by pages, optionally only of streams with a subject."""
        return f"{self.prefix}.STREAM.NAMES"

    def stream_list(self) -> str:
        """Return the subject to list the infos of the streams, by pages."""
        return f"{self.prefix}.STREAM.LIST"

    def stream_create(self, name: str) -> str:
        """Return the subject to create a stream."""
        return self._stream("STREAM.CREATE", check_new_stream_name(name))

    def stream_update(self, name: str) -> str:
        """Return the subject to change a stream."""
        return self._stream("STREAM.UPDATE", name)

    def stream_info(self, name: str) -> str:
        """Return the subject to request the info of a stream."""
        return self._stream("STREAM.INFO", name)

    def stream_delete(self, name: str) -> str:
        """Return the subject to delete a stream."""
        return self._stream("STREAM.DELETE", name)

    def stream_purge(self, name: str) -> str:
        """Return the subject to remove messages of a stream."""
        return self._stream("STREAM.PURGE", name)

    def stream_msg_get(self, name: str) -> str:
        """Return the subject to read one message from the stream's leader."""
        return self._stream("STREAM.MSG.GET", name)

    def stream_msg_delete(self, name: str) -> str:
        """Return the subject to delete one message."""
        return self._stream("STREAM.MSG.DELETE", name)

    def direct_get(self, name: str) -> str:
        """Return the subject to read messages from any replica. The request selects the messages."""
        return self._stream("DIRECT.GET", name)

    def direct_get_last(self, name: str, subject: str) -> str:
        """Return the subject to read the last message of a literal subject from any replica, without a request body."""
        return self._bounded(f"{self.direct_get(name)}.{check_publish_subject(subject)}", subject)

    # --- consumers ---------------------------------------------------------------------------------------

    def consumer_create(self, stream: str) -> str:
        """Return the subject to create an ephemeral consumer that the server names."""
        return self._stream("CONSUMER.CREATE", stream)

    def consumer_durable_create(self, stream: str, durable: str) -> str:
        """Return the subject to create a durable consumer."""
        name = check_consumer_name(durable, "durable")
        return f"{self._stream('CONSUMER.DURABLE.CREATE', stream)}.{name}"

    def consumer_create_named(self, stream: str, name: str, filter: str = "") -> str:
        """Return the subject to create a named consumer.

        A single filter, including its wildcards, is part of the subject.
        """
        subject = self._consumer("CONSUMER.CREATE", stream, name)
        return self._bounded(f"{subject}.{check_filter_subject(filter)}", filter) if filter else subject

    def consumer_info(self, stream: str, name: str) -> str:
        """Return the subject to request the info of a consumer."""
        return self._consumer("CONSUMER.INFO", stream, name)

    def consumer_list(self, stream: str) -> str:
        """Return the subject to list the infos of a stream's consumers, by pages."""
        return self._stream("CONSUMER.LIST", stream)

    def consumer_names(self, stream: str) -> str:
        """Return the subject to list the names of a stream's consumers, by pages."""
        return self._stream("CONSUMER.NAMES", stream)

    def consumer_delete(self, stream: str, name: str) -> str:
        """Return the subject to delete a consumer."""
        return self._consumer("CONSUMER.DELETE", stream, name)

    def consumer_next(self, stream: str, name: str) -> str:
        """Return the subject to pull messages."""
        return self._consumer("CONSUMER.MSG.NEXT", stream, name)

    def consumer_pause(self, stream: str, name: str) -> str:
        """Return the subject to pause or resume a consumer."""
        return self._consumer("CONSUMER.PAUSE", stream, name)

    def consumer_reset(self, stream: str, name: str) -> str:
        """Return the subject to reset a consumer to another position."""
        return self._consumer("CONSUMER.RESET", stream, name)

    def consumer_unpin(self, stream: str, name: str) -> str:
        """Return the subject to unpin the client that is pinned in a priority group."""
        return self._consumer("CONSUMER.UNPIN", stream, name)

    def _stream(self, verb: str, name: str) -> str:
        return f"{self.prefix}.{verb}.{check_stream_name(name)}"

    def _consumer(self, verb: str, stream: str, name: str) -> str:
        return f"{self._stream(verb, stream)}.{check_consumer_name(name)}"

    def _bounded(self, subject: str, part: str) -> str:
        """Refuse ``part`` if it makes the subject too long for a control line."""
        if (size := len(subject.encode())) > MAX_SUBJECT_BYTES:
            reason = f"the API subject with it is {size} bytes long; at most {MAX_SUBJECT_BYTES} are allowed"
            raise InvalidNameError("subject", part, reason)
        return subject


def is_question(api: Api, subject: str) -> bool:
    """Return whether an API request on ``subject`` only reads, so it can be repeated."""
    return subject.startswith(api.prefix) and subject[len(api.prefix) + 1 :].startswith(_QUESTIONS)


def _check_prefix(prefix: str) -> None:
    try:
        check_publish_subject(prefix)
    except InvalidNameError as exc:
        raise InvalidNameError("prefix", prefix, exc.reason) from None
    if len(prefix.encode()) > _MAX_PREFIX_BYTES:
        raise InvalidNameError("prefix", prefix, f"at most {_MAX_PREFIX_BYTES} bytes are allowed")


STREAM_NAME_IN_USE: Final = 10058
STREAM_SUBJECT_OVERLAP: Final = 10065


def read_response(data: bytes, subject: str = "") -> dict[str, Any]:
    """Return the answer to an API request on ``subject``. Errors name the stream and consumer in the subject.

    Raises:
        ApiError: The answer is an error. Its ``err_code`` decides the class. Missing numbers are 0.
        ProtocolError: The answer is not a JSON object, or its error is malformed.
    """
    answer = decode(data)
    error = answer.get("error")
    if error is not None:
        raise _api_error(error, subject, answer.get("stream"))
    return answer


def page_request(offset: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the request for the page that starts at ``offset``, with the ``fields`` that are not None."""
    return {"offset": offset, **{name: value for name, value in fields.items() if value is not None}}


def page_items(answer: Mapping[str, Any], field: str) -> list[Any]:
    """Return the items of a page. Servers write an empty page as null, or omit it.

    Raises:
        ProtocolError: The field is not a list.
    """
    items = answer.get(field)
    if items is None:
        return []
    if not isinstance(items, list):
        raise ProtocolError(f"{field}: a list is needed, not {type(items).__name__}")
    return items


def next_offset(answer: Mapping[str, Any], offset: int, count: int) -> int | None:
    """Return the offset of the next page after a page of ``count`` items, or None after the last page.

    A page without items is always the last, whatever the total, so that paging terminates.
    """
    total = answer.get("total")
    if isinstance(total, bool) or not isinstance(total, int) or count <= 0:
        return None
    return offset + count if offset + count < total else None


_NAMES: Final = re.compile(
    r"\.(?:STREAM|CONSUMER)\.(?:(?:MSG|DURABLE|LEADER)\.)?[A-Z]+\.([^.]+)(?:\.([^.]+))?"
)


# Codes of errors for a message that the stream refuses because of a limit, or because the stream is sealed. Only the
# answer names the stream.
_OF_LIMITS: Final = frozenset({10023, 10054, 10077, 10109})


def _api_error(error: object, subject: str, answering: object = None) -> ApiError | ProtocolError:
    if not isinstance(error, Mapping):
        return ProtocolError(f"the error of the answer is not an object but {type(error).__name__}")
    description, err_code = error.get("description"), _number(error.get("err_code"))
    names: tuple[str, ...] = ()
    if match := _NAMES.search(subject):
        names = (match[1], match[2] or "")
    elif err_code in _OF_LIMITS and isinstance(answering, str):
        names = (answering,)
    return ApiError.from_fields(
        _number(error.get("code")),
        err_code,
        description if isinstance(description, str) else "no description",
        *names,
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

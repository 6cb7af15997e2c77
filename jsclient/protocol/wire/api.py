"""The envelope of a JetStream API answer: the error object, and pages.

Source: ADR-1 (requests, paging), ADR-7 (errors: match on ``err_code``); nats-server server/errors.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from ...errors import ApiError, ProtocolError
from .codec import decode

__all__ = ["ConsumerAction", "next_offset", "page_items", "page_request", "read_response"]

CONSUMER_NAME_IN_USE: Final = 10013
CONSUMER_NOT_FOUND: Final = 10014
BAD_REQUEST: Final = 10003
NO_MESSAGE_FOUND: Final = 10037
NOT_ENABLED_FOR_ACCOUNT: Final = 10039
STREAM_NAME_IN_USE: Final = 10058
STREAM_NOT_FOUND: Final = 10059
STREAM_SUBJECT_OVERLAP: Final = 10065
WRONG_LAST_SEQUENCE: Final = 10071
NOT_ENABLED: Final = 10076
CONSUMER_PUSH_MAX_WAITING: Final = 10080
CONSUMER_INVALID_POLICY: Final = 10094
CONSUMER_EXISTS_AND_IS_ACTIVE: Final = 10105
FLOW_CONTROL_NEEDS_HEARTBEAT: Final = 10108
CONSUMER_EXISTS: Final = 10148
CONSUMER_DOES_NOT_EXIST: Final = 10149
WRONG_LAST_SEQUENCE_CONSTANT: Final = 10164


class ConsumerAction(StrEnum):
    """The action of a consumer create request. To create or update, the field is omitted."""

    CREATE = "create"
    UPDATE = "update"


def read_response(data: bytes, subject: str = "") -> dict[str, Any]:
    """The answer to an API request on ``subject``, which an error names the stream and the consumer of.

    Raises:
        ApiError: The answer is an error; the class follows its ``err_code``. Missing numbers are 0.
        ProtocolError: The answer is not a JSON object, or its error is malformed.
    """
    answer = decode(data)
    error = answer.get("error")
    if error is not None:
        raise _api_error(error, subject)
    return answer


def page_request(offset: int = 0, **fields: Any) -> dict[str, Any]:
    """The request for the page that starts at ``offset``, with the other ``fields`` that are not None."""
    return {"offset": offset, **{name: value for name, value in fields.items() if value is not None}}


def page_items(answer: Mapping[str, Any], field: str) -> list[Any]:
    """The items of a page. Servers write an empty page as null, or omit it.

    Raises:
        ProtocolError: The field holds something else than a list.
    """
    items = answer.get(field)
    if items is None:
        return []
    if not isinstance(items, list):
        raise ProtocolError(f"{field}: a list is needed, not {type(items).__name__}")
    return items


def next_offset(answer: Mapping[str, Any], offset: int, count: int) -> int | None:
    """The offset of the next page after a page of ``count`` items; None after the last page.

    A page without items is always the last, whatever its total, so paging terminates.
    """
    total = answer.get("total")
    if isinstance(total, bool) or not isinstance(total, int) or count <= 0:
        return None
    return offset + count if offset + count < total else None


_NAMES: Final = re.compile(
    r"\.(?:STREAM|CONSUMER)\.(?:(?:MSG|DURABLE|LEADER)\.)?[A-Z]+\.([^.]+)(?:\.([^.]+))?"
)


def _api_error(error: object, subject: str) -> ApiError | ProtocolError:
    if not isinstance(error, Mapping):
        return ProtocolError(f"the error of the answer is not an object but {type(error).__name__}")
    description = error.get("description")
    return ApiError.from_fields(
        _number(error.get("code")),
        _number(error.get("err_code")),
        description if isinstance(description, str) else "no description",
        *((found[1], found[2] or "") if (found := _NAMES.search(subject)) else ()),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

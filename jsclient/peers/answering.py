"""Who answers which query, and for whom."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from ..errors import ConfigError
from ..protocol.peers.channel import RID
from ..protocol.peers.outbox import Attrs
from ..protocol.wire.names import check_token

__all__ = ["Answers", "QueryHandler"]

_RELATIONSHIP: Final = "relationship"

QueryHandler: TypeAlias = Callable[..., Any]


class Answers:
    """The functions that answer a peer's queries, by rid and name. Arguments are passed by name.

    A function that has a parameter ``relationship`` gets the established relationship on which it was asked, None for
    another channel. The asker cannot give that one.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], QueryHandler] = {}

    def add(self, rid: str, name: str, handler: QueryHandler) -> None:
        """Raises `ConfigError`: the names are none, or taken."""
        key = check_token(rid, "rid"), check_token(name, "name")
        if rid == RID:
            raise ConfigError(f"the queries of {RID!r} are the peer's own")
        if not callable(handler):
            raise ConfigError(f"what answers {rid}:{name} is {type(handler).__name__}: it must be a function")
        self._handlers[key] = handler

    def find(self, rid: str, name: str) -> QueryHandler | None:
        """Who answers, None for nobody."""
        return self._handlers.get((rid, name))

    @staticmethod
    async def call(handler: QueryHandler, args: Attrs, relationship: Mapping[str, Any] | None) -> Any:
        """Raises what the function raises, `TypeError` for arguments that it does not take among it."""
        if _RELATIONSHIP in inspect.signature(handler).parameters:
            args = args | {_RELATIONSHIP: relationship}
        result = handler(**args)
        return await result if inspect.isawaitable(result) else result

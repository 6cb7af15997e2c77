"""The states of many streams by one request, for a source that reads several."""

from __future__ import annotations

import logging
import math
import time

from ..._runtime.calls import pages
from ..._runtime.context import Context
from ...errors import JetStreamError, PermissionDeniedError
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.codec import from_wire
from ..engine import context_of, session
from ..options.source import SourceOptions
from .offsets import StreamFacts

__all__ = ["Listing"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_FEW = 4  # streams that are asked for one by one
_SHARE = 4  # a list is not used if it has more than this many streams for each that is read
_FRESH = 0.1  # seconds for which a list is used
_SLOW = 2.0  # seconds; a cluster answers after four if a stream has no leader
_AGAIN = 60.0  # seconds until a list is tried again


class Listing:
    """Lists the streams of the account, as long as that is cheaper than one request for each stream that is read.

    Each list is used once for each stream. A stream that is not in it is asked for by the caller.

    Attributes:
        names: The names of the streams that are read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.names: frozenset[str] = frozenset(options.streams)
        self._connect = options.connect
        self._found: dict[str, StreamFacts] = {}  # of the last list, not yet used
        self._used: set[str] = set()
        self._at = -math.inf  # monotonic seconds: time of the last list
        self._again = -math.inf  # monotonic seconds: time of the next list at the earliest

    def take(self, name: str) -> StreamFacts | None:
        """The state of a stream, at most 0.1 seconds old and not returned before; None if it is not known."""
        if len(self.names) <= _FEW or time.monotonic() < self._again:
            return None
        if name in self._used or time.monotonic() > self._at + _FRESH:
            self._list()
        found = self._found.pop(name, None)
        if found is not None:
            self._used.add(name)
        return found

    def _list(self) -> None:
        self._used.clear()
        self._at = began = time.monotonic()
        try:
            opened = session(self._connect)
            self._found = opened.run(self._asked(context_of(opened.js)))
        except JetStreamError as error:
            self._found = {}
            self._again = math.inf if isinstance(error, PermissionDeniedError) else began + _AGAIN
            log.info("streams are not listed, but asked for one by one: %s", error)
        else:
            if not self._found or time.monotonic() > began + _SLOW:
                self._again = time.monotonic() + _AGAIN

    async def _asked(self, context: Context) -> dict[str, StreamFacts]:
        """The streams that are read; {} if there are too many others."""
        found: dict[str, StreamFacts] = {}
        count = 0
        async for item in pages(context, context.api.stream_list(), "streams"):
            if (count := count + 1) > _SHARE * len(self.names):
                return {}
            info = from_wire(StreamInfo, item)
            if info.name in self.names:
                found[info.name] = StreamFacts.of(info)
        return found

    def drop(self, name: str) -> None:
        """Forget what the last list says of a stream, since it was asked for."""
        self._found.pop(name, None)

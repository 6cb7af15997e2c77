"""The states of many streams, requested as a list, for a source that reads several streams."""

from __future__ import annotations

import logging
import math
import time

from .._runtime.calls import pages
from .._runtime.context import Context
from ..errors import JetStreamError, PermissionDeniedError
from ..protocol.models.stream import StreamInfo
from ..protocol.wire.codec import from_wire
from .offsets import StreamFacts
from .session import context_of, session
from .source_options import SourceOptions

__all__ = ["StreamListing"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_FEW = 4  # up to this many streams for each page of the list are requested one by one instead
_SHARE = 4  # a list is not used if it has more than this many streams for each stream that is read
_FRESH = 5.0  # seconds for which a list is used within a round
_SLOW = 2.0  # seconds within which a page should arrive. A cluster takes 4 s if a stream has no leader
_PAGE = 256  # number of streams in a page
_AGAIN = 60.0  # seconds until a list is requested again after a failed or slow request


class StreamListing:
    """List of the account's streams, used as long as it is cheaper than one request for each stream that is read.

    The list is requested in each round when the facts of the first stream are taken. The facts of a stream can be
    taken once from each list, so the list is requested again if they are taken a second time, or if the list is too
    old. For a stream that is not in the list, the caller has to send a request.

    Attributes:
        names: The names of the streams that are read.
        pages: Number of requests for lists in this round.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.names: frozenset[str] = frozenset(options.streams)
        self.pages: int = 0
        # How many streams this round requests, or None if it requests all of them.
        self._requested: int | None = None
        self._connect = options.connect
        self._listed: dict[str, StreamFacts] = {}  # facts from the last list that were not taken yet
        self._used: set[str] = set()  # streams whose facts were taken from the last list
        self._at = -math.inf  # monotonic time of the last list
        self._again = -math.inf  # earliest monotonic time of the next list

    def begin_round(self, wanted: int | None = None) -> None:
        """Begin a round in which the facts of all streams are requested, or only of ``wanted`` streams."""
        self._listed.clear()
        self._at, self.pages, self._requested = -math.inf, 0, wanted

    def take_facts(self, name: str) -> StreamFacts | None:
        """Return the facts of a stream from the list, or None if the caller has to request them."""
        count = len(self.names)
        requested = count if self._requested is None else self._requested
        if requested <= _FEW * -(-count // _PAGE) or time.monotonic() < self._again:
            return None
        if name in self._used or time.monotonic() > self._at + _FRESH:
            self._list()
        facts = self._listed.pop(name, None)
        if facts is not None:
            self._used.add(name)
        return facts

    def _list(self) -> None:
        self._used.clear()
        self._at = began = time.monotonic()
        before = self.pages
        try:
            opened = session(self._connect)
            self._listed = opened.run(self._list_streams(context_of(opened.js)))
        except JetStreamError as error:
            self._listed = {}
            self._again = math.inf if isinstance(error, PermissionDeniedError) else began + _AGAIN
            log.info("streams are not listed, but asked for one by one: %s", error)
        else:
            if not self._listed or time.monotonic() > began + _SLOW * (self.pages - before):
                self._again = time.monotonic() + _AGAIN

    async def _list_streams(self, context: Context) -> dict[str, StreamFacts]:
        """Return the facts of the streams that are read. Returns {} if the account has too many other streams."""
        listed: dict[str, StreamFacts] = {}
        count = 0
        async for item in pages(context, context.api.stream_list(), "streams"):
            if count % _PAGE == 0:
                self.pages += 1
            if (count := count + 1) > _SHARE * len(self.names):
                return {}
            info = from_wire(StreamInfo, item)
            if info.name in self.names:
                listed[info.name] = StreamFacts.from_info(info)
        return listed

    def drop(self, name: str) -> None:
        """Drop the facts of a stream from the last list, because the caller requests newer facts."""
        self._listed.pop(name, None)

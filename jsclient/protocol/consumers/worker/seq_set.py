"""A set of stream sequences that needs about one bit per sequence if they are nearly consecutive."""

from __future__ import annotations

from typing import Final

__all__ = ["SeqSet"]

_PAGE: Final = 15  # bits of a sequence within a page
_WITHIN: Final = (1 << _PAGE) - 1


class SeqSet:
    """Stream sequences, in pages of 32,768. Beyond ``most_pages`` pages, the oldest page is removed."""

    def __init__(self, most_pages: int = 4096) -> None:
        self._most = most_pages
        self._pages: dict[int, bytearray] = {}

    def add(self, seq: int) -> None:
        """Add a sequence."""
        page = self._pages.get(seq >> _PAGE)
        if page is None:
            if len(self._pages) >= self._most:
                del self._pages[next(iter(self._pages))]
            page = self._pages[seq >> _PAGE] = bytearray((_WITHIN + 1) >> 3)
        page[(seq & _WITHIN) >> 3] |= 1 << (seq & 7)

    def discard(self, seq: int) -> None:
        """Remove a sequence, if the set contains it."""
        if seq in self:
            self._pages[seq >> _PAGE][(seq & _WITHIN) >> 3] &= ~(1 << (seq & 7))

    def clear(self) -> None:
        """Remove all sequences."""
        self._pages.clear()

    def __contains__(self, seq: int) -> bool:
        page = self._pages.get(seq >> _PAGE)
        return page is not None and bool(page[(seq & _WITHIN) >> 3] >> (seq & 7) & 1)

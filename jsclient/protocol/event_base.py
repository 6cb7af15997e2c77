"""The base class of events, with their log names and texts."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, TypeAlias

import msgspec

__all__ = ["Event", "Severity"]

Severity: TypeAlias = Literal["debug", "info", "warning", "error"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of events. ``str(event)`` is a sentence for a log.

    Attributes:
        about: The part of the library that reports it. The logger is ``jsclient.<about>``.
    """

    about: ClassVar[str] = "consumer"
    _text: ClassVar[str] = ""  # the text, with the names of fields in braces
    _severity: ClassVar[Severity] = "warning"

    stream: str = ""
    consumer: str = ""

    @property
    def severity(self) -> Severity:
        """The logging level of the event."""
        return self._severity

    def __str__(self) -> str:
        text = self._says()
        if self.consumer:
            return f"{text} (consumer {self.consumer!r} of stream {self.stream!r})"
        return f"{text} (stream {self.stream!r})" if self.stream else text

    def _says(self) -> str:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        if self._text:
            return self._text.format_map(fields)
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()
        shown = [
            f"{k} {v!r}" for k, v in fields.items() if k not in {"stream", "consumer"} and v not in ("", None)
        ]
        return f"{words}: {', '.join(shown)}" if shown else words

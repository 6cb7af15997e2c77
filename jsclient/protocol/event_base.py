"""The base class of events, which defines how they are logged."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, TypeAlias

import msgspec

__all__ = ["Event", "Severity"]

Severity: TypeAlias = Literal["debug", "info", "warning", "error"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of events, which report what can't be raised to a caller.

    Events are passed to the ``on_event`` function of the connection. If there is no such function, an event is logged
    to the logger ``jsclient.<about>`` with the level ``severity``. ``str(event)`` returns the logged description.

    Attributes:
        stream: Name of the stream that the event concerns, or "" if it concerns no stream.
        consumer: Name of the consumer that the event concerns, or "" if it concerns no consumer.
        about: Name of the part of the library that emits the event, such as "consumer" or "publisher".
    """

    about: ClassVar[str] = "consumer"
    _text: ClassVar[str] = ""  # format string of the description, with the names of fields in braces
    _severity: ClassVar[Severity] = "warning"

    stream: str = ""
    consumer: str = ""

    @property
    def severity(self) -> Severity:
        """Logging level of the event: "debug", "info", "warning" or "error"."""
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

"""A log for the listener. Writing to it never raises."""

from __future__ import annotations

import logging
import traceback

__all__ = ["HarmlessLog"]

log: logging.Logger = logging.getLogger("jsclient.spark.progress")


class HarmlessLog:
    """Log that writes to the logger ``jsclient.spark.progress`` and never raises.

    The first error that a handler raises is printed. Later errors are ignored.
    """

    def __init__(self) -> None:
        self._failed = False
        self._logged: set[tuple[str, type[Exception]]] = set()

    def write(self, level: int, text: str, *args: object, **options: object) -> None:
        try:
            log.log(level, text, *args, **options)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001  a handler may raise anything, which must not end the query
            if not self._failed:
                self._failed = True
                traceback.print_exc()

    def warn_once(self, text: str, error: Exception) -> None:
        """Log a warning with the traceback of an error, once for each pair of text and error type."""
        if (key := (text, type(error))) not in self._logged:
            self._logged.add(key)
            self.write(logging.WARNING, "%s; later errors like this are not logged", text, exc_info=error)

"""The policy for lost messages, which raises the error or logs it."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from ..errors import JetStreamError

__all__ = ["LossPolicy"]

_REMEMBERED: Final = 100  # number of logged losses that are remembered, to log them only once

log: logging.Logger = logging.getLogger("jsclient.spark")


class LossPolicy:
    """Policy that raises the error for a loss or logs it, depending on the option ``failOnDataLoss``."""

    def __init__(self, fail: bool) -> None:  # noqa: FBT001  it is the only argument
        self._fail = fail
        self._logged: deque[str] = deque(maxlen=_REMEMBERED)

    def accept(self, error: JetStreamError | None) -> bool:
        """Return True if ``error`` is None, so that no message was lost.

        Otherwise raise the error, or, if ``failOnDataLoss`` is false, log it once and return False.
        """
        if error is None:
            return True
        if self._fail:
            raise error
        if str(error) not in self._logged:
            self._logged.append(str(error))
            log.warning("%s", str(error).replace("with option 'failOnDataLoss' = 'false' ", ""))
        return False

"""What is done about lost messages: option ``failOnDataLoss``."""

from __future__ import annotations

import logging
from collections import deque

from ..errors import JetStreamError

__all__ = ["LossPolicy"]

_REMEMBERED = 100  # losses that are not logged again

log: logging.Logger = logging.getLogger("jsclient.spark")


class LossPolicy:
    """Raises the error for a loss, or logs it, as ``failOnDataLoss`` says."""

    def __init__(self, fail: bool) -> None:  # noqa: FBT001  the only argument
        self._fail = fail
        self._logged: deque[str] = deque(maxlen=_REMEMBERED)

    def accept(self, error: JetStreamError | None) -> bool:
        """Return whether no message was lost. Raises ``error``, or logs it once if ``failOnDataLoss`` is false."""
        if error is None:
            return True
        if self._fail:
            raise error
        if str(error) not in self._logged:
            self._logged.append(str(error))
            log.warning("%s", str(error).replace("with option 'failOnDataLoss' = 'false' ", ""))
        return False

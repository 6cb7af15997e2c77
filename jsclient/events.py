"""Events: what cannot be raised to a caller is reported as one of these.

They are given to ``on_event`` of `jsclient.connect` and `jsclient.JetStream`, and to ``events()`` of a subscription.
Without ``on_event`` they are logged by ``jsclient.connection``, ``.consumer``, ``.worker``, ``.publisher``, ``.topic``
and ``.spark``: as a sentence, at the level ``severity``, with the traceback of their error, and with their fields as
attributes of the log record; its ``event`` is the name of the class.
"""

from __future__ import annotations

from .errors import set_module
from .protocol import events as _events
from .protocol.events import *  # noqa: F403

__all__: list[str] = []
__all__ += _events.__all__

set_module(__name__, map(_events.__dict__.__getitem__, __all__))

"""jsclient: NATS JetStream for asyncio. The public surface: imports and ``__all__``, nothing else."""

from __future__ import annotations

from . import errors, server
from ._version import __version__
from .client import JetStream
from .connecting import connect
from .consumer import Consumer
from .errors import *  # noqa: F403
from .message import Message, ack_all
from .messages import Messages
from .ordered import OrderedSubscription
from .protocol import events
from .protocol.ack import Metadata
from .protocol.events import *  # noqa: F403
from .protocol.headers import Headers
from .protocol.models import *  # noqa: F403
from .protocol.status import Ending
from .pull import Batch
from .pull_subscription import PullSubscription
from .stream import Stream
from .subscription import Subscription

__all__ = [
    "Batch",
    "Consumer",
    "Ending",
    "Headers",
    "JetStream",
    "Message",
    "Messages",
    "Metadata",
    "OrderedSubscription",
    "PullSubscription",
    "Stream",
    "Subscription",
    "__version__",
    "ack_all",
    "connect",
    "errors",
    "events",
    "server",
]

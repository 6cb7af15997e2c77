"""Types of arguments, for annotating functions that pass their arguments to jsclient.

::

    from jsclient.typing import StreamFields

    def stream_fields(name: str) -> StreamFields:
        return {"max_age": 3600, "metadata": {"team": name}}

Classes whose names end in ``Fields`` or ``Options`` are typed dictionaries of keyword arguments. Use them as
``**fields: Unpack[StreamFields]``, or pass such a dictionary with ``**``. The other names are type aliases.
"""

from __future__ import annotations

from ._exports import set_module
from ._runtime.event_hub import OnEvent
from ._runtime.publish import BatchOptions, PublishOptions
from .buckets.objects.upload import Progress
from .client import ConnectOptions
from .consumers.api import OrderedFields, SubscribeOptions
from .consumers.push.buffer import Callback
from .consumers.worker.handler_pool import Handler
from .consumers.worker.worker import Key
from .core.services.endpoint import RequestHandler
from .core.subscription import CoreCallback
from .protocol.buckets.rights import BucketRole
from .protocol.consumers.priority import GroupOptions
from .protocol.consumers.worker.work_rules import RetryDelay
from .protocol.event_base import Severity
from .protocol.models.consumer import ConsumerFields, DeliverPolicyText, PriorityPolicyText, ReplayPolicyText
from .protocol.models.drift import OnDrift
from .protocol.models.stream_config import StreamFields
from .protocol.peers.options import EngineFields
from .topics.event_history import EventCallback
from .topics.log import Push, ReadOptions, Start

__all__ = [
    "BatchOptions",
    "BucketRole",
    "Callback",
    "ConnectOptions",
    "ConsumerFields",
    "CoreCallback",
    "DeliverPolicyText",
    "EngineFields",
    "EventCallback",
    "GroupOptions",
    "Handler",
    "Key",
    "OnDrift",
    "OnEvent",
    "OrderedFields",
    "PriorityPolicyText",
    "Progress",
    "PublishOptions",
    "Push",
    "ReadOptions",
    "ReplayPolicyText",
    "RequestHandler",
    "RetryDelay",
    "Severity",
    "Start",
    "StreamFields",
    "SubscribeOptions",
]

set_module(
    __name__,
    (
        BatchOptions, ConnectOptions, ConsumerFields, EngineFields, GroupOptions, OrderedFields, PublishOptions,
        ReadOptions, StreamFields, SubscribeOptions,
    ),
)  # fmt: skip

"""Events report conditions that cannot be raised as exceptions, because no caller is waiting.

The library passes each event to the ``on_event`` function given to `jsclient.connect` or `jsclient.JetStream`, and to
the ``events()`` iterators of the subscription concerned.

Without ``on_event``, events are logged. The loggers are ``jsclient.connection``, ``jsclient.consumer``,
``jsclient.worker``, ``jsclient.publisher``, ``jsclient.topic``, ``jsclient.stream`` and ``jsclient.spark``. The message
of a log record is ``str(event)``, and its level is the ``severity`` of the event. The fields of the event become
attributes of the record, and its ``event`` attribute is the name of the event's class. If the event has an error, the
record includes its traceback, except in two cases. A `Reject` and the error of `WorkerFailed` are logged without a
traceback. The error of `DeadLettered` is logged with a traceback only if warnings are not logged.
"""

from __future__ import annotations

from ._exports import set_module
from .protocol.events import (
    AcksLost,
    AcksUnsent,
    AdvisoryRefused,
    ClaimsGone,
    ClaimsLapsed,
    ConsumerDeleted,
    ConsumerNotKept,
    ConsumerRefused,
    ConsumerReset,
    ConsumerResumed,
    ConsumersNearLimit,
    ConsumerStalled,
    DeadLettered,
    DeadLetterFailed,
    DeleteFailed,
    Disconnected,
    DurableDeleted,
    ErrorRaised,
    Event,
    FlowControlRefused,
    FlowControlStalled,
    ForeignMessage,
    GapDetected,
    HandlerFailed,
    HandlerSlow,
    HeartbeatMissed,
    HistoryTruncated,
    IngestGap,
    IngestRefused,
    LameDuck,
    PartitionsMissing,
    PermissionDenied,
    Pinned,
    PublishFailed,
    Reconnected,
    RecordSkipped,
    ServersChanged,
    SlowConsumer,
    StreamReset,
    Unpinned,
    WorkerFailed,
)

__all__ = [
    "AcksLost",
    "AcksUnsent",
    "AdvisoryRefused",
    "ClaimsGone",
    "ClaimsLapsed",
    "ConsumerDeleted",
    "ConsumerNotKept",
    "ConsumerRefused",
    "ConsumerReset",
    "ConsumerResumed",
    "ConsumerStalled",
    "ConsumersNearLimit",
    "DeadLetterFailed",
    "DeadLettered",
    "DeleteFailed",
    "Disconnected",
    "DurableDeleted",
    "ErrorRaised",
    "Event",
    "FlowControlRefused",
    "FlowControlStalled",
    "ForeignMessage",
    "GapDetected",
    "HandlerFailed",
    "HandlerSlow",
    "HeartbeatMissed",
    "HistoryTruncated",
    "IngestGap",
    "IngestRefused",
    "LameDuck",
    "PartitionsMissing",
    "PermissionDenied",
    "Pinned",
    "PublishFailed",
    "Reconnected",
    "RecordSkipped",
    "ServersChanged",
    "SlowConsumer",
    "StreamReset",
    "Unpinned",
    "WorkerFailed",
]

set_module(__name__, map(globals().__getitem__, __all__))

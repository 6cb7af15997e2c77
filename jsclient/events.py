"""Events: what cannot be raised to a caller is reported as one of these.

They are given to ``on_event`` of `jsclient.connect` and `jsclient.JetStream`, and to ``events()`` of a subscription.
Without ``on_event`` they are logged by ``jsclient.connection``, ``.consumer``, ``.worker``, ``.publisher``, ``.topic``
and ``.spark``: as a sentence, at the level ``severity``, with the traceback of their error, and with their fields as
attributes of the log record; a `Reject` and `WorkerFailed` have no traceback, and `DeadLettered` only if warnings are
not logged. The ``event`` of the record is the name of the class.
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

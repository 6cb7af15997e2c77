"""Names of the headers that have a meaning in JetStream.

Source: ADR-4, ADR-22, ADR-42, ADR-43, ADR-49, ADR-50, ADR-51; nats-server server/stream.go.
"""

from __future__ import annotations

from typing import Final

# Set by publishers:

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE: Final = "Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_SUBJECT_SEQUENCE_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_MSG_ID: Final = "Nats-Expected-Last-Msg-Id"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"
INCR: Final = "Nats-Incr"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
SCHEDULE: Final = "Nats-Schedule"
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULE_SOURCE: Final = "Nats-Schedule-Source"
SCHEDULE_TTL: Final = "Nats-Schedule-TTL"
SCHEDULE_TIME_ZONE: Final = "Nats-Schedule-Time-Zone"
SCHEDULE_ROLLUP: Final = "Nats-Schedule-Rollup"
REQUIRED_API_LEVEL: Final = "Nats-Required-Api-Level"

# Set by the server:

LAST_CONSUMER: Final = "Nats-Last-Consumer"
LAST_STREAM: Final = "Nats-Last-Stream"
CONSUMER_STALLED: Final = "Nats-Consumer-Stalled"
PENDING_MESSAGES: Final = "Nats-Pending-Messages"
PENDING_BYTES: Final = "Nats-Pending-Bytes"
PIN_ID: Final = "Nats-Pin-Id"
STREAM: Final = "Nats-Stream"
SUBJECT: Final = "Nats-Subject"
SEQUENCE: Final = "Nats-Sequence"
TIME_STAMP: Final = "Nats-Time-Stamp"
LAST_SEQUENCE: Final = "Nats-Last-Sequence"
NUM_PENDING: Final = "Nats-Num-Pending"
UP_TO_SEQUENCE: Final = "Nats-UpTo-Sequence"
MSG_SIZE: Final = "Nats-Msg-Size"
STREAM_SOURCE: Final = "Nats-Stream-Source"
MARKER_REASON: Final = "Nats-Marker-Reason"
COUNTER_SOURCES: Final = "Nats-Counter-Sources"
SCHEDULER: Final = "Nats-Scheduler"
SCHEDULE_NEXT: Final = "Nats-Schedule-Next"

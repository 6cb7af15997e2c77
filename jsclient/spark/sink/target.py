"""The target stream of the sink, checked on the driver before any task runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..._runtime.retry import PATIENT, Retry
from ...client import JetStream
from ...errors import (
    ConfigError,
    JetStreamError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from ...protocol.models.stream_config import RetentionPolicy
from ...protocol.wire.names import subject_matches
from ...streams.stream import Stream
from ..options.sink import SinkOptions
from .ledger import ensure_bucket
from .row_columns import RowShape

__all__ = ["Target", "look"]

log: logging.Logger = logging.getLogger("jsclient.spark")


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a write, as known before the first row.

    Attributes:
        stream: Name of the stream; None if it depends on the rows.
    """

    stream: str | None


async def look(js: JetStream, options: SinkOptions, shape: RowShape, *, ids: str) -> Target:
    """Check that the target can store the rows with the guarantees of the options.

    Logs a warning if they are weakened, and creates the ledger's bucket if one is needed.

    Raises:
        ConfigError: The target cannot store the rows.
        JetStreamError: Any other failure of a request.
    """
    retry = Retry(PATIENT)
    while True:
        try:
            return await _look(js, options, shape, ids)
        except PermissionDeniedError as error:
            if options.exactly_once == "ledger":
                raise ConfigError(
                    f"{error}: a ledger needs the JetStream API (STREAM.INFO, STREAM.CREATE of its bucket, consumers "
                    "of the target)"
                ) from error
            log.warning("%s: so it is not known for how long the target remembers message ids", error)
            return Target(options.expected_stream)
        except JetStreamError as error:
            if not await retry.again(error):
                raise


async def _look(js: JetStream, options: SinkOptions, shape: RowShape, ids: str) -> Target:
    stream = await _find(js, options, shape)
    if stream is None:
        if options.exactly_once == "ledger":
            raise ConfigError("option 'expectedStream' is missing: the ledger has to know where the rows go")
        return Target(None)
    config = stream.config
    if config.sealed or config.mirror is not None:
        raise ConfigError(f"stream {stream.name!r} takes no messages: it is sealed, or a mirror")
    if shape.subject is not None and not any(
        subject_matches(one, shape.subject) for one in config.subjects or ()
    ):
        raise ConfigError(
            f"option 'subject' is {shape.subject!r}, which stream {stream.name!r} does not take: "
            f"its subjects are {', '.join(config.subjects or ()) or 'none'}"
        )
    if options.exactly_once == "ledger":
        if config.retention != RetentionPolicy.LIMITS:
            raise ConfigError(
                f"stream {stream.name!r} removes what was consumed ({config.retention} retention), so a ledger cannot "
                "tell what was stored: set option 'exactlyOnce' to 'window'"
            )
        await ensure_bucket(js, options.ledger, config.num_replicas or 1)
    if ids != "none":
        _judge_window(stream.name, float(config.duplicate_window or 0), options)
    return Target(stream.name)


async def _find(js: JetStream, options: SinkOptions, shape: RowShape) -> Stream | None:
    name = options.expected_stream
    if name is None:
        if shape.has_subject or shape.subject is None:
            return None
        names = await js.stream_name_by_subject(shape.subject)
        if not names:
            raise ConfigError(
                f"no stream takes the subject {shape.subject!r} of option 'subject': create one, "
                "or look at account, 'domain' and 'prefix'"
            )
        name = names[0]
    try:
        return await js.stream(name)
    except StreamNotFoundError as error:
        raise ConfigError(
            f"stream {name!r} of option 'expectedStream' is not there: create it, "
            "or look at account, 'domain' and 'prefix'"
        ) from error


def _judge_window(name: str, window: float, options: SinkOptions) -> None:
    tries = options.ack_timeout * (options.retries + 1)
    if options.exactly_once == "window" and window < options.min_duplicate_window:
        log.warning(
            "stream %r remembers message ids for %g s: rows that are written again later than that, as after a "
            "restart, are stored twice. Raise its duplicate_window, use exactlyOnce=ledger, or lower "
            "minDuplicateWindow (%g s)",
            name,
            window,
            options.min_duplicate_window,
        )
    elif window < tries:
        log.warning(
            "stream %r remembers message ids for %g s, but a row may be tried for %g s (ackTimeout, retries), and be "
            "stored twice then",
            name,
            window,
            tries,
        )

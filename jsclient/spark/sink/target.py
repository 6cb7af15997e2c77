"""Check before the tasks of a write start what the target cannot store, and what it cannot guarantee."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..._runtime.retry import PATIENT, Retry, is_transient
from ...client import JetStream
from ...errors import ApiError, ConfigError, JetStreamError, PermissionDeniedError, StreamNotFoundError
from ...protocol.models.stream_config import RetentionPolicy, StreamConfig
from ...protocol.wire.names import subject_matches
from ...streams.stream import Stream
from ..options.sink import SinkOptions
from .ledger import ensure_bucket
from .row_columns import RowShape

__all__ = ["Target", "look", "needs_runs"]

log: logging.Logger = logging.getLogger("jsclient.spark")


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a write, as far as the driver knows it."""

    stream: str | None  # the name of the stream, or None if it depends on the rows
    keeps_runs: bool  # true if a record of the runs of each batch is kept


async def look(
    js: JetStream, options: SinkOptions, shape: RowShape, *, ids: str, repeatable: bool = True
) -> Target:
    """Check that the target can store the rows with the guarantees of the options.

    Logs a warning if the guarantees are weakened, and creates the bucket for ledgers and records if it is needed.

    Args:
        js: The connection.
        options: The options of the sink.
        shape: The columns of the rows.
        ids: Where message ids come from, see `SinkOptions.ids`.
        repeatable: Whether the write may be repeated under the same ids. Otherwise its runs need no record.

    Raises:
        ConfigError: The target cannot store the rows.
    """
    record = repeatable and needs_runs(options, ids)
    try:
        return await Retry(PATIENT).run(lambda: _check_target(js, options, shape, ids, record=record))
    except PermissionDeniedError as error:
        if options.exactly_once == "ledger":
            raise ConfigError(
                f"{error}: a ledger needs the JetStream API (STREAM.INFO, STREAM.CREATE of its bucket, consumers "
                "of the target)"
            ) from error
        log.warning("%s: so it is not known for how long the target remembers message ids", error)
        if record:
            _warn_of_moves(error)
        return Target(options.expected_stream, keeps_runs=False)


async def _check_target(
    js: JetStream, options: SinkOptions, shape: RowShape, ids: str, *, record: bool
) -> Target:
    stream = await _find(js, options, shape)
    if stream is None:
        if options.exactly_once == "ledger":
            raise ConfigError("option 'expectedStream' is missing: the ledger has to know where the rows go")
        return Target(None, record and await _keep_runs(js, options, replicas=3))
    config = stream.config
    _check_open(stream.name, config)
    if shape.subject is not None and not any(
        subject_matches(pattern, shape.subject) for pattern in config.subjects or ()
    ):
        raise ConfigError(
            f"option 'subject' is {shape.subject!r}, which stream {stream.name!r} does not take: "
            f"its subjects are {', '.join(config.subjects or ())}. Add it to them, or change the option"
        )
    # With a ledger, tasks read the rows that are stored, so the stream must keep all of them.
    if options.exactly_once == "ledger":
        if config.retention != RetentionPolicy.LIMITS:
            raise ConfigError(
                f"stream {stream.name!r} removes consumed messages ({config.retention} retention), so a ledger cannot "
                "know which rows were stored: set option 'exactlyOnce' to 'window'"
            )
        if (most := config.max_msgs_per_subject or 0) > 0:
            raise ConfigError(
                f"stream {stream.name!r} keeps {most} messages of a subject only, so a ledger would store a row again "
                "that a later one of its batch has replaced: set option 'exactlyOnce' to 'window'"
            )
        await ensure_bucket(js, options.ledger, config.num_replicas or 1)
    if ids != "none":
        _check_window(stream.name, float(config.duplicate_window or 0), options)
    keeps_runs = record and await _keep_runs(js, options, replicas=config.num_replicas or 1)
    return Target(stream.name, keeps_runs)


def _check_open(name: str, config: StreamConfig) -> None:
    """Raise `ConfigError` if the stream accepts no rows, whatever their subjects are."""
    if config.sealed:
        raise ConfigError(f"stream {name!r} is sealed, which cannot be undone: write to another one")
    if config.mirror is not None:
        raise ConfigError(
            f"stream {name!r} is a mirror of {config.mirror.name!r}, and takes no other messages: write to that stream"
        )
    if config.no_ack:
        raise ConfigError(
            f"stream {name!r} does not ack messages (no_ack=True), so nothing says which rows are stored: "
            "set no_ack=False, or write to another one"
        )
    if not config.subjects:
        raise ConfigError(
            f"stream {name!r} takes no messages but those of its sources, because it has no subjects: give it "
            "subjects, or write to another one"
        )


def needs_runs(options: SinkOptions, ids: str) -> bool:
    """Return True if a repeated batch must be compared with earlier runs, because its ids don't identify moved rows."""
    return ids == "content" and options.dedup_scope == "partition" and options.exactly_once != "none"


async def _keep_runs(js: JetStream, options: SinkOptions, replicas: int) -> bool:
    """Create the bucket for the record of runs. Returns whether a record can be kept."""
    try:
        try:
            await ensure_bucket(js, options.ledger, replicas)
        except ApiError as error:
            if is_transient(error) or replicas == 1:
                raise
            await ensure_bucket(js, options.ledger, 1)  # there are not enough servers for the replicas
    except (ApiError, PermissionDeniedError, ConfigError) as error:
        if is_transient(error):
            raise
        _warn_of_moves(error)
        return False
    return True


def _warn_of_moves(error: JetStreamError) -> None:
    log.warning(
        "no record of the runs of a batch can be kept (%s). If a batch is repeated with its rows in other partitions, "
        "as after another join strategy, they are stored twice. Let the user create and use the bucket of option "
        "'ledger', or use a column msg_id, dedup=source or dedupScope=epoch",
        error,
    )


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
            f"stream {name!r} of option 'expectedStream' does not exist: create it, "
            "or look at account, 'domain' and 'prefix'"
        ) from error


def _check_window(name: str, window: float, options: SinkOptions) -> None:
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

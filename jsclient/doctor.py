"""Finds problems of a server, a stream or a consumer. Nothing is changed on the server.

::

    for finding in await jsclient.doctor.examine(js, "ORDERS", "billing"):
        print(finding.level, finding.what, finding.evidence, finding.fix)

Consumers are checked by the same rules as in the event `ConsumerStalled`. The command ``jsclient doctor --server URL
[STREAM [CONSUMER]]`` prints the findings.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ._exports import set_module
from .client import JetStream
from .consumers.look import look_at_consumer, stream_info
from .errors import JetStreamError, StreamNotFoundError, counted
from .protocol.consumers.diagnosis import Finding, cannot_look, is_cause
from .protocol.models.account import AccountInfo
from .protocol.models.consumer_limit import consumer_limit
from .protocol.models.stream import StreamInfo

__all__ = ["Finding", "examine"]

_NEAR = 0.9  # warn once this fraction of a limit is used
_CLOCK = 2.0  # acceptable difference between the clocks of client and server, in seconds


async def examine(js: JetStream, stream: str | None = None, consumer: str | None = None) -> list[Finding]:
    """Look for problems of the server, the account, and optionally a stream and a consumer. Nothing is changed.

    Args:
        js: The client, which must be connected to the server.
        stream: Name of the stream to check. By default, no stream is checked.
        consumer: Name of the consumer to check. By default, no consumer is checked.

    Returns:
        A list of findings. A finding with the level "ok" describes something that works. A failed request is also
        reported as a finding.

    Raises:
        ValueError: A consumer is given without its stream.
        ClosedError: The connection is closed.
    """
    if consumer is not None and stream is None:
        raise ValueError("a consumer is given without its stream")
    findings = await _server(js)
    if stream is not None and not any(finding.code == "no_jetstream" for finding in findings):
        exists = await _stream(js, stream, findings)
        if consumer is not None and exists:
            await _consumer(js, stream, consumer, findings)
    return findings


async def _server(js: JetStream) -> list[Finding]:
    try:
        seconds = await js.ping()
    except JetStreamError as error:
        return [
            Finding(code="no_server", level="error", what="the server does not answer", evidence=str(error))
        ]
    answer = f"nats-server {js.server_version or 'of unknown version'} answers in {1000 * seconds:.1f} ms"
    findings = [Finding(code="server", level="ok", what=answer)]
    try:
        account = await js.account_info()
    except JetStreamError as error:
        findings.append(
            Finding(
                code="no_jetstream",
                level="error",
                what="JetStream does not answer for this account",
                evidence=str(error),
                fix="enable JetStream on the server and for the account, and look at domain, prefix and the rights of "
                "the user",
            )
        )
        return findings
    assets = f"{_count(account.streams, 'stream')}, {_count(account.consumers, 'consumer')}"
    used = f"{assets}, {account.storage:,} bytes in files, "
    findings.append(
        Finding(
            code="jetstream",
            level="ok",
            what="JetStream is on",
            evidence=f"{used}{account.memory:,} in memory",
        )
    )
    return findings + _account_limits(account)


def _account_limits(account: AccountInfo) -> list[Finding]:
    findings = []
    for name, tier in [("", account), *(account.tiers or {}).items()]:
        limits = tier.limits
        for what, used, most in (
            ("bytes in files", tier.storage, limits.max_storage),
            ("bytes in memory", tier.memory, limits.max_memory),
            ("streams", tier.streams, limits.max_streams),
            ("consumers", tier.consumers, limits.max_consumers),
        ):
            where = f"the account{f' (tier {name})' if name else ''}"
            findings += _near("account_limit", where, what, used, most, fix="raise the limit of the account")
    return findings


def _near(code: str, where: str, what: str, used: int, most: int | None, *, fix: str) -> list[Finding]:
    if most is None or most <= 0 or used < _NEAR * most:
        return []
    full = "has reached" if used >= most else "is near"
    return [
        Finding(
            code=code,
            level="warning",
            what=f"{where} {full} its limit of {what}",
            evidence=f"{used:,} of {most:,}",
            fix=fix,
        )
    ]


async def _stream(js: JetStream, name: str, findings: list[Finding]) -> bool:
    """Check a stream, and add to the findings. Returns False if it does not exist."""
    requested_at = datetime.now(UTC)
    try:
        info = await stream_info(js._context, name)  # noqa: SLF001  internal to this package
    except JetStreamError as error:
        findings.append(cannot_look(error, name, ""))
        return not isinstance(error, StreamNotFoundError)
    state = info.state
    last = "" if state.last_ts is None or info.ts is None else f", the last {_ago(info.ts, state.last_ts)}"
    findings.append(
        Finding(
            code="stream",
            level="ok",
            what=f"stream {name!r} has {_count(state.messages, 'message')}",
            evidence=f"sequences {state.first_seq} to {state.last_seq}{last}; {state.bytes:,} bytes; "
            f"{_count(state.consumer_count, 'consumer')}",
        )
    )
    findings += _clock(info, requested_at)
    findings += _stream_limits(info, js.server_version)
    return True


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ago(now: datetime, moment: datetime) -> str:
    return f"{(now - moment).total_seconds():.0f} s ago"


def _clock(info: StreamInfo, requested_at: datetime) -> list[Finding]:
    """Compare the clocks of the server and of this machine.

    The timestamp of the answer must be between the time of the request and the current time.
    """
    if info.ts is None:
        return []
    here = datetime.now(UTC)
    late = max((requested_at - info.ts).total_seconds(), (info.ts - here).total_seconds())
    if late < _CLOCK:
        return []
    return [
        Finding(
            code="clock",
            level="warning",
            what=f"the clock of the server and the one here differ by {late:.0f} s",
            evidence=f"{info.ts:%Y-%m-%d %H:%M:%S} there, {here:%Y-%m-%d %H:%M:%S} here (UTC)",
            fix="set both by NTP: start times, pauses and schedules depend on it",
        )
    ]


def _stream_limits(info: StreamInfo, version: str) -> list[Finding]:
    config, state, name = info.config, info.state, f"stream {info.name!r}"
    findings = _near(
        "consumer_limit", name, "consumers", state.consumer_count, config.max_consumers,
        fix="delete consumers that nobody uses, or raise max_consumers",
    ) or _near_default(info, version)  # fmt: skip
    then = "refuses new messages" if str(config.discard) == "new" else "removes the oldest messages"
    fix = f"a full stream {then}: raise the limit, set max_age, or purge"
    findings += _near("stream_limit", name, "messages", state.messages, config.max_msgs, fix=fix)
    return findings + _near("stream_limit", name, "bytes", state.bytes, config.max_bytes, fix=fix)


def _near_default(info: StreamInfo, version: str) -> list[Finding]:
    """Check the number of consumers against the default limit of the server.

    The server doesn't report this limit, which its operator may have changed.
    """
    if (info.config.max_consumers or 0) > 0:
        return []
    return _near(
        "consumer_limit",
        f"stream {info.name!r}",
        "consumers (the server's default, where max_consumers is not set)",
        info.state.consumer_count,
        consumer_limit(info, version),
        fix="delete consumers that nobody uses, or raise default_max_consumers in the limits of the server",
    )


async def _consumer(js: JetStream, stream: str, consumer: str, findings: list[Finding]) -> None:
    seen = await look_at_consumer(js._context, stream, consumer)  # noqa: SLF001  internal to this package
    if seen is None:
        findings.append(Finding(code="no_server", level="error", what="the connection was lost meanwhile"))
        return
    if seen.info is not None:
        info = seen.info
        well = not any(is_cause(finding) for finding in seen.findings)
        kind = "pushed to" if info.is_push else "pulled from"
        findings.append(
            Finding(
                code="consumer",
                level="ok",
                what=f"consumer {consumer!r} is {kind}"
                + (", and nothing shows why it should stand still" if well else ""),
                evidence=f"{counted(info.num_pending, 'message waits', 'messages wait')}, "
                f"{counted(info.num_ack_pending, 'is', 'are')} delivered and not acked "
                f"({info.num_redelivered} more than once), "
                f"{counted(info.num_waiting, 'pull request waits', 'pull requests wait')}",
            )
        )
    findings += seen.findings


set_module(__name__, (Finding, examine))

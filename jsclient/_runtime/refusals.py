"""Explains refusals by looking up the limit that was reached, or the other consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..errors import ApiError, ConsumerLimitError, JetStreamError, RequestTimeoutError
from ..protocol.models.account import AccountInfo, storage_advice
from ..protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ..protocol.models.consumer_checks import queue_advice
from ..protocol.wire.api import page_items, page_request
from ..protocol.wire.codec import from_wire

if TYPE_CHECKING:
    from .context import Context

__all__ = ["explained", "unanswered"]

_NO_MEMORY: Final = 10028
_TAKEN: Final = frozenset({10099, 10100})
_TIMEOUT: Final = 1.0  # seconds for each request
_SHORT_TIMEOUT: Final = 0.25  # seconds for a request that starts after the caller's timeout


async def explained(context: Context, error: ApiError, body: Any) -> ApiError:
    """Return the error with advice from the server's state, or the same error if the state does not explain it.

    Args:
        context: Sends the request. A missing permission is not reported.
        error: A refusal with a code of ``EXPLAINED`` in `context`.
        body: The request that was refused.
    """
    try:
        if isinstance(error, ConsumerLimitError):
            stream = await _ask(context, context.api.stream_info(error.stream))
            return error.with_counts(
                int(stream["config"]["max_consumers"]), int(stream["state"]["consumer_count"])
            )
        if error.err_code in _TAKEN:
            return error.with_advice(await _taken(context, error, body["config"]) or error.advice)
        account = from_wire(AccountInfo, await _ask(context, context.api.account_info()))
    except (JetStreamError, KeyError, TypeError, ValueError):
        return error  # the permission is missing, or no reply arrived
    in_memory = error.err_code == _NO_MEMORY
    return error.with_advice(storage_advice(account, reserved=_reserved(body), in_memory=in_memory))


async def unanswered(context: Context, error: RequestTimeoutError, subject: str) -> RequestTimeoutError:
    """Return the error of an unanswered publish, with the reason if no stream has its subject.

    The server answers "no responders" at once, unless a client subscribes to the subject, such as a topic's reader.
    """
    connection = context.connection
    if error.why or not connection.is_connected or connection.outbox is None:
        return error
    try:
        answer = await context.call(
            context.api.stream_names(),
            {"subject": subject},
            timeout=_SHORT_TIMEOUT,
            what="stream of the subject",
            optional=True,
        )
    except JetStreamError:
        return error  # the permission is missing, or no reply arrived this time either
    if answer.get("streams"):
        return error
    why = (
        f"no stream has the subject {subject!r} (was its stream deleted?), and another client listens on it, so that "
        "the server does not refuse the message"
    )
    return RequestTimeoutError(error.what, error.timeout, why)


async def _ask(context: Context, subject: str, body: Any = None) -> dict[str, Any]:
    return await context.call(
        subject, body, timeout=min(context.timeout, _TIMEOUT), what="reason of the refusal", optional=True
    )


async def _taken(context: Context, error: ApiError, config: Mapping[str, Any]) -> str:
    answer = await _ask(context, context.api.consumer_list(error.stream), page_request())
    others = [from_wire(ConsumerInfo, item) for item in page_items(answer, "consumers")]
    return queue_advice(from_wire(ConsumerConfig, dict(config)), others)


def _reserved(body: Any) -> int:
    """Return the number of bytes that the stream of a request would reserve."""
    config = body if isinstance(body, dict) else {}
    size, replicas = config.get("max_bytes"), config.get("num_replicas")
    if not isinstance(size, int) or size < 0:
        return 0
    return size * (replicas if isinstance(replicas, int) and replicas > 0 else 1)

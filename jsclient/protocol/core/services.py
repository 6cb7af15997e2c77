"""Services: names, subjects, and the messages of their discovery. Source: ADR-32."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ...errors import ConfigError, InvalidNameError, ProtocolError
from ..wire.codec import Model, Seconds, Time, decode, encode, from_wire
from ..wire.names import check_filter_subject, check_queue

__all__ = [
    "ERROR", "ERROR_CODE", "QUEUE", "VERBS", "EndpointInfo", "EndpointStats", "ServiceInfo", "ServiceStats",
    "check_group", "check_metadata", "check_queue_group", "check_service_name", "check_version",
    "endpoint_subject", "error_headers", "ping_response", "read_info", "read_stats", "response", "verb_subjects",
]  # fmt: skip

QUEUE: Final = "q"
"""Default queue group of endpoints, which is the same in all NATS clients."""

ERROR: Final = "Nats-Service-Error"
"""Name of the header that contains the description of a service's error."""

ERROR_CODE: Final = "Nats-Service-Error-Code"
"""Name of the header that contains the code of a service's error."""

VERBS: Final = ("PING", "INFO", "STATS")
"""The discovery verbs that every instance of a service responds to."""

_INFO: Final = "io.nats.micro.v1.info_response"
_STATS: Final = "io.nats.micro.v1.stats_response"

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_VERSION = re.compile(  # https://semver.org
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


class EndpointInfo(Model, frozen=True, kw_only=True):
    """An endpoint of a service, as listed in `ServiceInfo`.

    Attributes:
        name: Name of the endpoint. It need not be unique.
        subject: Subject on which the endpoint receives requests. It may contain wildcards.
        queue_group: Queue group whose members share the requests, or "" if each instance receives all requests.
        metadata: Strings supplied by the developer of the service, or None if there are none.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {"metadata": {}}

    name: str = ""
    subject: str = ""
    queue_group: str = ""
    metadata: dict[str, str] | None = None


class EndpointStats(Model, frozen=True, kw_only=True):
    """Statistics of an endpoint, counted by its instance since the endpoint was added or last reset.

    It is part of `ServiceStats`.

    Attributes:
        name: Name of the endpoint.
        subject: Subject on which the endpoint receives requests.
        queue_group: Queue group whose members share the requests, or "" if each instance receives all requests.
        num_requests: Number of requests that have been handled, including those that failed.
        num_errors: Number of requests whose handler raised an exception, such as a `ServiceError`.
        last_error: The most recent error in the form ``code: description``, or "" if there was none.
        processing_time: Total time spent in handlers, in seconds.
        average_processing_time: Average time per request, in seconds. 0 if there were no requests.
        data: JSON value returned by the function that was passed to `Service.add_stats_data`, or None.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {"last_error": ""}

    name: str = ""
    subject: str = ""
    queue_group: str = ""
    num_requests: int = 0
    num_errors: int = 0
    last_error: str | None = None
    processing_time: Seconds | None = None
    average_processing_time: Seconds | None = None
    data: Any = None


class ServiceInfo(Model, frozen=True, kw_only=True):
    """A running instance of a service and its endpoints. Returned by `Core.services`.

    The field ``type`` identifies the kind of response in the service protocol.

    Attributes:
        name: Name of the service, which is shared by all its instances.
        id: Unique ID of this instance.
        version: Semantic version of this instance, such as ``1.2.0``.
        description: Human-readable description, or "" if there is none.
        metadata: Strings supplied by the developer of the service, or None if there are none.
        endpoints: Endpoints of this instance, in the order in which they were added.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {"metadata": {}, "endpoints": []}

    name: str = ""
    id: str = ""
    version: str = ""
    description: str = ""
    metadata: dict[str, str] | None = None
    endpoints: list[EndpointInfo] | None = None
    type: str = _INFO


class ServiceStats(Model, frozen=True, kw_only=True):
    """Statistics of a running instance of a service. Returned by `Core.service_stats`.

    For ``name``, ``id``, ``version``, ``metadata`` and ``type``, see `ServiceInfo`.

    Attributes:
        started: Time at which the instance was started, or its statistics were last reset.
        endpoints: Statistics of each endpoint, in the order in which the endpoints were added.
    """

    always_sent: ClassVar[Mapping[str, Any]] = {"metadata": {}, "endpoints": []}

    name: str = ""
    id: str = ""
    version: str = ""
    started: Time | None = None
    metadata: dict[str, str] | None = None
    endpoints: list[EndpointStats] | None = None
    type: str = _STATS


def check_service_name(name: str, kind: str = "service") -> str:
    """Return the name of a service or an endpoint if it is valid.

    Raises:
        InvalidNameError: The name is empty, or contains characters other than letters, digits, ``-`` and ``_``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidNameError(kind, name, "a name is letters, digits, '-' and '_', at least one (ADR-32)")
    return name


def check_version(version: str) -> str:
    """Return the version of a service if it is a semantic version. Raises `ConfigError` if it is not."""
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ConfigError(f"version is {version!r:.60}: a semantic version is needed, such as '1.0.0'")
    return version


def check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of the metadata. Raises `ConfigError` if it is not a mapping from str to str."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping) or not all(
        isinstance(text, str) for pair in metadata.items() for text in pair
    ):
        raise ConfigError("metadata: a mapping from str to str is needed")
    return dict(metadata)


def check_group(prefix: str) -> str:
    """Return the prefix of a group of endpoints, which is a subject without ``>``. Raises `InvalidNameError`."""
    check_filter_subject(prefix)
    if prefix.endswith(">"):
        raise InvalidNameError("group", prefix, "its subjects continue after it, so it cannot end with '>'")
    return prefix


def endpoint_subject(prefix: str, subject: str) -> str:
    """Return the subject of an endpoint in a group. Raises `InvalidNameError` if it is not valid."""
    return check_filter_subject(f"{prefix}.{subject}" if prefix else subject)


def check_queue_group(queue: str) -> str:
    """Return the name of a queue group, or "" for none. Raises `InvalidNameError`."""
    return check_queue(queue) if queue else ""


def verb_subjects(verb: str, name: str, id: str) -> list[str]:
    """Return the subjects on which an instance answers a verb: for all services, for its name, for itself."""
    return [f"$SRV.{verb}", f"$SRV.{verb}.{name}", f"$SRV.{verb}.{name}.{id}"]


def response(model: ServiceInfo | ServiceStats) -> bytes:
    """Return the answer to ``INFO`` or ``STATS``. Raises `ConfigError` for data that is not JSON."""
    return encode(model)


def ping_response(info: ServiceInfo) -> bytes:
    """Return the answer to ``PING``."""
    return encode(
        {
            "type": "io.nats.micro.v1.ping_response",
            "name": info.name,
            "id": info.id,
            "version": info.version,
            "metadata": info.metadata or {},
        }
    )


def read_info(data: bytes) -> ServiceInfo:
    """Read an answer to ``INFO``. Raises `ProtocolError` if it is not valid."""
    info = from_wire(ServiceInfo, decode(data))
    _check_instance(info, _INFO)
    return info


def read_stats(data: bytes) -> ServiceStats:
    """Read an answer to ``STATS``. Raises `ProtocolError` if it is not valid."""
    stats = from_wire(ServiceStats, decode(data))
    _check_instance(stats, _STATS)
    return stats


def _check_instance(one: ServiceInfo | ServiceStats, kind: str) -> None:
    """Raise `ProtocolError` if an answer is of another kind, or does not name an instance of a service."""
    if one.type != kind or not one.id or not _NAME.fullmatch(one.name):
        raise ProtocolError(f"an answer of the type {one.type!r:.60} from the service {one.name!r:.60}")


def error_headers(code: int, description: str) -> dict[str, str]:
    """Return the headers of an error answer. The description is reduced to one printable line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in description).split())
    return {ERROR: line, ERROR_CODE: str(code)}

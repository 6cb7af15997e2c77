"""Spark's access to the server of the demonstration. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

__all__ = ["SECRET", "spark_access", "without_user"]

SECRET = "JSCLIENT_DEMO_SECRET"  # an environment variable


def spark_access(urls: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options for source and sink, and environment variables for driver and executors.

    Spark's plans would show a user in a URL. So the user becomes an option, and the password or token a variable.
    """
    options = {"servers": ",".join(without_user(url) for url in urls)}
    for url in urls:
        parts = urlsplit(_whole(url))
        if parts.username is None:
            continue
        if parts.password is None:
            return {**options, "tokenEnv": SECRET}, {SECRET: parts.username}
        user = {"user": parts.username, "passwordEnv": SECRET}
        return {**options, **user}, {SECRET: parts.password}
    return options, {}


def without_user(url: str) -> str:
    """The URL without user and password."""
    parts = urlsplit(_whole(url))
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _whole(url: str) -> str:
    return url if "://" in url else f"nats://{url}"

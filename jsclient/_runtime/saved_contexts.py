"""The contexts of the command line tool ``nats``, which are files with options to connect.

Source: natscontext of nats-io/jsm.go.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections import UserString
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from ..protocol.connection.urls import IDENTITY, server_urls, shared_identity
from ..protocol.wire.checks import no_such_name
from .connection.credentials_file import read_file

__all__ = ["with_context"]

_SHOWN: Final = {
    "name",
    "description",
    "color_scheme",
}  # these fields only affect the output of the nats tool

_UNSUPPORTED: Final = {
    "socks_proxy": "jsclient has no SOCKS proxy",
    "nsc": "jsclient does not run nsc: write the credentials into a file, and its path into creds",
    "jetstream_event_prefix": "jsclient reads the events of JetStream under $JS.EVENT only",
    **dict.fromkeys(
        (
            "windows_cert_store",
            "windows_cert_match_by",
            "windows_cert_match",
            "windows_ca_certs_match",
        ),
        "jsclient does not read the certificate store of Windows: use ca, cert and key",
    ),
}

_USED: Final = {
    "url": "servers",
    "token": "token",
    "user": "user",
    "password": "password",
    "creds": "user_credentials",
    "nkey": "nkeys_seed",
    "user_jwt": "user_jwt_cb",
    "user_seed": "nkeys_seed_str",
    "ca": "tls",
    "cert": "tls_cert",
    "key": "tls_key",
    "tls_first": "tls_handshake_first",
    "jetstream_domain": "domain",
    "jetstream_api_prefix": "prefix",
    "inbox_prefix": "inbox_prefix",
}
"""The option of `connect` for each field."""

_FILES: Final = {"creds", "nkey", "ca", "cert", "key"}
_SECRETS: Final = {"token", "password", "creds", "nkey", "user_jwt", "user_seed"}
_WAYS: Final = ("user", "creds", "nkey", "user_jwt")

# If the caller passes one option of a group, the other options of the group aren't taken from the context.
_GROUPS: Final = (IDENTITY, {"tls", "tls_cert", "tls_key"}, {"domain", "prefix"})

_REFERENCE: Final = re.compile(r"(?i)(op|nsc|env|data|file):(?://)?")


def with_context(context: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options of `connect`, completed by the options in a context of ``nats``.

    Args:
        context: The name of the context, or True for the selected context.
        given: The given options, with ``servers`` as a list of URLs. They take precedence over the context.

    Raises:
        ConfigError: The context does not exist, its file is malformed, or it has a field that cannot be used.
    """
    folder = _folder()
    name = _selected(folder) if context is True else _checked_name(context)
    path = folder / "context" / f"{name}.json"
    read = _options(_fields(path, folder), f"the context {name!r} ({path})")
    options, chosen = dict(given), set(given)
    # A user in the URLs counts as a given option, so the identity of the context is not used.
    if shared_identity(given.get("servers", ()), {}):
        chosen.add("user")
    elif chosen & IDENTITY == {"password"} and "user" in read:
        # If a password is given without a user, it belongs to the user of the context.
        options["user"] = read["user"]
    for group in _GROUPS:
        if chosen & group:
            read = {option: value for option, value in read.items() if option not in group}
    return {**read, **options}


def _folder() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "nats"


def _selected(folder: Path) -> str:
    text, _ = read_file(str(folder / "context.txt"))
    if not text.strip():
        raise ConfigError(f"no context is selected in {folder / 'context.txt'}: {_known(folder)}")
    return _checked_name(text.strip())


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(
            f"context is {type(name).__name__}: it must be the name of a context, or True for the selected one"
        )
    if not name or ".." in name or "/" in name or "\\" in name or "\0" in name:
        raise ConfigError(f"context {name!r} is not the name of a context")
    return name


def _known(folder: Path) -> str:
    """Return a text that names the existing contexts."""
    names = sorted(path.stem for path in (folder / "context").glob("*.json"))
    if len(names) < 2:
        return f"the only context is {names[0]}" if names else "there are no contexts"
    return f"the contexts are {', '.join(names[:-1])} and {names[-1]}"


def _fields(path: Path, folder: Path) -> dict[str, Any]:
    """Return the fields of a context that are not empty. No error shows a value."""
    text, problem = read_file(str(path))
    if problem:
        raise ConfigError(f"the context cannot be read from {path}: {problem}; {_known(folder)}")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} is no context of nats: a JSON object is needed")
    return {name: value for name, value in fields.items() if not _is_empty(value)}


def _is_empty(value: object) -> bool:
    return value is None or value is False or value in ("", [])


def _options(fields: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return the options of `connect` for the fields of a context.

    Raises `ConfigError` with the name of a wrong field.
    """
    known = _SHOWN | _USED.keys() | _UNSUPPORTED.keys()
    for name, value in fields.items():
        if name not in known:
            raise ConfigError(no_such_name(shown, "field", name, known))
        if name in _UNSUPPORTED:
            raise ConfigError(f"{name} of {shown} cannot be used: {_UNSUPPORTED[name]}")
        if name in _USED and not isinstance(value, bool if name == "tls_first" else str):
            needs = "true or false" if name == "tls_first" else "a text"
            raise ConfigError(f"{name} is {type(value).__name__} in {shown}: it must be {needs}")
    # The nats tool never saves several identities. If a file has several, it is unclear which one to use.
    if len(ways := [name for name in _WAYS if name in fields]) > 1:
        raise ConfigError(f"{' and '.join(ways)} are all set in {shown}: keep one identity")
    if "user_seed" in fields and "user_jwt" not in fields:
        raise ConfigError(f"user_seed of {shown} needs user_jwt: for an nkey alone, use nkey")
    options = {_USED[name]: _value(name, fields[name], shown) for name in fields if name in _USED}
    if isinstance(options.get("nkeys_seed"), UserString):
        options["nkeys_seed_str"] = options.pop("nkeys_seed").data
    if (jwt := options.get("user_jwt_cb")) is not None:
        options["user_jwt_cb"] = str(jwt).encode
    if "servers" in options:
        options["servers"] = server_urls(options["servers"])
    return options


def _value(name: str, value: Any, shown: str) -> Any:
    """Return the value of a field. The text of credentials instead of a path is a `UserString`."""
    scheme = _REFERENCE.match(value) if name in _FILES | _SECRETS else None
    kind = scheme[1].lower() if scheme else ""
    if kind in {"op", "nsc"} or (kind in {"env", "data"} and name not in _SECRETS):
        raise ConfigError(f"{name} of {shown} begins with {kind}:, which jsclient does not resolve")
    rest = value[scheme.end() :] if scheme else value
    if name in _FILES:
        return UserString(_text(kind, rest, name, shown)) if kind in {"env", "data"} else _path(rest)
    return _text(kind, rest, name, shown).rstrip("\r\n") if kind else value


def _text(kind: str, rest: str, name: str, shown: str) -> str:
    """Return the text that a reference stands for. No error shows the text."""
    if kind == "env":
        text, problem = os.environ.get(rest, ""), f"the environment variable {rest} is not set"
    elif kind == "file":
        text, problem = read_file(_path(rest))
        problem = f"the file {_path(rest)!r} cannot be read: {problem}"
    else:  # RFC 2397: data:[media type];base64,text
        header, _, payload = rest.partition(",")
        problem = "the data must have the form data:;base64,text"
        try:
            text = base64.b64decode(payload).decode() if "base64" in header.split(";") else ""
        except ValueError:
            text = ""
    if not text:
        raise ConfigError(f"{name} of {shown} cannot be used: {problem}")
    return text


def _path(text: str) -> str:
    """Return a path with the values of environment variables, and with the home directory instead of ``~``."""
    text = os.path.expandvars(text)
    return f"{Path.home()}{text[1:]}" if text.startswith("~") else text

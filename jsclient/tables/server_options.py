"""A parser for options, and the connection options that sources, sinks and helpers share.

Spark passes options as strings, under names in any case. Every error is a `ConfigError` that names the option, its
value, and the allowed values. Secrets are never shown. Paths and environment variables are resolved on the machine that
connects, which is the driver or an executor.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ConfigError, PermissionDeniedError
from ..protocol.wire.api import DEFAULT_PREFIX
from ..protocol.wire.names import check_publish_subject
from .kafka_names import instead_of_kafkas
from .providers import provided

__all__ = ["OptionReader", "ServerOptions", "not_permitted"]

# Options that Spark may add on its own.
_SPARKS = frozenset({"checkpointlocation", "path", "queryname"})
# Properties of a table. Spark adds them if the source is used by CREATE TABLE.
_OF_TABLES = frozenset({"provider", "owner", "location", "comment", "external", "is_managed_location"})
_OF_TABLE_OPTIONS = "option."
# Options that only pass a value on to `jsclient.connect`.
_CLIENT = "nats."
_CLIENT_SECONDS = {
    "nats.connectTimeout": "connect_timeout",
    "nats.pingInterval": "ping_interval",
    "nats.reconnectTimeWait": "reconnect_time_wait",
    "nats.reconnectMaxWait": "reconnect_max_wait",
    "nats.wait": "wait",
}
_SIZE = re.compile(r"([0-9]+)\s*(|b|k|kb|kib|m|mb|mib|g|gb|gib)", re.IGNORECASE)
_USER_INFO = re.compile(r"//[^/@]*@")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class OptionReader:
    """Parser for the options of one source or sink.

    Read each known option, then call `finish` to refuse the options that were not read.
    """

    def __init__(self, options: Mapping[str, str], what: str) -> None:
        self._values = {name.lower(): (name, str(value)) for name, value in options.items()}
        self._what = what
        self._known: list[str] = []
        for lower, (name, _) in self._values.items():
            if (instead := instead_of_kafkas(lower)) is not None:
                raise ConfigError(f"{what} has no option {name!r}{instead}")

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the value of an option without surrounding spaces, or ``default`` if the option is not set.

        Raises `ConfigError` for an empty value.
        """
        self._known.append(name)
        entry = self._values.get(name.lower())
        if entry is None:
            return default
        value = entry[1].strip()
        if not value:
            raise ConfigError(f"option {name!r} is empty: omit it, or set a value")
        return value

    def required(self, name: str, why: str) -> str:
        value = self.text(name)
        if value is None:
            raise ConfigError(f"option {name!r} is missing{self._misspelt(name)}: {why}")
        return value

    def _misspelt(self, name: str) -> str:
        known = {one.lower() for one in self._known}
        near = difflib.get_close_matches(name.lower(), self._values.keys() - known, 1, 0.85)
        return f", and there is no option {self._values[near[0]][0]!r}" if near else ""

    def names(self, name: str) -> tuple[str, ...]:
        """Return the parts of a comma-separated list, or () if the option is not set."""
        value = self.text(name)
        if value is None:
            return ()
        parts = tuple(part.strip() for part in value.split(","))
        if not all(parts):
            raise ConfigError(f"option {name!r} is {value!r}: one of its parts is empty")
        return parts

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        allowed = list(choices)
        value = (self.text(name, default) or default).lower()
        if value not in allowed:
            raise ConfigError(f"option {name!r} is {value!r}: it must be {' or '.join(allowed)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def read_count(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**63 - 1
    ) -> int | None:
        """Return an integer within bounds, or ``default`` if the option is not set."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) <= most:
            raise ConfigError(f"option {name!r} is {value!r}: an integer from {least} to {most} is needed")
        return int(value)

    def integer(self, name: str) -> int | None:
        """Return an integer, possibly negative, or None if the option is not set."""
        value = self.text(name)
        if value is not None and not re.fullmatch("-?[0-9]{1,18}", value, re.ASCII):
            raise ConfigError(f"option {name!r} is {value!r}: an integer is needed")
        return None if value is None else int(value)

    def size(self, name: str, default: int | None = None) -> int | None:
        """Return a number of bytes, written as ``1048576``, ``8m`` or ``8MiB``."""
        value = self.text(name)
        if value is None:
            return default
        match = _SIZE.fullmatch(value)
        size = 0 if match is None else int(match[1]) * _UNITS[match[2].lower()[:1].replace("b", "")]
        if not 0 < size < 2**63:
            raise ConfigError(
                f"option {name!r} is {value!r}: a number of bytes is needed, for example 8388608 or 8m"
            )
        return size

    def seconds(self, name: str, default: float) -> float:
        """Return a number of seconds above 0."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number < 1e9:
            raise ConfigError(f"option {name!r} is {value!r}: a number of seconds over 0 is needed")
        return number

    def refuse(self, name: str, because: str) -> None:
        """Raise `ConfigError` if the option is set."""
        if self.text(name) is not None:
            raise ConfigError(f"option {name!r} {because}")

    def finish(self) -> None:
        """Raise `ConfigError` if an option was not read."""
        known = {name.lower(): name for name in self._known}
        for lower, (name, _) in self._values.items():
            if lower in known or lower in _SPARKS | _OF_TABLES or lower.startswith(_OF_TABLE_OPTIONS):
                continue
            if lower.startswith(_CLIENT):
                ours = ", ".join(sorted({one for one in self._known if one.startswith(_CLIENT)}))
                raise ConfigError(f"{self._what} has no option {name!r}: options of the client are {ours}")
            near = difflib.get_close_matches(lower, known, 1)
            hint = f": did you mean {known[near[0]]!r}?" if near else ""
            raise ConfigError(f"{self._what} has no option {name!r}{hint}")


def not_permitted(option: str, error: PermissionDeniedError, why: str) -> ConfigError:
    """Return the `ConfigError` for a missing permission."""
    verb = "publish to" if error.operation == "publish" else "subscribe to"
    return ConfigError(
        f"option {option!r}: {why}, but the server does not let this user {verb} {error.subject!r}: allow it"
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The servers, the credentials and the settings of a connection.

    Secrets are files or names of environment variables wherever possible.
    """

    servers: tuple[str, ...]  # URLs
    credentials_file: str | None = None  # a ``.creds`` file
    nkey_seed_file: str | None = None  # a file with an nkey seed
    user: str | None = None  # a user name. Needs ``password`` or ``password_env``, too
    password: str | None = None
    password_env: str | None = None  # name of the environment variable with the password
    token: str | None = None
    token_env: str | None = None  # name of the environment variable with the token
    token_provider: str | None = None  # a function that returns the token, as ``package.module:function``
    # A function that returns credentials, as ``package.module:function``.
    credentials_provider: str | None = None
    tls_ca: str | None = None  # tls_ca, tls_cert and tls_key are files. Each of them requires TLS
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_hostname: str | None = None  # the name in the server's certificate
    tls_handshake_first: bool = False
    domain: str | None = None  # domain and prefix as in `jsclient.connect`
    prefix: str = DEFAULT_PREFIX
    inbox_prefix: str = "_INBOX"  # prefix of reply subjects
    timeout: float = 5.0  # timeout of an API request, and of one attempt to connect, in seconds
    client: tuple[tuple[str, Any], ...] = ()  # the options ``nats.…``, as arguments of `jsclient.connect`

    @classmethod
    def of(cls, options: Mapping[str, str] | str) -> ServerOptions:
        """Parse the options of a helper: a mapping, or only URLs separated by commas."""
        reader = OptionReader({"servers": options} if isinstance(options, str) else options, "the connection")
        read = cls.read(reader)
        reader.finish()
        return read

    @classmethod
    def read(cls, reader: OptionReader) -> ServerOptions:
        """Parse the connection options.

        Raises `ConfigError` if an option is missing or invalid, or if options contradict each other.
        """
        reader.required("servers", "set the URL of a NATS server, or several separated by commas")
        read = cls(
            servers=reader.names("servers"),
            credentials_file=reader.text("credentialsFile"),
            nkey_seed_file=reader.text("nkeySeedFile"),
            user=reader.text("user"),
            password=reader.text("password"),
            password_env=reader.text("passwordEnv"),
            token=reader.text("token"),
            token_env=reader.text("tokenEnv"),
            token_provider=reader.text("tokenProvider"),
            credentials_provider=reader.text("credentialsProvider"),
            tls_ca=reader.text("tlsCa"),
            tls_cert=reader.text("tlsCert"),
            tls_key=reader.text("tlsKey"),
            tls_hostname=reader.text("tlsHostname"),
            tls_handshake_first=reader.flag("tlsHandshakeFirst", default=False),
            domain=reader.text("domain"),
            prefix=reader.text("prefix", DEFAULT_PREFIX) or DEFAULT_PREFIX,
            inbox_prefix=reader.text("inboxPrefix", "_INBOX") or "_INBOX",
            timeout=reader.seconds("timeout", 5.0),
            client=_read_client(reader),
        )
        read._check()
        return read

    def _check(self) -> None:
        for url in self.servers:
            if _USER_INFO.search(url):
                # Refuse secrets in this option, because Spark shows options in plans, in logs and on its web pages.
                raise ConfigError(
                    "option 'servers' contains a user in a URL, which Spark would show in its plans: "
                    "use 'user' and 'passwordEnv', or 'credentialsFile'"
                )
        ways = {
            "credentialsFile": self.credentials_file,
            "nkeySeedFile": self.nkey_seed_file,
            "user": self.user,
            "token": self.token or self.token_env,
            "tokenProvider": self.token_provider,
            "credentialsProvider": self.credentials_provider,
        }
        chosen = [name for name, value in ways.items() if value]
        if len(chosen) > 1:
            raise ConfigError(f"options {' and '.join(map(repr, chosen))} are both set: choose one identity")
        if (self.password or self.password_env) and not self.user:
            raise ConfigError("option 'user' is missing: the password needs one")
        if self.user and not (self.password or self.password_env):
            raise ConfigError(
                "option 'passwordEnv' is missing: the environment variable with the password of 'user'"
            )
        for plain, env in (("password", "password_env"), ("token", "token_env")):
            if getattr(self, plain) and getattr(self, env):
                raise ConfigError(f"options {plain!r} and '{plain}Env' are both set: choose one")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("options 'tlsCert' and 'tlsKey' must be set together")
        if self.domain and self.prefix != DEFAULT_PREFIX:
            raise ConfigError("options 'domain' and 'prefix' are both set: choose one")
        check_publish_subject(self.inbox_prefix)

    def __repr__(self) -> str:
        """Show the servers, without secrets."""
        return f"ServerOptions(servers={','.join(self.servers)})"

    def arguments(self, distributed: Callable[[], Path | None] = lambda: None) -> dict[str, Any]:
        """Return the arguments of `jsclient.connect`, resolved on this machine.

        Args:
            distributed: A function that returns the directory of the files that Spark distributes, or None if Spark
                does not run here.

        Raises:
            ConfigError: A file or an environment variable does not exist. The error names the machine.
        """
        find = partial(_file, distributed)
        arguments: dict[str, Any] = {
            "servers": list(self.servers),
            "domain": self.domain,
            "prefix": self.prefix,
            "inbox_prefix": self.inbox_prefix,
            "timeout": self.timeout,
            "connect_timeout": self.timeout,
            "name": "jsclient-spark",
            "user_credentials": find("credentialsFile", self.credentials_file),
            "nkeys_seed": find("nkeySeedFile", self.nkey_seed_file),
            "user": self.user,
            "password": self.password or _variable("passwordEnv", self.password_env),
            "token": self.token or _variable("tokenEnv", self.token_env),
            "tls": find("tlsCa", self.tls_ca),
            "tls_cert": find("tlsCert", self.tls_cert),
            "tls_key": find("tlsKey", self.tls_key),
            "tls_hostname": self.tls_hostname,
            "tls_handshake_first": self.tls_handshake_first or None,
            **provided(self.token_provider, self.credentials_provider),
            **dict(self.client),
        }
        return {name: value for name, value in arguments.items() if value is not None}


def _read_client(reader: OptionReader) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of `jsclient.connect` that the options ``nats.…`` set."""
    read = {
        argument: reader.seconds(option, 0.0)
        for option, argument in _CLIENT_SECONDS.items()
        if reader.text(option) is not None
    }
    name = reader.text("nats.name")
    return tuple(read.items()) if name is None else (*read.items(), ("name", name))


def _file(distributed: Callable[[], Path | None], name: str, path: str | None) -> str | None:
    """Return the path of a file on this machine.

    Spark's ``--files`` copies files into the working directory of executors, but not of the driver. There the file is
    in the directory that ``distributed`` returns.
    """
    if path is None or Path(path).is_file():
        return path
    # An absolute path can't refer to a file that Spark distributes with ``--files``.
    host, shared = os.uname().nodename, None if Path(path).is_absolute() else distributed()
    if shared is None:
        hint = (
            "; pass the file to spark-submit with --files, and set the option to its name without directories"
        )
        raise ConfigError(f"option {name!r}: no file {path!r} on {host}{hint}")
    copy = shared / path
    if not copy.is_file():
        raise ConfigError(
            f"option {name!r}: no file {path!r} on {host}, neither in the working directory {str(Path.cwd())!r} "
            f"nor in {str(shared)!r}, where Spark puts the files passed with --files"
        )
    return str(copy)


def _variable(name: str, variable: str | None) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(
            f"option {name!r}: the environment variable {variable!r} is not set on {os.uname().nodename}; "
            "set it for executors with spark.executorEnv"
        )
    return value

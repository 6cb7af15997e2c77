"""Connection options shared by the source, the sink and the helpers.

Paths and environment variables are resolved on the machine that connects: the driver and each executor.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...protocol.wire.names import check_publish_subject
from ...protocol.wire.subjects import DEFAULT_PREFIX
from .values import OptionReader

__all__ = ["ConnectOptions"]

_USER_INFO = re.compile(r"//[^/@]*@")


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Servers and credentials. Secrets are files or names of environment variables wherever possible.

    Attributes:
        servers: URLs.
        credentials_file: A ``.creds`` file.
        nkey_seed_file: A file with an nkey seed.
        user: With ``password``, or ``password_env``, the environment variable that holds it.
        token: Or ``token_env``, the environment variable that holds it.
        tls_ca, tls_cert, tls_key: Files; any of them requires TLS.
        domain, prefix: As of `jsclient.connect`.
        inbox_prefix: Prefix of reply subjects.
        timeout: Seconds for an API request, and for one attempt to connect.
    """

    servers: tuple[str, ...]
    credentials_file: str | None = None
    nkey_seed_file: str | None = None
    user: str | None = None
    password: str | None = None
    password_env: str | None = None
    token: str | None = None
    token_env: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    domain: str | None = None
    prefix: str = DEFAULT_PREFIX
    inbox_prefix: str = "_INBOX"
    timeout: float = 5.0

    @classmethod
    def of(cls, options: Mapping[str, str] | str) -> ConnectOptions:
        """From the options of a helper: a mapping, or only the URLs, separated by commas."""
        given = OptionReader({"servers": options} if isinstance(options, str) else options, "the connection")
        read = cls.read(given)
        given.finish()
        return read

    @classmethod
    def read(cls, given: OptionReader) -> ConnectOptions:
        """Read all of them.

        Raises:
            ConfigError: An option is missing or invalid, or two contradict each other.
        """
        given.required("servers", "set the URL of a NATS server, or several separated by commas")
        read = cls(
            servers=given.names("servers"),
            credentials_file=given.text("credentialsFile"),
            nkey_seed_file=given.text("nkeySeedFile"),
            user=given.text("user"),
            password=given.text("password"),
            password_env=given.text("passwordEnv"),
            token=given.text("token"),
            token_env=given.text("tokenEnv"),
            tls_ca=given.text("tlsCa"),
            tls_cert=given.text("tlsCert"),
            tls_key=given.text("tlsKey"),
            domain=given.text("domain"),
            prefix=given.text("prefix", DEFAULT_PREFIX) or DEFAULT_PREFIX,
            inbox_prefix=given.text("inboxPrefix", "_INBOX") or "_INBOX",
            timeout=given.seconds("timeout", 5.0),
        )
        read._check()
        return read

    def _check(self) -> None:
        for url in self.servers:
            if _USER_INFO.search(url):
                # Spark shows options in plans, logs and its web pages.
                raise ConfigError(
                    "option 'servers' contains a user in a URL, which Spark would show in its plans: "
                    "use 'user' and 'passwordEnv', or 'credentialsFile'"
                )
        ways = {
            "credentialsFile": self.credentials_file,
            "nkeySeedFile": self.nkey_seed_file,
            "user": self.user,
            "token": self.token or self.token_env,
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
        """Without secrets."""
        return f"ConnectOptions(servers={','.join(self.servers)})"

    def arguments(self) -> dict[str, Any]:
        """The arguments of `jsclient.connect`, resolved on this machine.

        Raises:
            ConfigError: A file or an environment variable does not exist; the message names the machine.
        """
        given: dict[str, Any] = {
            "servers": list(self.servers),
            "domain": self.domain,
            "prefix": self.prefix,
            "inbox_prefix": self.inbox_prefix,
            "timeout": self.timeout,
            "connect_timeout": self.timeout,
            "name": "jsclient-spark",
            "user_credentials": _file("credentialsFile", self.credentials_file),
            "nkeys_seed": _file("nkeySeedFile", self.nkey_seed_file),
            "user": self.user,
            "password": self.password or _variable("passwordEnv", self.password_env),
            "token": self.token or _variable("tokenEnv", self.token_env),
            "tls": self._tls(),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _tls(self) -> ssl.SSLContext | None:
        if self.tls_ca is None and self.tls_cert is None:
            return None
        context = ssl.create_default_context(cafile=_file("tlsCa", self.tls_ca))
        if self.tls_cert is not None:
            cert, key = _file("tlsCert", self.tls_cert), _file("tlsKey", self.tls_key)
            assert cert is not None
            context.load_cert_chain(cert, key)
        return context


def _file(name: str, path: str | None) -> str | None:
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"option {name!r}: no file {path!r} on {os.uname().nodename}")
    return path


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

"""The JWT and the seed of a user, which a file or a function provides for each attempt to connect.

No error shows the contents of a file, or a text that was passed instead of a path.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import re
from collections import UserString
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import ConfigError, ConnectError

__all__ = [
    "CredentialsError",
    "UserCredentials",
    "check_seed",
    "credentials_of",
    "expired",
    "is_secret",
    "jwt_in",
    "provided_credentials",
    "read_file",
]

LONGEST: Final = 1 << 20
"""The maximum number of bytes to read from a file."""

_SECRET: Final = re.compile(r"\n|-----|^S[A-Z][A-Z2-7]{20,}|^eyJ")
"""Matches a text that looks like the content of a file, a seed or a JWT, and not like a path."""

_JWT: Final = "BEGIN NATS USER JWT"
_SEED: Final = "BEGIN USER NKEY SEED"
_SIGNATURE: Final = 64  # bytes of a signature by an account key. A JWT with a shorter signature is truncated
_KINDS: Final = {"A": "an account", "O": "an operator", "N": "a server", "C": "a cluster", "X": "a curve key"}
"""The owner of a seed by its second letter. Source: ADR-14."""


class CredentialsError(Exception):
    """Raised when credentials cannot be used. The text names the file and the reason."""


class _Part(NamedTuple):
    """The source of a JWT or a seed, and its name in errors."""

    source: Any  # a path, the text itself as a `UserString`, or a function that returns it
    shown: str


class UserCredentials:
    """The value of ``user_credentials``, with the callbacks for the handshake, which requests the signature first.

    Attributes:
        is_provided: Whether a function provides the credentials, so that the next attempt may have others.
    """

    def __init__(self, jwt: _Part, seed: _Part, option: str = "user_credentials") -> None:
        self._sources = jwt, seed
        self._option = option
        self._jwt = ""
        self.is_provided = callable(jwt.source)

    def signature(self, nonce: str) -> bytes:
        """Read the JWT and the seed together, so that both are from the same file even if it is replaced."""
        import nkeys

        self._jwt, seed = self._read()
        return base64.b64encode(nkeys.from_seed(bytearray(seed)).sign(nonce.encode()))

    def jwt(self) -> bytes:
        """Return the JWT that belongs to the last signature."""
        return self._jwt.encode()

    def check(self) -> None:
        """Check the credentials before connecting, except whether the JWT has expired, which the server decides.

        A function is not called before it is needed.

        Raises:
            ConfigError: The credentials cannot be read, or are malformed.
            ConnectError: The package nkeys is missing.
        """
        if find_spec("nkeys") is None:
            raise ConnectError(f'{self._option} needs the package nkeys: pip install "jsclient[nkeys]"')
        if self.is_provided:
            return
        try:
            self._jwt, _ = self._read()
        except CredentialsError as error:
            raise ConfigError(str(error)) from None

    def expired(self, now: float) -> str:
        """Return a text that says when the last JWT expired, or "" if it has not expired at the time ``now``."""
        return expired(self._jwt, self._sources[0].shown, now)

    def _read(self) -> tuple[str, bytes]:
        jwt, seed = self._sources
        try:
            text = _text(jwt)
            seed_text = text if seed is jwt else _text(seed)
            return jwt_in(text, jwt.shown), _seed_in(seed_text, seed.shown)
        except CredentialsError as error:
            raise CredentialsError(f"{self._option}: {error}") from error.__cause__


def credentials_of(value: Any) -> UserCredentials:
    """Return the credentials for a value of ``user_credentials``.

    Raises:
        ConfigError: The value is not a path, a pair of paths or `RawCredentials`.
    """
    if isinstance(value, UserCredentials):
        return value
    if not isinstance(value, tuple):
        part = _part(value)
        return UserCredentials(part, part)
    if len(value) != 2:
        raise ConfigError(
            f"user_credentials is a tuple of {len(value)}: it must be a path, or (JWT file, seed file)"
        )
    return UserCredentials(_part(value[0]), _part(value[1]))


def provided_credentials(function: Callable[[], Any], option: str, name: str) -> UserCredentials:
    """Return a value for ``user_credentials`` whose text ``function`` returns.

    Errors contain ``option`` and ``name``, which are the names of the option and of the function.
    """
    part = _Part(function, f"what {name} returned")
    return UserCredentials(part, part, option)


def _part(source: Any) -> _Part:
    if isinstance(source, UserString):
        return _Part(source, "the text that was passed")
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"user_credentials is {type(source).__name__}: it must be the path of a credentials file"
        )
    name = os.fspath(source)
    if not isinstance(name, str):
        raise ConfigError("user_credentials is a path of bytes: it must be one of str")
    return _Part(name, f"the file {name!r}")


def is_secret(text: str) -> bool:
    """Return whether a value that cannot be opened is secret text, which must not be shown, rather than a path."""
    return _SECRET.search(text) is not None


def read_file(path: str) -> tuple[str, str]:
    """Return the text of a file, and the reason why it cannot be read, without its name. One of them is ""."""
    try:
        with Path(path).open("rb") as file:
            return file.read(LONGEST).decode("utf-8", "replace"), ""
    except OSError as error:
        return "", error.strerror or type(error).__name__
    except ValueError:
        return "", "the path is not valid"


def _text(part: _Part) -> str:
    if isinstance(part.source, UserString):
        return part.source.data
    if callable(part.source):
        return _returned(part.source, part.shown)
    text, problem = read_file(part.source)
    # If text was passed instead of a path, it may be a secret, so don't show it in the error.
    if problem and is_secret(part.source):
        raise CredentialsError(
            "it is the text of credentials, not shown here, where the path of a file is needed: "
            "to pass the text itself, use nats.aio.client.RawCredentials(text)"
        )
    if problem:
        raise CredentialsError(f"{part.shown} cannot be read: {problem}")
    if not text.strip():
        raise CredentialsError(f"{part.shown} is empty: write the credentials into it")
    return text


def _returned(function: Callable[[], Any], shown: str) -> str:
    try:
        text = function()
    except Exception as error:
        raise CredentialsError(f"the function raised {error!r}") from error
    if not isinstance(text, str):
        raise CredentialsError(f"{shown} is {type(text).__name__}: the text of a credentials file is needed")
    return text


def jwt_in(text: str, shown: str) -> str:
    """Return the JWT of a user in the text of a credentials file, or the text itself if it is a JWT.

    A server with an auth callout may accept a JWT whose issuer isn't an account. The signature of such a JWT differs.

    Raises:
        CredentialsError: The text has no JWT, or only a part of a JWT.
    """
    jwt = _after(text, _JWT) or (text.strip() if text.lstrip().startswith("eyJ") else "")
    if not jwt:
        raise CredentialsError(f"{shown} has no user JWT, or only the beginning of one")
    parts = jwt.split(".")
    of_nats = len(parts) == 3 and "ed25519" in str(_object(parts[0]).get("alg")).lower()
    size = len(_decoded(parts[-1]))
    if len(parts) != 3 or not _claims(jwt) or (size != _SIGNATURE if of_nats else not size):
        raise CredentialsError(f"the JWT in {shown} is malformed, or only half of one: the whole is needed")
    return jwt


def _seed_in(text: str, shown: str) -> bytes:
    seed = _after(text, _SEED) or (text.strip() if text.lstrip().startswith("S") else "")
    if not seed:
        raise CredentialsError(
            f"{shown} has no seed of an nkey: it is no credentials file, or only half of one"
        )
    check_seed(seed, f"the seed in {shown}")
    return seed.encode()


def check_seed(seed: str, shown: str) -> None:
    """Check that a text is the seed of a user's nkey.

    Raises:
        CredentialsError: The text is malformed, or is the seed of something other than a user.
    """
    if not _is_seed(seed):
        raise CredentialsError(f"{shown} is malformed, or only half of one: the whole is needed")
    if (kind := _KINDS.get(seed[1])) is not None:
        raise CredentialsError(
            f"{shown} is that of {kind}: the seed of a user is needed, which begins with SU"
        )


def _after(text: str, mark: str) -> str:
    """Return the first line with text after the line with a mark, or "" if the file ends before."""
    lines = text.partition(mark)[2].splitlines()[1:]
    line = next((line.strip() for line in lines if line.strip()), "")
    return "" if line.startswith("---") else line


def _is_seed(seed: str) -> bool:
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except ValueError:
        return False
    # A seed consists of a prefix of 2 bytes, 32 bytes, and their checksum. Check the checksum, because nkeys doesn't.
    checksum = int.from_bytes(raw[-2:], "little")
    return len(raw) == 36 and raw[0] & 0xF8 == 18 << 3 and binascii.crc_hqx(raw[:-2], 0) == checksum


def _claims(jwt: str) -> dict[str, Any]:
    """Return the claims of a JWT, or {} if it is malformed."""
    return _object(jwt.split(".")[1]) if "." in jwt else {}


def _object(part: str) -> dict[str, Any]:
    """Return the JSON object in a part of a JWT, or {} if it is malformed."""
    try:
        value = json.loads(_decoded(part))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _decoded(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except ValueError:
        return b""


def expired(jwt: str, shown: str, now: float) -> str:
    """Return a text that says when a JWT expired, or "" if it has not at ``now`` (seconds since 1970)."""
    expiry = _claims(jwt).get("exp")
    if not isinstance(expiry, int | float) or isinstance(expiry, bool) or not 0 < expiry <= now:
        return ""
    return f"the JWT in {shown} expired {_dated(expiry, now)}"


def _dated(expiry: float, now: float) -> str:
    """Format the time, and how long ago it was."""
    try:
        when = datetime.fromtimestamp(expiry, UTC)
    except (ValueError, OverflowError, OSError):
        return "long ago"
    units = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
    size, unit = next(((size, unit) for size, unit in units if now - expiry >= size), units[-1])
    count = math.floor((now - expiry) / size)
    ago = f"{count} {unit}{'' if count == 1 else 's'} ago by the clock of this machine"
    return f"on {when:%Y-%m-%d %H:%M:%S} UTC, {ago}"

"""The fields of CONNECT that identify the user, from options, files and callbacks, for each attempt."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import ParseResult

from ...errors import ConnectError
from ...protocol.connection.server_info import ServerInfo
from ...protocol.connection.urls import IDENTITY, shared_identity, url_identity
from .credentials import FileError
from .credentials_file import read_file

__all__ = ["Identity"]

_NKEYS = 'this identity needs the package nkeys: pip install "jsclient[nkeys]"'


class Identity:
    """The identity in the options of `connect` and in the URLs of ``servers``. The repr does not show it.

    Attributes:
        is_given: Whether any identity was given.
    """

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any]) -> None:
        self._options = {name: options[name] for name in IDENTITY if options.get(name) is not None}
        self._shared: dict[str, str | None] = {}
        self.use(servers)
        self._seed = self._seed_source()
        if self._seed is not None:
            _nkeys()

    def use(self, servers: Sequence[str]) -> None:
        """Use the identity in the URLs of other servers, unless the options have an identity."""
        self._shared = shared_identity(servers, self._options) or self._shared
        self.is_given = bool(self._options or self._shared)

    def _seed_source(self) -> Callable[[], str] | None:
        text, path = self._options.get("nkeys_seed_str"), self._options.get("nkeys_seed")
        if text is not None:
            return lambda: str(text)
        return None if path is None else lambda: _seed_in(str(path))

    def fields(self, info: ServerInfo, url: ParseResult) -> dict[str, str]:
        """Return the fields that identify the user to a server.

        The fields are sent even if the server does not require them. A server with a default user requires none, and
        would treat the client as that user.

        Raises:
            CallbackError: A callback raised, or a file cannot be used.
        """
        options = self._options
        if self._shared:  # only the URLs identify the user
            options = {**self._shared, **url_identity(url)}
        fields = self._signed(info.nonce)
        token = options.get("token")
        values = {
            "user": options.get("user"),
            "pass": options.get("password"),
            "auth_token": token() if callable(token) else token,
        }
        fields.update({name: str(value) for name, value in values.items() if value is not None})
        return fields

    def _signed(self, nonce: str) -> dict[str, str]:
        """Return the signature of the server's nonce, and the key or the JWT that belongs to it."""
        fields: dict[str, str] = {}
        signature, jwt = self._options.get("signature_cb"), self._options.get("user_jwt_cb")
        if nonce and self._seed is not None:
            key = _nkeys().from_seed(bytearray(self._seed().strip().encode()))
            fields["sig"] = base64.b64encode(key.sign(nonce.encode())).decode()
            if jwt is None:
                fields["nkey"] = key.public_key.decode()
            key.wipe()
        elif nonce and signature is not None:
            fields["sig"] = bytes(signature(nonce)).decode("utf-8", "replace")
        # Get the JWT after the signature, so that the signature and the JWT come from the same read of a credentials
        # file.
        if jwt is not None:
            fields["jwt"] = bytes(jwt()).decode("utf-8", "replace")
        return fields


def _nkeys() -> Any:
    try:
        import nkeys
    except ModuleNotFoundError as error:
        if error.name != "nkeys":
            raise
        raise ConnectError(_NKEYS) from None
    return nkeys


def _seed_in(path: str) -> str:
    text, problem = read_file(path)
    if problem:
        raise FileError(f"nkeys_seed: the file {path!r} cannot be read: {problem}")
    return text

"""Certificates of TLS in files, which may be replaced while the program runs."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ...errors import ConfigError
from .credentials import FileError

__all__ = ["TlsFiles", "check_tls"]

_Version = tuple[int, int, int]


class TlsFiles:
    """The authority, the certificate of the client and its key, which are read again when a file was replaced.

    A path that is None is left out. Without an authority, the authorities that this machine trusts are used.
    """

    def __init__(self, ca: str | None = None, cert: str | None = None, key: str | None = None) -> None:
        self._ca, self._cert, self._key = ca, cert, key
        self._versions: list[_Version] = []
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context with the current content of the files.

        Raises:
            FileError: A file cannot be read or is malformed, or the key does not belong to the certificate.
        """
        # Get the versions first, so that a file that is replaced while it is being loaded is loaded again next time.
        versions = [_version(path) for path in (self._ca, self._cert, self._key) if path is not None]
        if self._context is None or versions != self._versions:
            self._context = None  # so that unusable files are read again in each attempt
            self._context, self._versions = self._loaded(), versions
        return self._context

    def _loaded(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca)
        except OSError as error:  # including SSLError
            raise _unusable("tls", self._ca, error, "it has no certificate") from None
        if self._cert is None:
            return context
        try:
            context.load_cert_chain(self._cert, self._key, password=_refuse_password)
        except ssl.SSLError:
            shown = repr(self._cert) if self._key is None else f"{self._cert!r} and {self._key!r}"
            raise FileError(
                f"tls_cert, tls_key: {shown} are no certificate and the private key that belongs to it, "
                "or only a part of one"
            ) from None
        except OSError as error:
            missing = self._cert if self._key is None or not Path(self._cert).is_file() else self._key
            raise _unusable("tls_cert, tls_key", missing, error, "") from None
        return context


def _refuse_password() -> NoReturn:
    """Refuse an encrypted key. Without this callback, OpenSSL would ask for the password on the terminal."""
    raise FileError(
        "tls_key: the private key is encrypted: decrypt the file, or pass an ssl.SSLContext as tls, after "
        "context.load_cert_chain(cert, key, password)"
    )


def _unusable(option: str, path: str | None, error: OSError, otherwise: str) -> FileError:
    reason = otherwise if isinstance(error, ssl.SSLError) else error.strerror or type(error).__name__
    return FileError(f"{option}: the file {path!r} cannot be used: {reason}")


def _version(path: str) -> _Version:
    """Return values that change when a file is replaced or written, or zeros if the file does not exist."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def check_tls(options: Mapping[str, Any]) -> ssl.SSLContext | TlsFiles | None:
    """Return the context or the files of the options ``tls``, ``tls_cert`` and ``tls_key``, or None without TLS.

    Raises:
        ConfigError: A value has another type, the values contradict each other, or a file cannot be used.
    """
    tls = options.get("tls")
    names = [name for name in ("tls_cert", "tls_key") if name in options]
    if names == ["tls_key"]:
        raise ConfigError("tls_key needs tls_cert, the certificate that the key belongs to")
    if tls is False or isinstance(tls, ssl.SSLContext):
        if names:
            given = "False" if tls is False else "an ssl.SSLContext: call its load_cert_chain instead"
            raise ConfigError(f"tls_cert cannot be used if tls is {given}")
        return tls or None
    if tls is None and not names:
        return None
    cert, key = (_path(name, options[name]) if name in names else None for name in ("tls_cert", "tls_key"))
    # Load the files once now, so that mistakes are reported before connecting.
    files = TlsFiles(None if tls is None or tls is True else _path("tls", tls), cert, key)
    try:
        files.context()
    except FileError as error:
        raise ConfigError(str(error)) from None
    return files


def _path(name: str, value: object) -> str:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        what = "the path of a file"
        if name == "tls":
            what = f"an ssl.SSLContext, True, or {what} with an authority"
        raise ConfigError(f"{name} is {type(value).__name__}: it must be {what}")
    if "-----" in path or "\n" in path or "\0" in path:  # don't show the text, because it may contain a key
        raise ConfigError(
            f"{name} is a text, not shown here, where the path of a file is needed: "
            "for the text of an authority, pass ssl.create_default_context(cadata=text) as tls"
        )
    return path

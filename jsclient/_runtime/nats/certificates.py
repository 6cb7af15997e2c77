"""Why a server's certificate is not accepted, and from when to when it is valid."""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import UTC, datetime
from typing import Any
from urllib.parse import ParseResult

from ...errors import ConfigError

__all__ = ["CertificateError", "certificate_error", "rejection", "tls_context", "validity"]

_SEQUENCE, _CONTEXT, _UTC_TIME = 0x30, 0xA0, 0x17
_LIMIT = 2.0  # seconds for the second look at a certificate


class CertificateError(Exception):
    """The server's certificate is not accepted, or it requires one of the client."""


def tls_context(given: object) -> ssl.SSLContext | None:
    """The context for the option ``tls``: one, True, False, or the path of a file with an authority.

    Raises:
        ConfigError: It is something else, or the file cannot be used.
    """
    if given is False or isinstance(given, ssl.SSLContext):
        return given or None
    if given is True:
        return ssl.create_default_context()
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"tls is {given!r:.60}: it must be an ssl.SSLContext, True, or the path of a file with an authority"
        )
    path = os.fspath(given)
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # among them SSLError: there is no certificate in it
        what = error.strerror or "it has no certificate"
        raise ConfigError(f"tls: the file {path!r} cannot be used: {what}") from None


def rejection(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The error of the check of a certificate that is ``error``, or led to it."""
    for _ in range(5):
        if isinstance(error, ssl.SSLCertVerificationError) and hasattr(error, "verify_code"):
            return error  # aiohttp's has the type, and no code
        if error is None:
            break
        error = error.__cause__ or error.__context__
    return None


async def certificate_error(
    error: ssl.SSLCertVerificationError, uri: ParseResult, name: str, *, tls_first: bool
) -> CertificateError:
    """The error to raise, with the dates of the certificate.

    They are read on a second connection, on which nothing is sent: after a failed check, `ssl` keeps no certificate.
    """
    dates = None
    if error.verify_code in {9, 10}:
        try:
            async with asyncio.timeout(_LIMIT):
                dates = validity(await _certificate(uri, tls_first=tls_first))
        except (OSError, TimeoutError, ValueError, IndexError):
            pass
    return CertificateError(_text(error, name, dates))


def _text(error: ssl.SSLCertVerificationError, name: str, dates: tuple[datetime, datetime] | None) -> str:
    """What is wrong, and what to do. Codes: OpenSSL, ``x509_vfy.h``."""
    code, own = error.verify_code, '"ca.pem"'
    if code == 10:
        when = f" on {dates[1]:%Y-%m-%d %H:%M} UTC" if dates else ""
        return f"the server's certificate expired{when}: the server needs a new one"
    if code == 9:
        when = f" before {dates[0]:%Y-%m-%d %H:%M} UTC" if dates else " yet"
        return f"the server's certificate is not valid{when}: compare the clocks of this machine and of the server"
    if code in {62, 64}:
        return (
            f"the server's certificate is not for {name!r} ({error.verify_message}): use the name in it, "
            'or pass tls_hostname="the name"'
        )
    if code == 18:
        return f"the server's certificate is self-signed: trust it with tls={own}"
    if code in {2, 19, 20, 21}:
        return (
            f"the server's certificate comes from an authority that is not trusted here ({error.verify_message}): "
            f"if it is your own, pass its file, tls={own}"
        )
    return f"the server's certificate is not accepted: {error.verify_message}"


async def _certificate(uri: ParseResult, *, tls_first: bool) -> bytes:
    """The certificate that the server shows, as DER. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    first = {"ssl": context} if tls_first or uri.scheme == "wss" else {}
    reader, writer = await asyncio.open_connection(uri.hostname, uri.port, **first)  # type: ignore[arg-type]
    try:
        if not first:
            await reader.readline()  # INFO
            await writer.start_tls(context)
        shown: Any = writer.get_extra_info("ssl_object")
        return bytes(shown.getpeercert(binary_form=True))
    finally:
        writer.transport.abort()


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """From when to when a DER certificate is valid. Source: RFC 5280, section 4.1. Raises ValueError, IndexError."""
    _, body, _ = _element(certificate, 0)
    _, fields, _ = _element(body, 0)
    kind, _, at = _element(fields, 0)
    before = 3 if kind == _CONTEXT else 2  # with a version first: serial number, algorithm, issuer
    for _ in range(before):
        _, _, at = _element(fields, at)
    kind, dates, _ = _element(fields, at)
    if kind != _SEQUENCE:
        raise ValueError("no dates")
    kind, start, at = _element(dates, 0)
    until, end, _ = _element(dates, at)
    return _moment(kind, start), _moment(until, end)


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """The tag and the content of the element at an offset, and the offset after it."""
    kind, length, at = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(data[at : at + count], "big"), at + count
    return kind, data[at : at + length], at + length


def _moment(kind: int, text: bytes) -> datetime:
    year = "%y" if kind == _UTC_TIME else "%Y"
    return datetime.strptime(text.decode("ascii"), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)

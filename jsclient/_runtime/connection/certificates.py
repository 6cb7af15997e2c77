"""Finds out why TLS failed: the server's certificate, the client's certificate, or a server without TLS."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import ParseResult

__all__ = [
    "CertificateError",
    "alert",
    "begins_with_info",
    "begins_with_tls",
    "certificate_error",
    "is_unfinished",
    "late_alert",
    "received_before_tls",
    "rejection",
    "validity",
]

_SEQUENCE, _CONTEXT, _UTC_TIME = 0x30, 0xA0, 0x17
_LIMIT = 2.0  # how long it may take to read a certificate on a second connection, in seconds
# How long to wait for what the server sends before TLS, in seconds. A refusal arrives immediately.
_LIMIT_CLEAR = 0.5
_LIMIT_FIRST = 1.0  # how long to wait to find out whether a silent server expects TLS first, in seconds

_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"}
_UNFIT = "the server and this client have no TLS version or cipher in common"


_NEEDS_ONE = (
    'the server requires a client certificate: pass tls_cert="client.pem" and tls_key="client-key.pem", '
    "or call load_cert_chain of the context"
)
_OURS: Final = {
    "CERTIFICATE_REQUIRED": _NEEDS_ONE,
    "UNKNOWN_CA": "the server does not know the authority of the client certificate: "
    "use a certificate of an authority that is in the server's ca_file",
    "CERTIFICATE_EXPIRED": "the client certificate has expired, by the server's clock: load a new one",
    "CERTIFICATE_REVOKED": "the client certificate was revoked: load a new one",
    "BAD_CERTIFICATE": "the server does not accept the client certificate: it has to be one for clients "
    "(extended key usage), of an authority that is in the server's ca_file, and not expired",
    "UNSUPPORTED_CERTIFICATE": "the server does not accept the kind of the client certificate",
    "CERTIFICATE_UNKNOWN": "the server does not accept the client certificate",
}
"""The server's alerts about a client's certificate. Source: RFC 8446, section 6.2; RFC 5246, section 7.2.2."""


class CertificateError(Exception):
    """Raised when one side rejects the certificate of the other, or the server does not speak TLS."""


def rejection(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the certificate check error that is ``error`` or caused it, or None."""
    for _ in range(5):
        if isinstance(error, ssl.SSLCertVerificationError) and hasattr(error, "verify_code"):
            return error
        if error is None:
            break
        error = error.__cause__ or error.__context__
    return None


def alert(
    error: BaseException | None, *, wants_ours: bool, scheme: str, tls_first: bool
) -> CertificateError | None:
    """Return the error to raise if ``error``, or its cause, is a TLS alert of the server, otherwise None.

    ``wants_ours`` is true if the server has announced that it requires a client certificate. Before TLS 1.3, it
    answers a missing certificate in the same way as ciphers that do not fit.
    """
    reason = _reason(error)
    if reason in _NO_TLS:
        hint = ": use ws://" if scheme == "wss" else ": leave out tls_handshake_first" if tls_first else ""
        return CertificateError(f"what answers there does not begin with TLS{hint}")
    if reason.endswith("HANDSHAKE_FAILURE"):
        return CertificateError(_NEEDS_ONE if wants_ours else f"{_UNFIT}, or {_NEEDS_ONE}")
    if reason.endswith("ALERT_PROTOCOL_VERSION") or reason == "UNSUPPORTED_PROTOCOL":
        return CertificateError(_UNFIT)
    text = next((text for name, text in _OURS.items() if reason.endswith(f"ALERT_{name}")), None)
    return None if text is None else CertificateError(text)


def is_unfinished(error: BaseException | None) -> bool:
    """Return whether the server may have refused the connection in plain text, when TLS should have started."""
    return isinstance(error, ConnectionError) or _reason(error) in _NO_TLS


async def received_before_tls(uri: ParseResult) -> bytes:
    """Return the last line that a server sends to a silent client. A full server sends a refusal before TLS."""
    received = b""
    try:
        async with asyncio.timeout(_LIMIT_CLEAR):
            reader, writer = await asyncio.open_connection(uri.hostname, uri.port)
            try:
                while not received.startswith(b"-ERR") and (line := await reader.readline()):
                    received = line
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, ValueError):
        pass  # the caller then reports the error of the first connection
    return received


async def begins_with_info(uri: ParseResult) -> CertificateError | None:
    """Return the error to raise if the client started with TLS but the server starts with INFO, otherwise None."""
    if not (await received_before_tls(uri)).startswith(b"INFO "):
        return None
    return CertificateError("the server begins with INFO, and then with TLS: leave out tls_handshake_first")


async def begins_with_tls(uri: ParseResult) -> CertificateError | None:
    """Return the error to raise if a silent server waits for TLS or HTTP, or None if it remains silent.

    A second connection shows what the server expects. Over TLS it sends INFO, an alert about a missing client
    certificate, or another answer. A WebSocket with TLS is silent after the handshake.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    received, is_tls = b"", False
    try:
        async with asyncio.timeout(_LIMIT_FIRST):
            reader, writer = await asyncio.open_connection(uri.hostname, uri.port, ssl=context)
            try:
                is_tls = True
                received = await reader.readline()
            finally:
                writer.transport.abort()
    except (OSError, ValueError) as error:  # including TimeoutError
        reason = _reason(error)
        if reason in _NO_TLS:
            return CertificateError(
                "what answers there waits for something else: use ws:// if it is a WebSocket"
            )
        is_tls = is_tls or "_ALERT_" in reason
        if is_tls and not reason:
            return CertificateError(
                "what answers there begins with TLS, and then says nothing: use wss:// if it is a WebSocket"
            )
    if not is_tls or (received and not received.startswith(b"INFO ")):
        return None
    return CertificateError(
        "the server says nothing before it begins with TLS: pass tls_handshake_first=True"
    )


async def late_alert(
    uri: ParseResult, context: ssl.SSLContext, name: str, *, tls_first: bool
) -> BaseException | None:
    """Return the error with which a server ends TLS after the handshake, or None.

    The client opens a second connection and sends nothing on it. On the first connection, the client's data may have
    caused a reset, so that the server's alert was lost.
    """
    first = {"ssl": context, "server_hostname": name} if tls_first else {}
    try:
        async with asyncio.timeout(_LIMIT):
            reader, writer = await asyncio.open_connection(uri.hostname, uri.port, **first)  # type: ignore[arg-type]
            try:
                if not first:
                    await reader.readline()  # INFO
                    await writer.start_tls(context, server_hostname=name)
                await reader.read(1)
            finally:
                writer.transport.abort()
    except (OSError, ValueError) as error:
        return error
    return None


def _reason(error: BaseException | None) -> str:
    """Return OpenSSL's name of the reason why TLS failed, or "" if there is none."""
    for _ in range(5):
        if isinstance(error, ssl.SSLError) and getattr(error, "reason", None):
            return str(error.reason)
        if error is None:
            break
        error = error.__cause__ or error.__context__
    return ""


async def certificate_error(
    error: ssl.SSLCertVerificationError, uri: ParseResult, name: str, *, tls_first: bool, may_dial: bool
) -> CertificateError:
    """Return the error to raise, with the dates of the certificate.

    The dates are read on a second connection, on which nothing is sent, because after a failed check `ssl` has no
    certificate. Without ``may_dial``, they are left out, because the client must use a proxy.
    """
    dates = None
    if may_dial and error.verify_code in {9, 10}:
        try:
            async with asyncio.timeout(_LIMIT):
                dates = validity(await _certificate(uri, tls_first=tls_first))
        except (OSError, TimeoutError, ValueError, IndexError):
            pass
    return CertificateError(_text(error, name, dates))


def _text(error: ssl.SSLCertVerificationError, name: str, dates: tuple[datetime, datetime] | None) -> str:
    """Describe the problem, and its solution. Codes: OpenSSL, ``x509_vfy.h``."""
    code, own = error.verify_code, '"ca.pem"'
    # In OpenSSL's codes, 9 and 10 concern the dates, and 62 and 64 the name. 18 means self-signed, and 2 and 19 to 21
    # an unknown authority.
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
    """Return the server's certificate as DER. Raises `OSError` if the server can't be reached."""
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
    """Return the start and end of a DER certificate's validity.

    Raises `ValueError` or `IndexError` if the certificate is malformed. See RFC 5280, section 4.1, for the format.
    """
    _, body, _ = _element(certificate, 0)
    _, fields, _ = _element(body, 0)
    kind, _, at = _element(fields, 0)
    # The dates follow the version (optional), serial number, algorithm and issuer. The first of these has been read, so
    # skip the rest.
    before = 3 if kind == _CONTEXT else 2
    for _ in range(before):
        _, _, at = _element(fields, at)
    kind, dates, _ = _element(fields, at)
    if kind != _SEQUENCE:
        raise ValueError("no dates")
    kind, start, at = _element(dates, 0)
    until, end, _ = _element(dates, at)
    return _moment(kind, start), _moment(until, end)


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return the tag and the content of the element at an offset, and the offset after it."""
    kind, length, at = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(data[at : at + count], "big"), at + count
    return kind, data[at : at + length], at + length


def _moment(kind: int, text: bytes) -> datetime:
    year = "%y" if kind == _UTC_TIME else "%Y"
    return datetime.strptime(text.decode("ascii"), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)

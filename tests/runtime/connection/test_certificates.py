"""The texts of errors about a server's certificate."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest
import trustme

from jsclient._runtime.connection.certificates import _text, rejection, validity

START = datetime(2024, 1, 2, 3, 4, tzinfo=UTC)
END = datetime(2025, 6, 7, 8, 9, tzinfo=UTC)


def rejected(code, message=""):
    error = ssl.SSLCertVerificationError("certificate verify failed: certificate has expired")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    "end", [END, datetime(2061, 2, 3, 4, 5, tzinfo=UTC)], ids=["UTCTime", "GeneralizedTime"]
)
def test_dates_of_certificate(end):
    issued = trustme.CA().issue_cert("a.example", not_before=START, not_after=end)
    der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
    assert validity(der) == (START, end)


@pytest.mark.parametrize("data", [b"", b"x", b"\x30\x82", b"0\x03\x30\x01\x02", bytes(40)])
def test_no_certificate_no_dates(data):
    with pytest.raises((ValueError, IndexError)):
        validity(data)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (10, "expired on 2025-06-07 08:09 UTC"),
        (9, "not valid before 2024-01-02 03:04 UTC"),
        (62, "not for 'a.example'"),
        (64, "tls_hostname"),
        (18, "self-signed"),
        (20, 'pass its file, tls="ca.pem"'),
        (23, "not accepted: certificate revoked"),
    ],
)
def test_text_says_which_and_when(code, text):
    assert text in _text(rejected(code, "certificate revoked"), "a.example", (START, END))


def test_text_without_dates():
    assert _text(rejected(10), "a", None).startswith("the server's certificate expired: ")


def test_rejection_behind_other_errors():
    inner, outer = rejected(10), ConnectionError("outer")
    outer.__cause__ = ValueError("between")
    outer.__cause__.__context__ = inner
    assert rejection(outer) is inner
    assert rejection(ConnectionError("reset")) is None

"""Digests as all clients write them."""

from __future__ import annotations

import base64
import hashlib

import pytest

from jsclient.protocol.buckets.object_digest import digest_text, read_digest

RAW = hashlib.sha256(b"\xff\xee\x99").digest()  # its text has letters in which the alphabets differ


def test_text():
    assert digest_text(hashlib.sha256().digest()) == "SHA-256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU="


@pytest.mark.parametrize(
    "text",
    [
        digest_text(RAW),
        digest_text(RAW).rstrip("="),
        f"SHA-256={base64.b64encode(RAW).decode()}",
        f"sha-256={RAW.hex()}",
        f"Sha-256={RAW.hex().upper()}",
    ],
)
def test_forms(text):
    assert read_digest(text) == RAW


@pytest.mark.parametrize(
    "text",
    ["", "SHA-256=", "SHA-256=abc", "MD5=abc", "SHA-256=" + "é" * 43, "SHA-256=" + "x" * 64, "SHA-256=a b"],
)
def test_no_digest(text):
    assert read_digest(text) is None

"""Files of certificates, which are read again only when they were replaced."""

from __future__ import annotations

import ssl

import pytest
import trustme

from jsclient._runtime.connection.tls_files import TlsFiles, check_tls
from jsclient.errors import ConfigError


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return path


def test_replaced_file_is_read_again(file):
    files = TlsFiles(str(file))
    first = files.context()
    assert files.context() is first
    new = file.with_suffix(".new")
    trustme.CA().cert_pem.write_to_path(str(new))
    new.replace(file)
    assert files.context() is not first
    assert files.context().get_ca_certs() != first.get_ca_certs()


def test_file_that_cannot_be_used_is_tried_again(file):
    files, text = TlsFiles(str(file)), file.read_text()
    file.write_text("")
    for _ in range(2):
        with pytest.raises(Exception, match=r"ca\.pem.*has no certificate"):
            files.context()
    file.write_text(text)
    assert len(files.context().get_ca_certs()) == 1


def test_what_requires_no_tls():
    assert check_tls({}) is check_tls({"tls": False}) is None


def test_context_is_passed_on():
    context = ssl.create_default_context()
    assert check_tls({"tls": context}) is context
    with pytest.raises(ConfigError, match="load_cert_chain"):
        check_tls({"tls": context, "tls_cert": "cert.pem"})


def test_authorities_of_this_machine():
    files = check_tls({"tls": True})
    assert files.context() is files.context()

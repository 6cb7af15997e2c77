"""Certificates that are replaced in their files while a connection is open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

import jsclient
from integration.connection.test_secrets import texts
from integration.connection.test_tls import context
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.waiting import eventually
from jsclient import ConfigError, DisconnectedError, ErrorRaised, Reconnected

CANARY = "canary-secret"


class Certificates:
    """The files of a server and of a client, from an authority that can be replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.client = {
            "tls": folder / "ca.pem",
            "tls_cert": folder / "client.pem",
            "tls_key": folder / "client-key.pem",
        }
        self.ca = trustme.CA()
        self.write_server()
        self.write_client()

    def replace_authority(self) -> None:
        """The files of the server only: those of the client are the old ones."""
        self.ca = trustme.CA()
        self.write_server()

    def write_server(self) -> None:
        issued = self.ca.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(str(self._folder / "server.pem"))
        issued.private_key_pem.write_to_path(str(self._folder / "server-key.pem"))
        self.ca.cert_pem.write_to_path(str(self._folder / "server-ca.pem"))

    def write_client(self) -> None:
        issued = self.ca.issue_cert("ann@example.com")
        self.ca.cert_pem.write_to_path(str(self.client["tls"]))
        issued.cert_chain_pems[0].write_to_path(str(self.client["tls_cert"]))
        issued.private_key_pem.write_to_path(str(self.client["tls_key"]))

    def server(self) -> dict[str, Any]:
        files = {"cert_file": "server.pem", "key_file": "server-key.pem", "ca_file": "server-ca.pem"}
        return {**{name: str(self._folder / file) for name, file in files.items()}, "verify": True}


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def test_reconnect_uses_new_files(
    files: Certificates, own_server: Any, connect: Any, events: list[Any]
) -> None:
    """The authority of both sides is replaced: neither the old certificate nor the old authority is of use."""
    own = await own_server(config={"tls": files.server()})
    js = await connect(own.url, **files.client, **PATIENT)
    for _ in range(2):
        await own.kill()
        files.replace_authority()
        await own.start()
        with pytest.raises(DisconnectedError, match=r"certificate|authority"):
            await eventually(lambda: _refused(js), 60, "an attempt with the old files")
        files.write_client()
        await wait_for_event(Reconnected, events)
        await js.account_info()
        events.clear()


async def _refused(js: Any) -> bool:
    try:
        await js.ping(0.2)
    except DisconnectedError as error:
        if "authority" in str(error) or "certificate" in str(error):
            raise
    except jsclient.RequestTimeoutError:
        pass
    return False


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("name", ["tls", "tls_cert", "tls_key"])
async def test_half_a_file_is_tried_again(
    name: str, files: Certificates, own_server: Any, connect: Any, events: list[Any]
) -> None:
    own = await own_server(config={"tls": files.server()})
    js = await connect(own.url, **files.client, **PATIENT)
    path = files.client[name]
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    await own.kill()
    await own.start()
    raised = await wait_for_event(ErrorRaised, events)
    assert str(path) in str(raised.error)
    assert [one for one in texts(raised.error) if text[60:90] in one] == []
    assert not js.is_connected
    path.write_text(text)
    await wait_for_event(Reconnected, events)
    await js.account_info()


async def test_context_of_the_program_is_used_as_it_is(
    files: Certificates, own_server: Any, connect: Any, events: list[Any]
) -> None:
    own = await own_server(config={"tls": files.server()})
    mine = context(files.ca)
    mine.load_cert_chain(files.client["tls_cert"], files.client["tls_key"])
    for path in files.client.values():
        path.unlink()
    await connect(own.url, tls=mine, **PATIENT)
    await own.kill()
    await own.start()
    await wait_for_event(Reconnected, events)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls_key": "client-key.pem"}, "tls_key needs tls_cert"),
        ({"tls_cert": "no-such.pem"}, "'no-such.pem' cannot be used: No such file"),
        ({"tls_cert": 5}, "tls_cert is int: it must be the path of a file"),
        ({"tls": False, "tls_cert": "client.pem"}, "tls_cert cannot be used if tls is False"),
        ({"tls_cert": "-----BEGIN CERTIFICATE-----"}, "tls_cert is a text, not shown here"),
        ({"tls_cert": ""}, "tls_cert is an empty text"),
    ],
)
async def test_files_are_checked_before_connecting(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await jsclient.connect("nats://127.0.0.1:1", **options)


async def test_encrypted_key_needs_no_terminal(files: Certificates) -> None:
    """OpenSSL would ask for its password on the terminal."""
    path = files.client["tls_key"]
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(CANARY.encode()))
    )
    assert "ENCRYPTED" in path.read_text()
    with pytest.raises(ConfigError, match="tls_key: the private key is encrypted"):
        await jsclient.connect("nats://127.0.0.1:1", **files.client)

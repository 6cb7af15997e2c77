"""The certificates and credentials of a server and its clients, which are replaced in their files again and again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import trustme

from integration.kit.servers.creds import USER, Key, Operator
from integration.kit.servers.nats_server import OwnServer

ROTATIONS = 10
_FILES = ("server.pem", "server-key.pem", "ca.pem", "client.pem", "client-key.pem")


class Rotating:
    """A server with an operator, whose clients need a certificate over TLS. Each rotation replaces everything.

    All certificates are made before the run, so that their making does not count.

    Attributes:
        options: The options of a client, for `connect`.
        done: The number of rotations.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._operator, self._user = folder, Operator.make(), Key.make(USER)
        self._revoked: dict[str, int] = {}
        self.done = 0
        for number in range(ROTATIONS + 1):
            self._make(folder / str(number))
        self._exchange()
        self.options: dict[str, Any] = {
            "tls": str(folder / "ca.pem"),
            "tls_cert": str(folder / "client.pem"),
            "tls_key": str(folder / "client-key.pem"),
            "user_credentials": str(folder / "user.creds"),
        }
        self.judge = str(folder / "judge.creds")
        self._operator.write(folder / "user.creds", self._user)
        self._operator.write(folder / "judge.creds", Key.make(USER))

    def _make(self, folder: Path) -> None:
        """Make the files of a server and its clients, from an authority of their own."""
        folder.mkdir()
        authority = trustme.CA()
        server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("soak@example.org")
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        for issued, name in ((server, "server"), (client, "client")):
            issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
            issued.private_key_pem.write_to_path(str(folder / f"{name}-key.pem"))

    def _exchange(self) -> None:
        for name in _FILES:
            half = self._folder / f"{name}.half"
            shutil.copyfile(self._folder / str(self.done) / name, half)
            half.replace(self._folder / name)

    def config(self) -> dict[str, Any]:
        """The configuration of the server. The judge connects without TLS."""
        tls = {
            "cert_file": str(self._folder / "server.pem"),
            "key_file": str(self._folder / "server-key.pem"),
            "ca_file": str(self._folder / "ca.pem"),
            "verify": True,
        }
        return {**self._operator.config(self._revoked), "tls": tls, "allow_non_tls": True}

    def rotate(self, own: OwnServer) -> None:
        """Replace all files, and revoke the old user, whose connections the server ends."""
        self.done += 1
        old, self._user = self._user, Key.make(USER)
        self._exchange()
        self._operator.write(self._folder / "user.creds", self._user)
        self._revoked[old.public] = int(time.time())
        own.reload(self.config())

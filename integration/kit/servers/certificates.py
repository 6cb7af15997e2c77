"""The certificate of a server for a day, in files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate: its authority, itself, and its private key."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def issue(cls, folder: Path, host: str = "127.0.0.1") -> Certificate:
        authority = trustme.CA()
        issued = authority.issue_cert(host, not_after=datetime.now(UTC) + timedelta(days=1))
        created = cls(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
        authority.cert_pem.write_to_path(str(created.ca))
        issued.private_key_pem.write_to_path(str(created.key))
        issued.cert_chain_pems[0].write_to_path(str(created.cert))
        return created

    def tls(self, **config: Any) -> dict[str, Any]:
        """The block ``tls`` of a server's configuration."""
        return {"tls": {"cert_file": str(self.cert), "key_file": str(self.key), **config}}

"""Credentials as operators give them out: signed JWTs, and the `.creds` file of a user."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nkeys

USER = nkeys.PREFIX_BYTE_USER

_LIMITS = {
    "wildcards": True,
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1),
}
_JETSTREAM = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)


@dataclass(frozen=True)
class Key:
    """A pair of keys; `kind` is the prefix byte of nkeys for an operator, an account or a user."""

    seed: bytes
    public: str

    @classmethod
    def make(cls, kind: int) -> Key:
        raw = bytes([nkeys.PREFIX_BYTE_SEED | (kind >> 5), (kind & 31) << 3]) + os.urandom(32)
        seed = base64.b32encode(raw + nkeys.crc16(bytearray(raw)).to_bytes(2, "little")).rstrip(b"=")
        return cls(seed, nkeys.from_seed(bytearray(seed)).public_key.decode())

    def sign(self, subject: str, kind: str, **claims: Any) -> str:
        """A JWT that this key issues for `subject`."""
        body = {
            "jti": base64.b32encode(os.urandom(16)).decode().rstrip("="),
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject,
            "name": kind,
            "nats": {"type": kind, "version": 2, **claims},
        }
        signed = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(body)}"
        signature = nkeys.from_seed(bytearray(self.seed)).sign(signed.encode())
        return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def operator_config(file: Path) -> dict[str, Any]:
    """The configuration of a server with one account, and into ``file`` the credentials of a user of it."""
    operator, system, account, user = (
        Key.make(kind)
        for kind in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_ACCOUNT,
            USER,
        )
    )
    signed = account.sign(user.public, "user", subs=-1, data=-1, payload=-1, pub={}, sub={})
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{signed}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return {
        "operator": operator.sign(operator.public, "operator", system_account=system.public),
        "system_account": system.public,
        "resolver": "MEMORY",
        "resolver_preload": {
            system.public: operator.sign(system.public, "account", limits=_LIMITS),
            account.public: operator.sign(account.public, "account", limits={**_LIMITS, **_JETSTREAM}),
        },
    }

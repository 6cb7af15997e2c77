"""Credentials as operators give them out: signed JWTs, and the `.creds` file of a user."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
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
    """A pair of keys. `kind` is the prefix byte of nkeys for an operator, an account or a user."""

    seed: bytes
    public: str

    @classmethod
    def make(cls, kind: int) -> Key:
        raw = bytes([nkeys.PREFIX_BYTE_SEED | (kind >> 5), (kind & 31) << 3]) + os.urandom(32)
        seed = base64.b32encode(raw + nkeys.crc16(bytearray(raw)).to_bytes(2, "little")).rstrip(b"=")
        return cls(seed, nkeys.from_seed(bytearray(seed)).public_key.decode())

    def sign(
        self, subject: str, kind: str, expires: float | None = None, *, audience: str = "", **claims: Any
    ) -> str:
        """A JWT that this key issues for `subject`. It ends at a time, or never."""
        body = {
            "jti": base64.b32encode(os.urandom(16)).decode().rstrip("="),
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject,
            "name": kind,
            "nats": {"type": kind, "version": 2, **claims},
            **({} if expires is None else {"exp": int(expires)}),
            **({"aud": audience} if audience else {}),
        }
        signed = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(body)}"
        signature = nkeys.from_seed(bytearray(self.seed)).sign(signed.encode())
        return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@dataclass(frozen=True)
class Operator:
    """The keys of an operator with a system account and one account with JetStream."""

    operator: Key
    system: Key
    account: Key
    signed: str  # the operator's own JWT: a server that reads its configuration again wants the same one

    @classmethod
    def make(cls) -> Operator:
        operator = Key.make(nkeys.PREFIX_BYTE_OPERATOR)
        system, account = Key.make(nkeys.PREFIX_BYTE_ACCOUNT), Key.make(nkeys.PREFIX_BYTE_ACCOUNT)
        signed = operator.sign(operator.public, "operator", system_account=system.public)
        return cls(operator, system, account, signed)

    def config(self, revoked: Mapping[str, int] | None = None) -> dict[str, Any]:
        """The configuration of a server. JWTs of ``revoked`` users, signed up to a time, are refused."""
        sign = partial(self.operator.sign, kind="account")
        limits = {**_LIMITS, **_JETSTREAM}
        return {
            "operator": self.signed,
            "system_account": self.system.public,
            "resolver": "MEMORY",
            "resolver_preload": {
                self.system.public: sign(self.system.public, limits=_LIMITS),
                self.account.public: sign(
                    self.account.public, limits=limits, revocations=dict(revoked or {})
                ),
            },
        }

    def write(self, file: Path, user: Key, expires: float | None = None) -> None:
        """Replace the credentials of a user of the account in one step: a concurrent reader sees a whole file."""
        claims = {"subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}}
        signed = self.account.sign(user.public, "user", expires, **claims)
        half = file.with_suffix(".half")
        half.write_text(
            f"-----BEGIN NATS USER JWT-----\n{signed}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )
        half.replace(file)


def operator_config(file: Path) -> dict[str, Any]:
    """The configuration of a server with one account, and into ``file`` the credentials of a user of it."""
    operator = Operator.make()
    operator.write(file, Key.make(USER))
    return operator.config()

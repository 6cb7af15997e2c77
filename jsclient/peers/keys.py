"""Keys of channels, for signing and encrypting data that isn't sent as an event.

A channel gets its keys when its relationship is requested, by this peer or by another. It has one key pair for signing
(Ed25519) and one for encrypting (X25519). The public keys are exchanged with the request and its approval. The private
keys are not stored, but derived from the secret of the peer and the ECI. Each process of the peer therefore has the
same keys, and a request that is redelivered gets the same keys again.

Source: the picos' subscriptions, ``Tx_verify_key`` and ``Tx_public_key``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..errors import ConfigError, ProtocolError
from ..protocol.peers.relationship import Attrs

__all__ = ["ChannelKeys", "PublicKeys", "public_keys"]

_SIZE: Final = 32  # bytes of a key


class PublicKeys(NamedTuple):
    """The public keys of a channel, each 32 bytes encoded as base64. Both are None if PyNaCl is not installed."""

    verify_key: str | None
    public_key: str | None


def public_keys(secret: bytes, eci: str) -> PublicKeys:
    """Return the public keys of a channel. Without the extra ``nkeys`` both are None."""
    try:
        signing, sealing = _pairs(_library(), secret, eci)
    except ConfigError:
        return PublicKeys(None, None)
    return PublicKeys(_text(bytes(signing.verify_key)), _text(bytes(sealing.public_key)))


class ChannelKeys:
    """Signs and encrypts data for the other side of a relationship. Returned by `Peer.keys`.

    Use the keys for data that isn't sent as an event, such as a record of a shared stream. The other side can verify
    that this peer signed the record, and only the other side can decrypt an encrypted record.

    Install the extra ``nkeys`` on both sides before they establish the relationship. A side without ``nkeys`` has no
    keys. The other side then finds None in the relationship's attributes ``Tx_verify_key`` and ``Tx_public_key``.

    In each method, ``to`` is the ``Id`` or the ``Rx`` of a relationship. The method raises `ConfigError` if no such
    relationship is established, or if the other side's key is needed but missing.
    """

    def __init__(self, secret: Callable[[], bytes], established: Callable[[str], Attrs | None]) -> None:
        self._secret = secret
        self._established = established

    def sign(self, to: str, data: bytes) -> bytes:
        """Return the signature of this side for ``data``. It has 64 bytes."""
        signing, _ = self._own(self._relationship(to))
        return bytes(signing.sign(data).signature)

    def verify(self, to: str, data: bytes, signature: bytes) -> bool:
        """Return whether ``signature`` is the signature of the other side for ``data``.

        If the result is False, somebody else made the signature, or the data was modified.
        """
        key, nacl = _key(self._relationship(to), "Tx_verify_key"), _library()
        try:
            nacl.signing.VerifyKey(key).verify(data, signature)
        except (nacl.exceptions.CryptoError, TypeError):
            return False
        return True

    def encrypt(self, to: str, data: bytes) -> bytes:
        """Encrypt data so that only the other side can decrypt it. The result is 40 bytes longer than ``data``."""
        return bytes(self._box(to).encrypt(data))

    def decrypt(self, to: str, data: bytes) -> bytes:
        """Return the data that the other side has encrypted for this side.

        Raises:
            ProtocolError: The data wasn't encrypted by the other side for this side, or it was modified.
        """
        box, nacl = self._box(to), _library()
        try:
            return bytes(box.decrypt(data))
        except (nacl.exceptions.CryptoError, TypeError, ValueError):
            raise ProtocolError(
                f"the {len(data)} bytes were not encrypted by the other side of relationship {to!r:.80} for this peer"
            ) from None

    def _box(self, to: str) -> Any:
        relationship = self._relationship(to)
        key, nacl = _key(relationship, "Tx_public_key"), _library()
        _, sealing = self._own(relationship)
        try:
            return nacl.public.Box(sealing, nacl.public.PublicKey(key))
        except nacl.exceptions.CryptoError:  # a weak key, whose shared secret is always the same
            raise ConfigError(f"the Tx_public_key of relationship {to!r:.80} is not a usable key") from None

    def _own(self, relationship: Attrs) -> tuple[Any, Any]:
        return _pairs(_library(), self._secret(), relationship["Rx"])

    def _relationship(self, to: str) -> Attrs:
        relationship = self._established(to)
        if relationship is None:
            raise ConfigError(f"no relationship {to!r:.80} is established: give its Id or its Rx")
        return relationship


def _key(relationship: Attrs, name: str) -> bytes:
    text = relationship[name]
    try:
        key = base64.b64decode(text or "", validate=True)
    except ValueError:
        key = b""
    if len(key) != _SIZE:
        why = "it is None" if text is None else f"{text!r:.60} is not base64 of {_SIZE} bytes"
        raise ConfigError(
            f"relationship {relationship['Id']!r} has no {name}: {why}. The other side had no keys when it was made: "
            'pip install "jsclient[nkeys]" there, and make a new relationship'
        )
    return key


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _library() -> Any:
    try:
        import nacl.exceptions
        import nacl.public
        import nacl.signing
    except ImportError as error:
        raise ConfigError('keys need PyNaCl: pip install "jsclient[nkeys]"') from error
    return nacl


def _pairs(nacl: Any, secret: bytes, eci: str) -> tuple[Any, Any]:
    """Derive the private keys of a channel, and return the key to sign and the key to encrypt."""

    def seed(kind: bytes) -> bytes:
        return hmac.new(secret, kind + eci.encode(), hashlib.sha256).digest()

    return nacl.signing.SigningKey(seed(b"sign ")), nacl.public.PrivateKey(seed(b"encrypt "))

"""Keys of channels: the same ones in each process of a peer, exchanged with a relationship, and what they are for."""

from __future__ import annotations

import base64
import sys

import pytest

from jsclient import ConfigError, ProtocolError
from jsclient.peers import ChannelKeys, Engine, LocalHub
from jsclient.peers.keys import public_keys
from tests.support.virtual import virtual

SECRETS = b"a" * 32, b"b" * 32
ECIS = "a.x", "b.y"


def side(own: int, **fields) -> ChannelKeys:
    """One side of the relationship ``fleet``."""
    other = public_keys(SECRETS[1 - own], ECIS[1 - own])
    record = {
        "Id": "fleet",
        "Rx": ECIS[own],
        "Tx_verify_key": other.verify_key,
        "Tx_public_key": other.public_key,
    }
    return ChannelKeys(lambda: SECRETS[own], {"fleet": record | fields}.get)


def test_keys_follow_from_secret_and_channel():
    keys = public_keys(b"a" * 32, "a.x")
    assert keys == public_keys(b"a" * 32, "a.x")
    others = [public_keys(b"b" * 32, "a.x"), public_keys(b"a" * 32, "a.y")]
    texts = {text for one in (keys, *others) for text in one}
    assert len(texts) == 6, "no two are equal"
    assert {len(base64.b64decode(text, validate=True)) for text in texts} == {32}


def test_signature_of_other_side_only():
    a, b = side(0), side(1)
    signature = a.sign("fleet", b"17 at noon")
    assert len(signature) == 64
    assert b.verify("fleet", b"17 at noon", signature)
    assert not b.verify("fleet", b"18 at noon", signature)
    assert not a.verify("fleet", b"17 at noon", signature), "its own is not the other side's"
    for odd in (b"", signature[:-1], signature + b"x", bytes(64), "text"):
        assert not b.verify("fleet", b"17 at noon", odd)


def test_decrypted_by_other_side_only():
    a, b = side(0), side(1)
    encrypted = a.encrypt("fleet", b"17 at noon")
    assert len(encrypted) == len(b"17 at noon") + 40
    assert b"noon" not in encrypted
    assert b.decrypt("fleet", encrypted) == b"17 at noon"
    assert a.encrypt("fleet", b"17 at noon") != encrypted, "a nonce each time"
    stranger = public_keys(b"c" * 32, "c.z")
    for odd in (b"", b"x" * 50, encrypted[:-1], encrypted[:-1] + bytes([encrypted[-1] ^ 1])):
        with pytest.raises(ProtocolError, match="not encrypted by the other side of relationship 'fleet'"):
            b.decrypt("fleet", odd)
    with pytest.raises(ProtocolError):
        side(1, Tx_public_key=stranger.public_key).decrypt("fleet", encrypted)


CALLS = {
    "Tx_verify_key": lambda keys, to: keys.verify(to, b"x", bytes(64)),
    "Tx_public_key": lambda keys, to: keys.encrypt(to, b"x"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("odd", [None, "", "x", "odd!", "é", base64.b64encode(bytes(31)).decode()])
def test_what_is_no_key_is_reported(name, odd):
    with pytest.raises(ConfigError, match=rf"'fleet' has no {name}.*jsclient\[nkeys\]"):
        CALLS[name](side(0, **{name: odd}), "fleet")


def test_key_that_gives_all_the_same_secret():
    with pytest.raises(ConfigError, match="not a usable key"):
        side(0, Tx_public_key=base64.b64encode(bytes(32)).decode()).encrypt("fleet", b"x")


def test_relationship_not_established_is_reported():
    for call in (
        *CALLS.values(),
        lambda keys, to: keys.sign(to, b"x"),
        lambda keys, to: keys.decrypt(to, b""),
    ):
        with pytest.raises(ConfigError, match="no relationship 'other' is established"):
            call(side(0), "other")


def test_without_the_library(monkeypatch):
    keys = side(0)
    monkeypatch.setitem(sys.modules, "nacl.signing", None)
    assert public_keys(b"a" * 32, "a.x") == (None, None)
    for call in (*CALLS.values(), lambda keys, to: keys.sign(to, b"x")):
        with pytest.raises(ConfigError, match=r'pip install "jsclient\[nkeys\]"'):
            call(keys, "fleet")


@virtual
async def test_engine_makes_and_exchanges_keys():
    hub = LocalHub()
    async with Engine.local(hub) as one, Engine.local(hub) as other:
        a, b = await one.peer("a"), await other.peer("b")
        b.auto_accept(lambda attrs: True)
        await a.request(await b.wellKnown_Rx(), Id="fleet", Tx_verify_key="forged")
        await a.wait_for("wrangler:subscription_added")
        (mine,), (theirs,) = a.established(), b.established()
        assert len({record[name] for record in (mine, theirs) for name in CALLS}) == 4
        assert mine["Tx_verify_key"] == public_keys(b._machine._secret, theirs["Rx"]).verify_key
        assert b.keys.verify("fleet", b"x", a.keys.sign(mine["Rx"], b"x"))
        assert a.keys.decrypt("fleet", b.keys.encrypt("fleet", b"x")) == b"x"

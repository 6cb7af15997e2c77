"""Links lead to objects, in any bucket, and say what is wrong if they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.buckets.kit import info_subject, names_of
from jsclient import ConfigError, InvalidNameError, LinkError, ObjectExistsError, ObjectNotFoundError
from jsclient.buckets.objects.links import find_object


@pytest.mark.covers("O21", "O22")
async def test_links(js: Any, store: Any, name: str, oracle: Any) -> None:
    target = await store.put("a", bytes(200_000))
    link = await store.add_link("l", "a")
    assert (link.link.bucket, link.link.name, link.is_link) == (name, "a", True)
    assert await store.get("l") == bytes(200_000)
    assert sorted(await names_of(store)) == ["a", "l"]
    other = await js.create_object_store(f"{name}-2", storage="memory")
    try:
        await other.add_link("far", target)
        await other.add_link("far", target)  # a link may be replaced
        assert await other.get("far") == bytes(200_000)
        async with other.open("far") as file:
            assert file.info.name == "a"
        await store.add_bucket_link("all", other)
        await store.add_bucket_link("all", other.bucket)
        assert (await store.info("all")).link.bucket == other.bucket
        with pytest.raises(LinkError, match=f"link to bucket '{other.bucket}'"):
            await store.get("all")
    finally:
        await js.delete_object_store(other.bucket)
    message = (await oracle.messages(store.stream))[-1]
    assert b"Nats-Rollup: sub" in message.headers


@pytest.mark.covers("O21", "O22")
async def test_links_that_cannot_be(store: Any) -> None:
    await store.put("a", b"1")
    link = await store.add_link("l", "a")
    with pytest.raises(LinkError, match="a link itself"):
        await store.add_link("m", link)
    with pytest.raises(ObjectExistsError):
        await store.add_link("a", "a")
    with pytest.raises(ObjectExistsError):
        await store.add_bucket_link("a", "other")
    with pytest.raises(InvalidNameError):
        await store.add_bucket_link("x", "a.b")
    with pytest.raises(ConfigError):
        await store.add_link("x", 5)
    await store.delete("a")
    with pytest.raises(ObjectNotFoundError):
        await store.add_link("m", "a")
    with pytest.raises(ObjectNotFoundError):
        await store.add_link("m", await store.info("a", deleted=True))
    with pytest.raises(ObjectNotFoundError, match="'a', to which 'l' is a link"):
        await store.get("l")
    await store.put("l", b"now an object")
    assert await store.get("l") == b"now an object"


@pytest.mark.covers("O21")
async def test_chains_of_links(store: Any, oracle: Any, name: str) -> None:
    async def link(one: str, to: str) -> None:
        body = {"name": one, "bucket": name, "options": {"link": {"bucket": name, "name": to}}}
        await oracle.publish(info_subject(name, one), json.dumps(body).encode())

    await store.put("end", b"1")
    await link("l8", "end")
    for number in range(7, -1, -1):
        await link(f"l{number}", f"l{number + 1}")
    assert await store.get("l1") == b"1"
    with pytest.raises(LinkError, match="more than 8"):
        await store.get("l0")
    await link("x", "y")
    await link("y", "x")
    with pytest.raises(LinkError, match="circle"):
        await store.get("x")
    await link("odd", "a")
    body = {"name": "odd", "options": {"link": {"bucket": "a.b", "name": "c"}}}
    await oracle.publish(info_subject(name, "odd"), json.dumps(body).encode())
    with pytest.raises(LinkError, match=r"a\.b"):
        await store.get("odd")


@pytest.mark.covers("O21")
async def test_bucket_of_the_target(js: Any, store: Any, name: str) -> None:
    """The target is found with its bucket, which is the own one where a link leads back."""
    other = await js.create_object_store(f"{name}-other", storage="memory")
    try:
        info = await store.put("a", b"1")
        await other.add_link("back", info)
        await store.add_link("l", "a")
        site, found = await find_object(other._site, "back")
        assert (site.bucket, found) == (store.bucket, await store.info("a"))
        site, found = await find_object(store._site, "l")
        assert (site, found.name) == (store._site, "a")
    finally:
        await js.delete_object_store(other.bucket)

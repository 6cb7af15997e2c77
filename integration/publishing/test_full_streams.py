"""A limit of the stream, the account or the server refuses a publish: the error names the limit and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient

FULL: list[tuple[dict[str, Any], str, str]] = [
    ({"max_bytes": 200, "discard": "new"}, "maximum bytes exceeded", "beyond its max_bytes: raise max_bytes"),
    ({"max_msgs": 1, "discard": "new"}, "maximum messages exceeded", "beyond its max_msgs: raise max_msgs"),
    (
        {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True},
        "maximum messages per subject exceeded",
        "raise max_msgs_per_subject",
    ),
    ({"max_msg_size": 50}, "message size exceeds maximum allowed", "larger than max_msg_size of the stream"),
]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors say what the server answers to a further question, also if a busy machine answers late."""
    monkeypatch.setattr("jsclient._runtime.refusals._TIMEOUT", 30.0)


@pytest.mark.parametrize(("limits", "what", "remedy"), FULL, ids=[next(iter(case[0])) for case in FULL])
async def test_limit_is_named(
    own_server: Any, connect: Any, limits: dict[str, Any], what: str, remedy: str
) -> None:
    js = await connect(await own_server())
    await js.create_stream("S", ["s"], **limits)
    await js.publish("s", b"")
    for attempt in (js.publish("s", b"x" * 190), js.publish("s", b"x" * 190, msg_id="1")):
        with pytest.raises(jsclient.ApiError) as caught:
            await attempt
        assert caught.value.stream == "S"
        assert str(caught.value).startswith(f"stream 'S': {what} ")
        assert remedy in str(caught.value)
    publisher = js.publisher()
    with pytest.raises(jsclient.ApiError, match="stream 'S'") as caught:
        await (await publisher.publish("s", b"x" * 190))
    assert remedy in str(caught.value)
    await publisher.close()


ACCOUNTS = {
    "A": {
        "jetstream": {"max_mem": 100_000, "max_file": 200_000, "max_streams": 3},
        "users": [{"user": "a", "password": "a"}],
    },
    "B": {"jetstream": "enabled", "users": [{"user": "b", "password": "b"}]},
    "C": {
        "jetstream": {"max_mem": 100_000, "max_file": 200_000},
        "users": [
            {"user": "c", "password": "c", "permissions": {"publish": {"deny": ["$JS.API.INFO"]}}},
        ],
    },
}
STORES = {"max_mem": "2M", "max_file": "2M"}
RESERVES = [
    (
        "a",
        "file",
        "limit of the account is 200,000 bytes in files, of which 0 are taken",
        "raise max_file of the account",
    ),
    ("a", "memory", "limit of the account is 100,000 bytes in memory", "raise max_mem of the account"),
    (
        "b",
        "file",
        "the server has not enough bytes left in files",
        "raise max_file_store of its configuration",
    ),
    ("b", "memory", "the server has not enough bytes left in memory", "raise max_memory_store of its"),
    (
        "c",
        "file",
        "no space for files is left",
        "raise max_file of the account or max_file_store of the server",
    ),
    ("c", "memory", "no memory is left", "raise max_mem of the account or max_memory_store of the server"),
]


@pytest.fixture
async def limited(own_server: Any) -> Any:
    return await own_server(config={"accounts": ACCOUNTS, "jetstream": STORES})


async def test_no_room_for_a_stream(limited: Any, connect: Any) -> None:
    """The limit's owner. Both, if the user may not ask for the account. That is not a separate event."""
    for user, storage, whose, remedy in RESERVES:
        seen: list[Any] = []
        js = await connect(limited, user=user, password=user, on_event=seen.append)
        with pytest.raises(jsclient.ApiError) as caught:
            await js.create_stream("S", ["s"], storage=storage, max_bytes=5_000_000)
        text = str(caught.value)
        assert caught.value.err_code == (10047 if storage == "file" else 10028)
        assert [
            word for word in (whose, remedy, "lower max_bytes", "stream 'S'") if word not in text
        ] == [], text
        assert ("would reserve 5,000,000" in text) == (user != "c")
        assert seen == []


async def fill(js: Any) -> None:
    while True:
        await js.publish("s", b"x" * 10_000)


@pytest.mark.parametrize("storage", ["file", "memory"])
async def test_account_full(limited: Any, connect: Any, storage: str) -> None:
    js = await connect(limited, user="a", password="a")
    await js.create_stream("S", ["s"], storage=storage)
    with pytest.raises(jsclient.ApiError) as caught:
        await fill(js)
    assert caught.value.err_code == 10002
    assert "its max_file allows, or in memory as its max_mem" in str(caught.value)
    assert "purge messages, give streams a max_bytes, or raise the limit" in str(caught.value)


async def test_too_many_streams(limited: Any, connect: Any) -> None:
    js = await connect(limited, user="a", password="a")
    for number in range(3):
        await js.create_stream(f"S{number}", [f"s{number}"])
    with pytest.raises(jsclient.ApiError, match=r"its max_streams allows: delete streams .* or raise it"):
        await js.create_stream("S3", ["s3"])

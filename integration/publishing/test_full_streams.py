"""A publish that a limit of the stream refuses: the error names the stream, the limit and the remedy."""

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

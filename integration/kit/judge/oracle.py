"""The judge: the answers of the server itself, over a separate connection.

It speaks the JetStream API as JSON over nats-py's core requests: neither jsclient nor nats-py's JetStream layer has a
part in the verdict. Durations in configurations are nanoseconds, as on the wire.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import nats.aio.msg
import nats.errors

from integration.kit.clients.foreign import Client, closed, flushed
from integration.kit.judge.waiting import eventually, within

CONNECTION_NAME = "kit-oracle"

_NO_PEERS = 10005
_PLACEMENT = 10.0  # seconds

Json = dict[str, Any]


class OracleError(Exception):
    """The server answered with an error."""

    def __init__(self, subject: str, error: Json) -> None:
        super().__init__(
            f"{subject}: {error.get('description')} ({error.get('code')}/{error.get('err_code')})"
        )
        self.code = error.get("code")
        self.err_code = error.get("err_code")


@dataclass(frozen=True)
class Stored:
    """A message as it is in a stream."""

    seq: int
    subject: str
    payload: bytes
    headers: bytes


class Oracle:
    """A connection that judges. `async with Oracle(url) as oracle`."""

    def __init__(self, url: str, *, timeout: float = 5.0, **connect_options: Any) -> None:
        self._url = url
        self._timeout = timeout
        self._options = connect_options
        self.nc = Client()

    async def __aenter__(self) -> Self:
        options = {"name": CONNECTION_NAME, "reconnect_time_wait": 0.1, "max_reconnect_attempts": -1}
        # nats-py would try for ever if no server listens.
        connecting = self.nc.connect(self._url, **{**options, **self._options})
        await within(self._timeout, connecting, f"the oracle's connection to {self._url}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await closed(self.nc)

    @property
    def server_version(self) -> str:
        version = self.nc.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    async def api(self, subject: str, request: object = None) -> Json:
        """One request to `$JS.API.<subject>`.

        Raises:
            OracleError: the server says so.
        """
        body = b"" if request is None else json.dumps(request).encode()
        reply = await self.nc.request(f"$JS.API.{subject}", body, timeout=self._timeout)
        answer: Json = json.loads(reply.data)
        if "error" in answer:
            raise OracleError(subject, answer["error"])
        return answer

    # Streams

    async def create_stream(self, name: str, subjects: Iterable[str], **config: Any) -> Json:
        request = {"name": name, "subjects": list(subjects), **config}
        deadline = time.monotonic() + _PLACEMENT
        while True:
            try:
                return await self.api(f"STREAM.CREATE.{name}", request)
            except OracleError as error:
                # A meta leader that was elected just now takes peers for offline until it has heard of them.
                if (
                    error.err_code != _NO_PEERS
                    or time.monotonic() > deadline
                    or not config.get("num_replicas")
                ):
                    raise
            await asyncio.sleep(0.1)

    async def update_stream(self, name: str, **changes: Any) -> Json:
        config = (await self.stream_info(name))["config"]
        return await self.api(f"STREAM.UPDATE.{name}", {**config, **changes})

    async def delete_stream(self, name: str, *, missing_ok: bool = False) -> None:
        try:
            await self.api(f"STREAM.DELETE.{name}")
        except OracleError as error:
            if not (missing_ok and error.code == 404):
                raise

    async def purge(self, name: str, **filters: Any) -> int:
        return int((await self.api(f"STREAM.PURGE.{name}", filters or None))["purged"])

    async def stream_info(self, name: str) -> Json:
        return await self.api(f"STREAM.INFO.{name}")

    async def state(self, name: str) -> Json:
        """`messages`, `first_seq`, `last_seq`, `bytes`, `consumer_count`, ..."""
        state: Json = (await self.stream_info(name))["state"]
        return state

    async def stream_names(self) -> list[str]:
        return await self._all("STREAM.NAMES", "streams")

    async def message(self, stream: str, seq: int) -> Stored:
        """One message. In a cluster that elects a leader just now, once it has one, in 20 s at most."""
        for tries_remaining in reversed(range(200)):
            try:
                actual = (await self.api(f"STREAM.MSG.GET.{stream}", {"seq": seq}))["message"]
                break
            except OracleError as error:
                if error.code != 503 or not tries_remaining:
                    raise
            await asyncio.sleep(0.1)
        return Stored(
            actual["seq"],
            actual["subject"],
            base64.b64decode(actual.get("data") or b""),
            base64.b64decode(actual.get("hdrs") or b""),
        )

    async def messages(self, stream: str) -> list[Stored]:
        """Everything stored, in order. For streams of some thousands at most."""
        state = await self.state(stream)
        results: list[Stored] = []
        for seq in range(max(state["first_seq"], 1), state["last_seq"] + 1):
            try:
                results.append(await self.message(stream, seq))
            except OracleError as error:
                if error.code != 404:
                    raise
        return results

    async def payloads(self, stream: str) -> list[bytes]:
        """The payloads stored, in order: for streams too long to ask for each message.

        By a consumer. In a cluster with a dead node the consumer may be put on that node, so ask for `messages` there.
        """
        inbox = self.nc.new_inbox()
        sub = await self.nc.subscribe(inbox)
        try:
            consumer = await self.create_consumer(
                stream, ack_policy="none", deliver_subject=inbox, mem_storage=True
            )
            count = consumer["num_pending"] + consumer["delivered"]["consumer_seq"]
            actual = [(await sub.next_msg(self._timeout)).data for _ in range(count)]
            await self.delete_consumer(stream, consumer["name"])
        finally:
            await sub.unsubscribe()
        return actual

    async def delete_message(self, stream: str, seq: int) -> None:
        await self.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})

    # Publishing

    async def publish(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> int:
        """Publish one message and return its stream sequence.

        In a cluster the server asked may not know yet that the stream has its subject: the message is not stored.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                reply = await self.nc.request(subject, payload, timeout=self._timeout, headers=headers)
                break
            except nats.errors.NoRespondersError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
        answer = json.loads(reply.data)
        if "error" in answer:
            raise OracleError(subject, answer["error"])
        return int(answer["seq"])

    async def publish_many(
        self, subject: str, count: int, *, first: int = 1, size: int = 0, window: int = 2000
    ) -> int:
        """Publish payloads `first`, `first + 1`, ... (padded to `size`). Return the last sequence.

        Only the last of every `window` asks for an ack. The server handles one connection in order,
        so that ack proves the others, and windows keep below its limit of messages not yet stored.
        """
        begin, last_seq = first, 0
        while begin < first + count:
            # The first message is sent alone, because the later sequences are counted from its sequence.
            end = min(begin + (window if last_seq else 1), first + count)
            for number in range(begin, end - 1):
                await self.nc.publish(subject, numbered(number, size))
            seq = await self.publish(subject, numbered(end - 1, size))
            if last_seq and seq - last_seq < end - begin:
                raise AssertionError(f"the server dropped messages published to {subject}")
            last_seq, begin = seq, end
        return last_seq

    # Consumers

    async def create_consumer(self, stream: str, name: str | None = None, **config: Any) -> Json:
        """Create a consumer. A pull consumer unless `deliver_subject` is given."""
        if name is not None:
            config = {"durable_name": name, "name": name, **config}
        subject = f"CONSUMER.CREATE.{stream}" + (f".{name}" if name else "")
        request = {"stream_name": stream, "config": {"ack_policy": "explicit", **config}}
        return await self.api(subject, request)

    async def delete_consumer(self, stream: str, name: str) -> None:
        await self.api(f"CONSUMER.DELETE.{stream}.{name}")

    async def consumer_info(self, stream: str, name: str) -> Json:
        return await self.api(f"CONSUMER.INFO.{stream}.{name}")

    async def consumer_names(self, stream: str) -> list[str]:
        return await self._all(f"CONSUMER.NAMES.{stream}", "consumers")

    async def consumers(self, stream: str) -> list[Json]:
        return await self._all(f"CONSUMER.LIST.{stream}", "consumers")

    async def ack_floor(self, stream: str, name: str) -> int:
        """The stream sequence up to which everything is acked."""
        return int((await self.consumer_info(stream, name))["ack_floor"]["stream_seq"])

    async def wait_consumer(
        self, stream: str, name: str, fits: Callable[[Json], object], timeout: float = 30.0, what: str = ""
    ) -> Json:
        """Return the consumer's info once it fits, such as `lambda info: not info["num_pending"]`."""

        last: Json = {}

        async def info_fits() -> bool:
            nonlocal last
            last = await self.consumer_info(stream, name)
            return bool(fits(last))

        try:
            await eventually(info_fits, timeout, what or f"the state of consumer {name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its info: {last}") from None
        return last

    # Looking on

    @contextlib.asynccontextmanager
    async def listen(self, subject: str) -> AsyncIterator[list[nats.aio.msg.Msg]]:
        """Collect what is published to a subject, such as `$JS.ACK.>`, during the block."""
        seen: list[nats.aio.msg.Msg] = []

        async def keep(message: nats.aio.msg.Msg) -> None:
            seen.append(message)

        sub = await self.nc.subscribe(subject, cb=keep)
        await flushed(self.nc)
        try:
            yield seen
        finally:
            await sub.unsubscribe()

    async def ack_tokens(self) -> int:
        """How many tokens the server's ack subjects have: 9 in the first form, 11 or more in the second."""
        name = f"KIT_{secrets.token_hex(6)}"
        await self.create_stream(name, [name], storage="memory")
        try:
            await self.publish(name, b"x")
            consumer = await self.create_consumer(name)
            # Not as a request: a pulled message comes with its own subject, by which nats-py would
            # look for the request in vain.
            inbox = self.nc.new_inbox()
            sub = await self.nc.subscribe(inbox)
            pull = f"$JS.API.CONSUMER.MSG.NEXT.{name}.{consumer['name']}"
            await self.nc.publish(pull, b"", reply=inbox)
            message = await sub.next_msg(self._timeout)
            await sub.unsubscribe()
            return len(message.reply.split("."))
        finally:
            await self.delete_stream(name)

    async def _all(self, subject: str, field: str) -> list[Any]:
        results: list[Any] = []
        while True:
            page = await self.api(subject, {"offset": len(results)})
            results += page.get(field) or []
            if len(results) >= page["total"] or not page.get(field):
                return results


def numbered(number: int, size: int = 0) -> bytes:
    """The payload of a numbered message: the number, padded with dots."""
    return str(number).encode().ljust(size, b".")


def number_of(payload: bytes) -> int:
    """The number in a payload made by `numbered`."""
    return int(payload.partition(b".")[0])

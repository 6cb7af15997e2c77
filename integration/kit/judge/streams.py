"""A stream of one test, with what tests do to it through the oracle."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any, Self

from integration.kit.judge.oracle import Json, Oracle, Stored


@dataclass(frozen=True)
class OwnStream:
    """A stream with a name and a subject prefix that no other test has."""

    oracle: Oracle
    name: str
    prefix: str

    @classmethod
    async def create(cls, oracle: Oracle, label: str, **config: Any) -> Self:
        """Create it in memory, over `<prefix>.>`, unless `config` says otherwise."""
        unique = secrets.token_hex(4)
        stream = cls(oracle, f"{re.sub(r'[^A-Za-z0-9]+', '_', label)[:40]}_{unique}", f"t{unique}")
        config = {"storage": "memory", "subjects": [stream.all], **config}
        await oracle.create_stream(stream.name, **config)
        return stream

    @property
    def all(self) -> str:
        """The pattern of all its subjects."""
        return f"{self.prefix}.>"

    def subject(self, *tokens: object) -> str:
        """A subject of this stream: `stream.subject("orders", 7)`."""
        return ".".join([self.prefix, *(str(token) for token in tokens or ("x",))])

    async def publish(self, count: int = 1, *tokens: object, first: int = 1, size: int = 0) -> int:
        """Store numbered messages (see `numbered`) and return the last sequence."""
        return await self.oracle.publish_many(self.subject(*tokens), count, first=first, size=size)

    async def create_consumer(self, name: str | None = None, **config: Any) -> Json:
        return await self.oracle.create_consumer(self.name, name, **config)

    async def delete_consumer(self, name: str) -> None:
        await self.oracle.delete_consumer(self.name, name)

    async def consumer_info(self, name: str) -> Json:
        return await self.oracle.consumer_info(self.name, name)

    async def until_asked(self, name: str, requests: int = 1) -> None:
        """Wait until the consumer has this many pull requests.

        A request that was only written may still be in a queue of the server. A deletion of the consumer then drops it
        silently.
        """
        await self.oracle.wait_consumer(
            self.name, name, lambda info: info["num_waiting"] >= requests, what="a pull"
        )

    async def consumer_names(self) -> list[str]:
        return await self.oracle.consumer_names(self.name)

    async def state(self) -> Json:
        return await self.oracle.state(self.name)

    async def messages(self) -> list[Stored]:
        return await self.oracle.messages(self.name)

    async def purge(self) -> int:
        return await self.oracle.purge(self.name)

    async def delete(self) -> None:
        await self.oracle.delete_stream(self.name, missing_ok=True)

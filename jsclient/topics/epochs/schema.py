"""The schema of a topic of epochs, stored with it: order, codec and number of partitions."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from ...errors import ConfigError, InvalidNameError, ProtocolError, TopicMismatchError
from ...protocol.epochs.frontier import Int, Order, Product
from ...protocol.topics.value_codec import Codec, codec_name
from ...protocol.wire.names import check_publish_subject

__all__ = [
    "MAX_PARTITIONS",
    "Schema",
    "check_partition",
    "check_topic",
    "codec_name",
    "make_schema",
    "order_name",
    "read_schema",
    "schema_key",
]

MAX_PARTITIONS: Final = 4096


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema of a topic.

    Attributes:
        v: The version of the schema.
        order: The name of the order of its times.
        codec: The name of its codec.
        partitions: The number of partitions: 0, 1, 2 …
    """

    v: Literal[1]
    order: str
    codec: str
    partitions: int

    def to_json(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()

    def check(self, topic: str, order: Order[Any], codec: Codec, partitions: int | None) -> None:
        """Compare it with the caller's. ``partitions`` None: any number.

        Raises:
            TopicMismatchError: They differ; ``mismatches`` lists the fields.
        """
        wanted = {"order": order_name(order), "codec": codec_name(codec), "partitions": partitions}
        mismatches: list[tuple[str, Any, Any]] = [
            (field, value, getattr(self, field))
            for field, value in wanted.items()
            if value is not None and value != getattr(self, field)
        ]
        if mismatches:
            raise TopicMismatchError(topic, mismatches)


def schema_key(topic: str) -> str:
    """The key of a topic's schema in the metadata of its stream."""
    return f"jsc-epochs.{topic}"


def read_schema(text: str, topic: str) -> Schema:
    """Read a schema. Raises `ProtocolError` if it is not valid, or of a newer version."""
    try:
        return msgspec.json.decode(text, type=Schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the schema of topic {topic!r} cannot be read: {text!r:.100}: {error}") from None


def make_schema(order: Order[Any], codec: Codec, partitions: int) -> Schema:
    """The schema of a topic that has these."""
    return Schema(1, order_name(order), codec_name(codec), partitions)


def order_name(order: Order[Any]) -> str:
    """The name of an order in a schema: its ``name``, otherwise its class."""
    if isinstance(order, Int):
        return "int" if order.bottom == 0 else f"int({order.bottom})"
    if isinstance(order, Product):
        return f"product({', '.join(map(order_name, order.orders))})"
    return str(getattr(order, "name", "") or type(order).__qualname__)


def check_topic(name: str) -> str:
    """The name of a topic: one subject token, or several. Raises `InvalidNameError`."""
    check_publish_subject(name)
    if len(name) > 200:
        raise InvalidNameError("topic", name, "it may have 200 characters")
    return name


def check_partition(partition: int, partitions: int) -> int:
    """Return ``partition`` if it is one of 0 to ``partitions - 1``. Raises `ConfigError`."""
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < partitions:
        raise ConfigError(f"partition is {partition!r:.40}, needs an integer from 0 to {partitions - 1}")
    return partition

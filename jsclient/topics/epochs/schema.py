"""What a topic of epochs is made of, as it is written down where all who use it look: order, codec, partitions."""

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
    """What a topic was made with.

    Attributes:
        v: The form of this.
        order: Which times it has.
        codec: How its data travels.
        partitions: How many there are: 0, 1, 2 …
    """

    v: Literal[1]
    order: str
    codec: str
    partitions: int

    def to_json(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()

    def check(self, topic: str, order: Order[Any], codec: Codec, partitions: int | None) -> None:
        """Compare it with what somebody wants to use. ``partitions`` None: as many as there are.

        Raises:
            TopicMismatchError: It differs; ``mismatches`` says in what.
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
    """Under which key of a stream's metadata the schema of a topic is."""
    return f"jsc-epochs.{topic}"


def read_schema(text: str, topic: str) -> Schema:
    """The schema in a text. Raises `ProtocolError` if there is none, or one of a newer version."""
    try:
        return msgspec.json.decode(text, type=Schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the schema of topic {topic!r} makes no sense: {text!r:.100}: {error}") from None


def make_schema(order: Order[Any], codec: Codec, partitions: int) -> Schema:
    """The schema of a topic that has these."""
    return Schema(1, order_name(order), codec_name(codec), partitions)


def order_name(order: Order[Any]) -> str:
    """What an order is called in a schema: its ``name``, if it has one, else its class."""
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
    """A partition of so many. Raises `ConfigError` if there is none such."""
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < partitions:
        raise ConfigError(f"there is no partition {partition!r:.40}: they are 0 to {partitions - 1}")
    return partition

"""Parses the name that a topic's schema has for the order of its times."""

from __future__ import annotations

import re
from typing import Any

from ...errors import ConfigError
from ...protocol.epochs.frontier import Int, Order, Product

__all__ = ["order_of"]

_TOKEN = re.compile(r"\s*(int|product|-?[0-9]+|[(),])")


def order_of(name: str, topic: str) -> Order[Any]:
    """The order with this name: integers, or tuples of them.

    Raises:
        ConfigError: It is a custom order, which only the program that created the topic knows.
    """
    try:
        order, rest = _read(_tokens(name))
        if not rest:
            return order
    except (ValueError, IndexError):
        pass
    raise ConfigError(
        f"option 'epochs': the times of topic {topic!r} have the order {name!r}, which Spark does not know: it can "
        "read whole numbers (Int), and tuples of them (Product)"
    )


def _tokens(name: str) -> list[str]:
    tokens, at = [], 0
    while at < len(name):
        found = _TOKEN.match(name, at)
        if found is None:
            raise ValueError(name)
        tokens.append(found[1])
        at = found.end()
    return tokens


def _read(tokens: list[str]) -> tuple[Order[Any], list[str]]:
    """Parse an order. Returns it and the remaining tokens."""
    if tokens[0] == "int":
        if tokens[1:2] != ["("]:
            return Int(), tokens[1:]
        if tokens[3] != ")":
            raise ValueError(tokens[3])
        return Int(int(tokens[2])), tokens[4:]
    if tokens[:2] != ["product", "("]:
        raise ValueError(tokens[0])
    parts, rest = [], [",", *tokens[2:]]
    while rest[0] == ",":
        part, rest = _read(rest[1:])
        parts.append(part)
    if rest[0] != ")":
        raise ValueError(rest[0])
    return Product(*parts), rest[1:]

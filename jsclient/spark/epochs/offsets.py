"""Offsets of a topic of epochs: converts `EpochPlace` to and from the JSON that Spark stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import PositionInvalidError
from ...protocol.epochs.frontier import Order
from ...protocol.epochs.messages import EpochPlace
from .planning import Wanted

__all__ = ["place_of", "place_to_json", "wanted_between"]


def place_to_json(place: EpochPlace[Any], order: Order[Any]) -> dict[str, Any]:
    """The place as Spark stores it."""
    made: dict[str, Any] = json.loads(place.to_json(order))
    return made


def place_of(offset: Mapping[str, Any], order: Order[Any], partitions: int) -> EpochPlace[Any]:
    """The place stored in an offset.

    Raises:
        PositionInvalidError: It is not a valid place in a topic with this number of partitions.
    """
    place: EpochPlace[Any] = EpochPlace.from_json(json.dumps(dict(offset)), order)
    if len(place.frontiers) != 1 or [number for number, _ in place.records] != [*range(partitions)]:
        raise PositionInvalidError(
            f"the checkpoint has an offset that is none of this topic, which has {partitions} partitions: "
            f"{str(dict(offset))[:200]}; was it made by another source?"
        )
    return place


def wanted_between(start: EpochPlace[Any], end: EpochPlace[Any] | None, order: Order[Any]) -> Wanted[Any]:
    """The epochs between two places, or all after one."""
    return Wanted(order, start.frontiers[0], None if end is None else end.frontiers[0], start.missed)

"""Spark: a streaming query from stream to stream on three nodes that are killed, frozen and cut off."""

from integration.campaign.spark.scenario import run

__all__ = ["run"]

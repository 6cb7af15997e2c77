"""Cluster chaos: every kind of publisher and reader at once, on three nodes that are killed, frozen and cut off."""

from integration.campaign.chaos.scenario import run

__all__ = ["run"]
